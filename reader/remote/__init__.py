"""A store at a URL, read through a folder on a local disk that keeps some of its blocks.

A reading process holds `store.py`; the program `fetcher.py` fetches for it. The package knows the format, spans of bytes and
the plan of a pass. One line of `reader.dataset.store_location` imports it.
"""
