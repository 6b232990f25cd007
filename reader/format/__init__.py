"""The format of a store: manifest.json, meta.json, digests, what an unfinished folder says of itself.

Needs the standard library alone. Never maps a pixel and writes nothing.
"""
