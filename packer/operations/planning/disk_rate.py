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
from reader.system import MEMORY_FILE_SYSTEMS, file_system

# As many as MemmapLoader reads rows by.
_THREADS = 8
# Smaller files than rows would time the opening of files.
_LEAST_FILE_BYTES = 48 << 10
_LEAST_BYTES, _MOST_BYTES = 4 << 20, 64 << 20
_MOST_FILES = 1024
_MOST_SECONDS = 2.0
# Where the disk was asked for less than this share of what was read, pages stayed in the page cache.
_COLD = 0.9


def disk_rate(splits: dict[str, Inputs]) -> float | None:
    """Return bytes/s of images of 48 kB and more, read by 8 threads from the disk that they are on; None where that is not known.

    It is not in object storage, in archives, on a file system in memory, where pages stay in the page cache, and by less than
    4 MiB of images. At most 64 MiB are read.
    """
    # a file that several links lead to is read once
    paths = sorted({os.path.realpath(path) for path in _files(splits)})
    if not paths or file_system(Path(paths[0])) in MEMORY_FILE_SYSTEMS:
        return None
    chosen, size_bytes = list[str](), 0
    for path in paths:
        if size_bytes < _MOST_BYTES and (dropped := _dropped_bytes(path)):
            chosen.append(path)
            size_bytes += dropped
    before = _asked_bytes()
    if size_bytes < _LEAST_BYTES or before is None:
        return None
    started = time.perf_counter()
    until = started + _MOST_SECONDS
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        done = sum(pool.map(lambda path: _read_bytes(path, until), chosen))
    seconds, asked = time.perf_counter() - started, (_asked_bytes() or 0) - before
    return done / seconds if asked >= _COLD * done else None


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
    """Drop a file from the page cache; returns how many bytes it has, 0 where it is too small."""
    if not hasattr(os, "posix_fadvise"):
        return 0
    try:
        with open(path, "rb", buffering=0) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            if size_bytes < _LEAST_FILE_BYTES:
                return 0
            # what is not on the disk yet stays
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return size_bytes
    except OSError:
        return 0


def _asked_bytes() -> int | None:
    """Return how many bytes this process has asked of disks so far; None where the system does not count them."""
    with contextlib.suppress(OSError), open("/proc/self/io", encoding="ascii") as lines:
        return int(dict(line.split(": ") for line in lines)["read_bytes"])
    return None


def _read_bytes(path: str, until: float) -> int:
    """Read a file, unless the time is over; returns how many bytes it had."""
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        if time.perf_counter() < until:
            return len(file.readall())
    return 0
