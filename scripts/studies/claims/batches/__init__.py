"""Claims about mapped files, workers and batches."""
