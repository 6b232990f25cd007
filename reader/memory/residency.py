"""Where the rows of a store are read from: the mapped file, the disk ahead of their use, or the memory of a device."""

from __future__ import annotations

from pathlib import Path

from reader import system
from reader.tuning import tuning

RESIDENCIES = ("auto", "cache", "disk", "gpu")

# The share of free memory that a store may take as page cache: the rest is for the training program.
_CACHE_SHARE = 0.8
# A share of pages below this is a cold store.
_WARM = 0.95


def choose(asked: str, size_bytes: int) -> str:
    """Return where rows are read from that have so many bytes in all: as asked; "auto" asks free memory."""
    if asked != "auto":
        return asked
    return "cache" if size_bytes <= system.available_bytes() * _CACHE_SHARE else "disk"


def is_cold(path: Path, size_bytes: int) -> bool:
    """Say whether reading the mapped file would mostly wait for page faults."""
    return size_bytes > tuning().small_store_bytes and system.cached_share(path) < _WARM
