"""The folder of a store on disk while it is made: locks, journal, row files, sealing, replacing an older store.

Knows crashes and full disks. Never decodes an image and never starts a process.
"""
