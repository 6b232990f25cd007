"""What a disk gives for reads in random order: gigabytes a second by how many are in flight and how large each is."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader.bench import drop
from reader.buffers import allocated

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
# beside the size of a row
SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
# Memory of this size is in huge pages, as a loader's is: into others a disk brings less.
_HUGE_PAGE_BYTES = 2 << 20
# Blocks of any disk.
_BLOCK_BYTES = 4096

# size of a read -> how many are in flight -> GB/s
Curve = dict[int, dict[int, float]]


def disk_reads(
    path: Path,
    size_bytes: int,
    depth: int,
    seconds: float = math.inf,
    *,
    past_cache: bool = True,
    in_order: bool = False,
) -> float:
    """Read pieces of a file, each once, in random order, on as many threads; returns GB/s.

    Each thread reads to the same memory again and again, which nobody copies from.

    past_cache: by O_DIRECT, where the file system has it. in_order: one piece after the other instead.
    """
    total = os.stat(path).st_size
    pieces = [(start, min(size_bytes, total - start)) for start in range(0, total, size_bytes)]
    if not in_order:
        random.Random(0).shuffle(pieces)
    taken = itertools.count()
    # bytes that each thread has read; an error that ended one
    read, errors = [0] * depth, list[OSError]()
    descriptor = _opened(path, past_cache)
    # whole blocks of the disk are read
    memories = _memories(max(size_bytes + 2 * _BLOCK_BYTES, _HUGE_PAGE_BYTES), depth)

    def work(number: int) -> None:
        while not errors and (index := next(taken)) < len(pieces) and time.perf_counter() < end:
            start, size = pieces[index]
            first = start - start % _BLOCK_BYTES
            whole = -(-(start + size - first) // _BLOCK_BYTES) * _BLOCK_BYTES
            try:
                if os.preadv(descriptor, [memories[number][:whole].data], first) < start + size - first:
                    raise OSError(f"{path}: fewer bytes than asked for")
            except OSError as e:
                errors.append(e)
            read[number] += size

    threads = [threading.Thread(target=work, args=(number,)) for number in range(depth)]
    begun = time.perf_counter()
    end = begun + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_seconds = time.perf_counter() - begun
    os.close(descriptor)
    if errors:
        raise errors[0]
    return sum(read) / 1e9 / taken_seconds


@functools.lru_cache(maxsize=3)
def _memories(size_bytes: int, count: int) -> list[npt.NDArray[np.uint8]]:
    """Return memory that was written before, as a loader's is in a later epoch."""
    memories = [allocated(size_bytes) for _ in range(count)]
    for memory in memories:
        memory[:] = 0
    return memories


def _opened(path: Path, past_cache: bool) -> int:
    if past_cache and hasattr(os, "O_DIRECT"):
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_DIRECT)
    return os.open(path, os.O_RDONLY)


def measure_curve(path: Path, row_bytes: int, rounds: int, seconds: float) -> dict[str, Curve]:
    """Return the best of some rounds for each size and depth, past the page cache and through it."""
    curves: dict[str, Curve] = {}
    for _ in range(rounds):
        for name, past_cache in (("past the page cache", True), ("through it", False)):
            curve = curves.setdefault(name, {})
            for size_bytes, depth in itertools.product(sorted({row_bytes, *SIZES}), DEPTHS):
                drop(path, os.stat(path).st_size)
                rate = disk_reads(path, size_bytes, depth, seconds, past_cache=past_cache)
                known = curve.setdefault(size_bytes, {})
                known[depth] = round(max(rate, known.get(depth, 0.0)), 3)
    return curves


def best(curves: dict[str, Curve], row_bytes: int) -> float:
    """Return what random reads of a row's size reach at the best depth, either way."""
    return max(max(curve[row_bytes].values()) for curve in curves.values())


def table_lines(curves: dict[str, Curve]) -> list[list[str]]:
    """Return the curves as a table: a line a size, a column a depth."""
    lines = [["reads in flight", *map(str, DEPTHS)]]
    for name, curve in curves.items():
        for size_bytes, rates in curve.items():
            lines.append([f"{size_bytes / 1024:,.0f} KiB {name}", *(f"{rate:.2f}" for rate in rates.values())])
    return lines
