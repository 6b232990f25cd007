"""Bytes of an image to one row of uint8 pixels: decode, turn, crop, draw masks, sum; and the layout of a row.

Pure functions of bytes and options. Never reads or writes a store.
"""
