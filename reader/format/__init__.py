"""The format of a store: manifest.json, meta.json, digests, and the lines beside them.

Needs only the standard library. Never maps a pixel and writes nothing.
"""
