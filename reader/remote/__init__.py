"""A store in object storage, read through a cache on a local disk: which blocks are there, and how they come there.

Knows the format and files; nothing of torch. `presence.py` is what a training process holds, `fetcher.py` the program that
fetches for it, since the library that carries the bytes does not survive a fork.
"""
