"""A store copied to object storage or another folder and back: `pack push`, `pack pull`, and what is at the URL.

Every file is compared with its checksum. Never decodes an image.
"""
