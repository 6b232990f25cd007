"""Holds `MemmapLoader`, its thread that prepares batches, and the choice of a place for their rows.

Which rows a batch takes, `reader.planning` says. Knows nothing of the bench, and never changes a pixel itself.
"""
