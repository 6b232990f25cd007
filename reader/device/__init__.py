"""Rows and batches on a CUDA device: pinned transfer on a side stream, stores and windows resident there.

Never reads a file.
"""
