"""Random transforms of batches."""
