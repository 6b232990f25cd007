"""From a store to batches, beside what people use instead."""
