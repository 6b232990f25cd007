"""What `pack plan` answers: bytes and lost crops of each choice of row sizes, and how long packing takes.

Reads headers and decodes a few images in memory. Writes nothing.
"""
