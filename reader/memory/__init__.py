"""Rows in host memory: read from the file, copied from its mapping, decoded, read ahead.

Chooses no rows, and computes no order.
"""
