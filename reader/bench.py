"""`pack bench`: images/s of MemmapLoader over a store, beside copying its rows, torch's DataLoader and the disk.

Ways take turns in one process, so that a busy machine slows all of them. No other module of `reader` knows it.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch.utils.data import DataLoader

from reader import system
from reader.dataset.dataset import MemmapDataset
from reader.format.manifest import PIXELS
from reader.loading.loader import MemmapLoader

_ROUNDS = 5
# The most bytes of rows to measure: more would not change the result.
_MOST_BYTES = 1 << 30
# If a smaller share of the file is in the page cache, its first rows are read from the disk and timed.
_WARM = 0.5


@dataclass(frozen=True)
class Way:
    """One way to read: its images/s, the median of the rounds, and its share of the limit, or None."""

    name: str
    images_per_second: float
    of_limit: float | None


def measure(path: str | os.PathLike[str], *, batch_size: int = 256, seconds: float = 5.0) -> list[Way]:
    """Measure how fast the first rows of a store are read, for about this many seconds.

    Raises:
        StoreError: path is not a store.

    Example:
        >>> [way.name for way in measure(store_path, batch_size=8, seconds=0.1)]
        ['copying rows', 'MemmapLoader', 'DataLoader']
    """
    whole = MemmapDataset(path, as_tuple=False)
    data = whole.subset(slice(max(1, _MOST_BYTES // whole.manifest.row_bytes)))
    batch_size = min(batch_size, len(data))
    limit = {} if data.manifest.jpeg else {"copying rows": _copies(data, batch_size)}
    rows = _endless(MemmapLoader(data, batch_size, shuffle="full", seed=0, as_tuple=False))
    others = {"MemmapLoader": rows, "DataLoader": _endless(DataLoader(data, batch_size, shuffle=True))}
    ways, found = limit | others, dict[str, float]()
    turn = seconds / (_ROUNDS + 1) / (len(ways) + 1)
    if system.cached_share(data.path / PIXELS) < _WARM:
        cold = MemmapLoader(whole, batch_size, shuffle="block", seed=0, residency="disk", as_tuple=False)
        found["MemmapLoader, from the disk"] = _rate(_endless(cold), turn * _ROUNDS)
    for counts in ways.values():
        _rate(counts, turn)
    rates = [[_rate(counts, turn) for counts in ways.values()] for _ in range(_ROUNDS)]
    found = dict(zip(ways, np.median(rates, axis=0).tolist(), strict=True)) | found
    most = found.get("copying rows")
    return [Way(name, rate, most and rate / most) for name, rate in found.items()]


def _rate(counts: Iterator[int], seconds: float) -> float:
    """Take batches for this time, at least one; returns rows per second."""
    started = now = time.perf_counter()
    taken = 0
    while not taken or now < started + seconds:
        taken += next(counts)
        now = time.perf_counter()
    return taken / (now - started)


def _endless(loader: MemmapLoader | DataLoader) -> Iterator[int]:
    """Yield the rows of each batch, epoch after epoch."""
    return (len(batch) for _ in itertools.count() for batch in loader)


def _copies(data: MemmapDataset, batch_size: int) -> Iterator[int]:
    """Copy batches of consecutive rows to one place, and yield their rows."""
    pixels = data._opened.pixels
    assert pixels is not None  # the store is in a folder
    # rows of their own sizes count with their mean
    step = batch_size * len(pixels) // data.manifest.rows
    pixels = pixels[:_MOST_BYTES]
    out = np.empty(step, np.uint8)
    for start in itertools.cycle(range(0, max(1, len(pixels) - step + 1), step)):
        np.copyto(out, pixels[start : start + step])
        yield batch_size
