"""The ways to read a store's first rows from its disk that `pack bench` compares, none of them in the page cache.

Drops the pages of these rows alone (posix_fadvise), as any reader of a file may, and sees them gone; else it measures nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reader import system
from reader.bench.row_bytes import RowBytes
from reader.bench.ways import ORDERS, Turn
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import NotMeasured
from reader.format.filesystem import size_text
from reader.format.manifest import PAGE_BYTES, PIXELS
from reader.loading.loader import MemmapLoader
from reader.memory import residency
from reader.memory.row_file import READ_BYTES, READERS, read_all
from reader.system import MEMORY_FILE_SYSTEMS
from reader.tuning import tuning

IN_ORDER = "reading in order, as cat does"
BY_THREADS = f"reading in order, {READERS} threads"

# Of a file whose pages were dropped, more than this still cached means that they stay.
_GONE = 0.05
# The page cache drops its large folios as a whole or not at all.
_LARGEST_FOLIO_BYTES = 2 << 20


def disk_ways(data: MemmapDataset, size: int, order: str, *, seconds: float) -> tuple[int, dict[str, Turn]]:
    """Return how many rows are read in about so many seconds, and the ways to read them, the limits first.

    No page of the store may be mapped yet: it could not be dropped.

    Raises:
        NotMeasured: the disk cannot be distinguished from memory here.
    """
    path, rows = data.path / PIXELS, RowBytes(data)
    least = max(tuning().small_store_bytes, rows.end(size))
    most = min(data.mapped.pixels.nbytes, int(system.available_bytes() * residency.COPY_SHARE))
    if system.file_system(path) in MEMORY_FILE_SYSTEMS:
        raise NotMeasured("the store is on a file system in memory.")
    if most <= least:
        raise NotMeasured(f"{size_text(most)} of rows are too few to distinguish the disk from the page cache.")
    drop(path, least)
    begun = time.perf_counter()
    read_through(path, least)
    count = rows.count_within(min(most, max(least, int(least / (time.perf_counter() - begun) * seconds))))
    size_bytes, part = rows.end(count), data.subset(np.arange(count))
    # rows with sizes of their own are in pages
    unit = PAGE_BYTES if rows.differ else rows.mean

    def epoch() -> None:
        with MemmapLoader(part, size, shuffle=ORDERS[order], residency="disk") as loader:
            for batch in loader:
                del batch

    ways: dict[str, Callable[[], object]] = {
        IN_ORDER: lambda: read_through(path, size_bytes),
        BY_THREADS: lambda: read_all(path, unit, -(-size_bytes // unit), past_cache=True),
        f"MemmapLoader from the disk, {order}": epoch,
    }
    return count, {name: _cold(way, path, size_bytes, rows.mean) for name, way in ways.items()}


def read_through(path: Path, size_bytes: int, *, most: int = 0, seconds: float = 0.0) -> int:
    """Read a file's first bytes in order through the page cache, and on up to `most` while there is time; returns how many."""
    into, done, end = memoryview(bytearray(READ_BYTES)), 0, time.perf_counter() + seconds
    with open(path, "rb", buffering=0) as file:
        while done < size_bytes or (done < most and time.perf_counter() < end):
            count = file.readinto(into[: max(size_bytes, most) - done])
            if not count:
                break
            done += count
    return done


def drop(path: Path, size_bytes: int) -> None:
    """Drop the first bytes of a file from the page cache.

    Raises:
        NotMeasured: they cannot be dropped, or stay.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        raise NotMeasured("this system cannot drop a file's pages and show that they are gone.")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, size_bytes + _LARGEST_FOLIO_BYTES, os.POSIX_FADV_DONTNEED)
    if system.cached_share(path, size_bytes) > _GONE:
        raise NotMeasured("the store's pages stay in the page cache: probably another program has them mapped.")


def _cold(way: Callable[[], object], path: Path, size_bytes: int, row_bytes: int) -> Turn:
    def turn() -> float:
        drop(path, size_bytes)
        begun = time.perf_counter()
        way()
        return size_bytes / row_bytes / (time.perf_counter() - begun)

    return turn
