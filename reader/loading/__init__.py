"""Holds `MemmapLoader`, its thread that prepares batches, and the choice of a place for their rows.

`reader.planning` decides the rows of each batch. Knows nothing about the bench, and never changes a pixel itself.
"""
