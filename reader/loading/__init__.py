"""Holds `MemmapLoader`: which rows a batch takes, the thread that prepares it, ranks, prefetch, frameworks.

Knows nothing of the bench, and never changes a pixel itself.
"""
