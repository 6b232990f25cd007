"""How fast does one shuffled epoch of a store read here, beside merely copying its bytes?

    python -m scripts.benchmarks.read_epoch sample/packed

First a whole epoch, checked: every row comes once. Then, in turns, the loader's shuffled batches and the limit:
consecutive slices of the same rows, copied into a ring of as many buffers of the same size by the same threads. What is printed
are medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from reader import MemmapDataset, MemmapLoader, StoreError
from reader.memory.gather import Copies, Gatherer

# 8,192 rows of 224 x 224 are 1.2 GB: long enough to time, and they stay in the page cache.
TURN_ROWS = 8192
# A small store is read several times a turn: 40 ms are far above the clock's and the scheduler's grain.
TURN_SECONDS = 0.04
TURNS = 21


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", help="a store, as `pack` wrote it")
    parser.add_argument("--batch-size", type=int, help="default: 256, less for stores of fewer than 1,024 rows")
    options = parser.parse_args()
    try:
        data = MemmapDataset(options.out)
    except StoreError as e:
        print(e, file=sys.stderr)
        return 1
    report(data, options.batch_size or min(256, max(1, len(data) // 4)))
    return 0


def report(data: MemmapDataset, batch_size: int) -> None:
    row_bytes = data.store.pixels[0].nbytes
    first_seconds = check_epoch(MemmapLoader(data, batch_size, shuffle=True, as_tuple=False))
    few = data.subset(slice(TURN_ROWS))
    loader = MemmapLoader(few, batch_size, shuffle=True, as_tuple=False)
    ours, limit = in_turns(lambda: read(loader), copier(few, batch_size, buffers=loader.prefetch + 2))
    ratio = statistics.median(a / b for a, b in zip(ours, limit, strict=True))
    rate, limit_rate = statistics.median(ours), statistics.median(limit)
    shape = "x".join(str(n) for n in data.store.pixels.shape[1:])
    gigabytes = f"{rate * row_bytes / 1e9:.1f} and {limit_rate * row_bytes / 1e9:.1f} GB/s"
    print(f"first epoch    {len(data):,} images uint8[{shape}] in {first_seconds:.3f} s, shuffled, each of them once")
    print(f"warm           {rate:,.0f} images/s, shuffled, batches of {batch_size}, {torch.get_num_threads()} threads")
    print(f"memory copy    {limit_rate:,.0f} images/s, the limit: consecutive slices into the same number of buffers")
    print(f"of the limit   {ratio:.2f} (median of {TURNS} turns; {gigabytes})")
    if len(data) < TURN_ROWS // 4:
        milliseconds = len(data) / rate * 1e3
        print(f"               (An epoch of so few rows takes {milliseconds:.1f} ms, starting a thread included;")
        print("               python -m scripts.benchmarks.bench_read measures a large store.)")


def check_epoch(loader: MemmapLoader) -> float:
    """Read an epoch and return its seconds.

    Raises:
        RuntimeError: a row was missing or came twice.
    """
    seen = np.zeros(len(loader.dataset), np.uint8)
    start = time.perf_counter()
    for batch in loader:
        seen[batch.rows.numpy()] += 1
    seconds = time.perf_counter() - start
    if not (seen == 1).all():
        raise RuntimeError(f"{(seen != 1).sum()} of {len(seen)} rows did not come exactly once. Please report this.")
    return seconds


def read(loader: MemmapLoader) -> int:
    return sum(len(batch.rows) for batch in loader)


def copier(data: MemmapDataset, batch_size: int, buffers: int) -> Callable[[], int]:
    """Return a function that copies the rows of `data` in store order, batch by batch, and returns how many."""
    pixels = data.store.pixels[: len(data)]
    gatherer = Gatherer(pixels)
    # numpy asks for huge pages where torch does not, and so does the loader.
    ring = [torch.from_numpy(np.ones((batch_size, *pixels.shape[1:]), np.uint8)) for _ in range(buffers)]

    def copy_all() -> int:
        # as the loader copies, two slices under way: torch's copy_, one after the other, is slower and would be no limit
        before: Copies | None = None
        for step, start in enumerate(range(0, len(pixels), batch_size)):
            rows = np.arange(start, min(start + batch_size, len(pixels)))
            copies = gatherer.begin(rows, ring[step % buffers][: len(rows)])
            if before is not None:
                before.wait()
            before = copies
        if before is not None:
            before.wait()
        return len(pixels)

    return copy_all


def in_turns(*ways: Callable[[], int]) -> list[list[float]]:
    """Time the ways alternately; each returns the rows it read. Images/s of every turn, a list for each way."""
    rates: list[list[float]] = [[] for _ in ways]
    for way in ways:
        way()
    for _ in range(TURNS):
        for way, found in zip(ways, rates, strict=True):
            rows, start = 0, time.perf_counter()
            while not rows or time.perf_counter() - start < TURN_SECONDS:
                rows += way()
            found.append(rows / (time.perf_counter() - start))
    return rates


if __name__ == "__main__":
    sys.exit(main())
