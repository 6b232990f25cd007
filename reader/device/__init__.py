"""Rows and batches on a CUDA device: pinned transfer on a side stream, resident stores.

Never reads a file.
"""
