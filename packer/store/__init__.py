"""The folder of an unfinished store: locks, journal, row files, sealing, replacing an older store.

Handles crashes and full disks. Never decodes an image and never starts a process.
"""
