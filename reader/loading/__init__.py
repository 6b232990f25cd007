"""Holds `MemmapLoader`: the thread that prepares batches, where their rows are read from, workers, frameworks.

Which rows a batch takes, `reader.planning` says. Knows nothing of the bench, and never changes a pixel itself.
"""
