"""Rows in host memory: read from the file, gathered into reused buffers, kept resident, read ahead.

Knows no device, no epoch order and no labels.
"""
