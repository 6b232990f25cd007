"""What the disk of the images gives: some of them, dropped from the page cache, are read by several threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time
from pathlib import Path

from packer.inputs.samples import Inputs
from packer.packing.image_sizes import sources_of
from packer.sources.local import LocalSource
from reader.system import MEMORY_FILE_SYSTEMS, cached_share, file_system

# As many as MemmapLoader reads rows by.
_THREADS = 8
# Smaller files than rows would time the opening of files.
_LEAST_FILE_BYTES = 48 << 10
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 64 << 20
_MOST_FILES = 1024
_MOST_SECONDS = 2.0
# Of a file whose pages were dropped, more than this still cached means that they stay.
_GONE = 0.05


def disk_rate(splits: dict[str, Inputs]) -> float | None:
    """Return bytes/s of images of 48 kB and more, read by 8 threads from the disk that they are on; None where that is not known.

    It is not in object storage, in archives, on a file system in memory, where pages stay in the page cache, and by less than
    4 MiB of images. At most 64 MiB are read.
    """
    paths = _files(splits)
    if not paths or file_system(Path(paths[0])) in MEMORY_FILE_SYSTEMS:
        return None
    cold, size_bytes = list[str](), 0
    for path in paths:
        if size_bytes < _MOST_BYTES and (dropped := _dropped_bytes(path)):
            cold.append(path)
            size_bytes += dropped
    if size_bytes < _LEAST_BYTES:
        return None
    begun = time.perf_counter()
    until = begun + _MOST_SECONDS
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        done = sum(pool.map(lambda path: _read_bytes(path, until), cold))
    return done / (time.perf_counter() - begun)


def _files(splits: dict[str, Inputs]) -> list[str]:
    """Return the paths of files, evenly spread over all inputs."""
    total = sum(map(len, splits.values()))
    found = list[str]()
    for inputs in splits.values():
        for index in range(0, len(inputs), -(-total // _MOST_FILES)):
            (source,) = sources_of(inputs, index, index + 1)
            if isinstance(source, LocalSource) and source.member is None:
                found.append(source.path)
    return found


def _dropped_bytes(path: str) -> int:
    """Drop a file from the page cache; returns how many bytes it has, 0 where it is too small, or stays."""
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        return 0
    try:
        with open(path, "rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < _LEAST_FILE_BYTES:
                return 0
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return size_bytes if cached_share(Path(path)) <= _GONE else 0
    except OSError:
        return 0


def _read_bytes(path: str, until: float) -> int:
    """Read a file, unless the time is over; returns how many bytes it had."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        if time.perf_counter() < until:
            return len(file.readall())
    return 0
