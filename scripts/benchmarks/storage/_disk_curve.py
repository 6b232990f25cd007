"""What a disk gives for reads in random order: gigabytes a second by how many are in flight and how large each is."""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from pathlib import Path

from reader.bench import drop
from reader.memory.raw_file import RawFile, ReadMemory

DEPTHS = (1, 2, 4, 8, 16, 32, 64)
# beside the size of a row
SIZES = (4 << 10, 64 << 10, 1 << 20, 8 << 20)
# Memory of this size is in huge pages, as a loader's is: into others a disk brings less.
_HUGE_PAGE_BYTES = 2 << 20

# size of a read -> how many are in flight -> GB/s
Curve = dict[int, dict[int, float]]


def random_reads(path: Path, size_bytes: int, depth: int, seconds: float, *, past_cache: bool) -> float:
    """Read pieces of a file whose pages were dropped, each once, in random order, on as many threads; returns GB/s.

    past_cache: by O_DIRECT, where the file system has it.
    """
    total = os.stat(path).st_size
    drop(path, total)
    order = list(range(total // size_bytes))
    random.Random(0).shuffle(order)
    taken = itertools.count()
    read = [0] * depth
    file = RawFile(path, past_cache=past_cache)
    # a piece is in memory where it is within a block of the disk: see RawFile.align
    memories = [ReadMemory(max(size_bytes + file.align, _HUGE_PAGE_BYTES)) for _ in range(depth)]
    for memory in memories:
        # a loader's is used again too
        memory.bytes.zero_()

    def work(number: int) -> None:
        memory = memories[number].room
        while (index := next(taken)) < len(order) and time.perf_counter() < end:
            start = order[index] * size_bytes
            file.read(memory, [(start, size_bytes, start % file.align)])
            read[number] += size_bytes

    threads = [threading.Thread(target=work, args=(number,)) for number in range(depth)]
    begun = time.perf_counter()
    end = begun + seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken_seconds = time.perf_counter() - begun
    file.close()
    return sum(read) / 1e9 / taken_seconds


def measure_curve(path: Path, row_bytes: int, rounds: int, seconds: float) -> dict[str, Curve]:
    """Return the best of some rounds for each size and depth, past the page cache and through it."""
    curves: dict[str, Curve] = {}
    for _ in range(rounds):
        for name, past_cache in (("past the page cache", True), ("through it", False)):
            curve = curves.setdefault(name, {})
            for size_bytes, depth in itertools.product(sorted({row_bytes, *SIZES}), DEPTHS):
                rate = random_reads(path, size_bytes, depth, seconds, past_cache=past_cache)
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
