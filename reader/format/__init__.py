"""The format of a store: manifest.json, meta.json, digests, and the lines beside them.

Needs the standard library alone. Never maps a pixel and writes nothing.
"""
