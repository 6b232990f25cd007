"""A store at a URL, read through a folder on a local disk that keeps some of its blocks.

`store.py` is what a reading process holds, `fetcher.py` the program that fetches for it. The room knows the format, spans of
bytes and the plan of a pass; one line of `reader.dataset.splits` knows the room.
"""
