"""Rows and batches on a CUDA device: pinned transfer on a side stream, stores resident there.

Never reads a file.
"""
