"""Rows in host memory: read from the file, gathered into reused buffers, kept resident, read ahead.

Begins copies from pinned memory to a device too. Chooses no rows, and computes no order.
"""
