"""Finished stores that a pack reads: their rows, checked; images that are twice in them; rows that an update reuses.

Changes nothing, and decodes no image.
"""
