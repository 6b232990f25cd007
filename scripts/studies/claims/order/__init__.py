"""Claims about the order of an epoch and about loops over it."""
