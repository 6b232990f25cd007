"""Holds `MemmapLoader`: the thread that prepares batches, and where their rows are read from.

Which rows a batch takes, `reader.planning` says. Knows nothing of the bench, and never changes a pixel itself.
"""
