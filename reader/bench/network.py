"""What `pack bench URL` measures: how near the first epoch of a store in object storage comes to its network.

The limit is the library that carries the bytes: it fetches the same ranges over as many connections, and nothing is done with
them. Both take turns over the first rows of the store, each loader with an empty cache of its own, which is removed behind it.
Prints nothing.
"""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from reader import system
from reader.bench.measure import BenchReport, OnShare, checked, section_of, unlogged
from reader.bench.row_bytes import RowBytes
from reader.bench.ways import ORDERS
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import BenchError
from reader.format.filesystem import size_text
from reader.format.tensors import NEEDS_RAW
from reader.loading.loader import MemmapLoader
from reader.remote.leftovers import Scratch
from reader.remote.opening import Source
from reader.tuning import tuning

# More is fetched no differently.
_MOST_BYTES = 1 << 30
_PROBE_BYTES = 32 << 20
# Of the time, for one turn of one way: four rounds of two ways, and the probe.
_TURN_SHARE = 1 / 9
_FEWEST_ROUNDS = 2


@dataclass(frozen=True)
class _ColdEpoch:
    """An epoch through an empty cache, in seconds, and its first batch."""

    seconds: float
    first_batch: float


def scratch_folder(parent: str | os.PathLike[str] | None) -> Scratch:
    """Make a folder for `measure_remote`; parent: where, None: in TMPDIR. Use it as a context: it is gone behind that."""
    return Scratch("bench", parent)


@unlogged()
def measure_remote(
    url: str,
    scratch: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    order: str | None = None,
    seconds: float = 5.0,
    progress: OnShare = lambda section, share: None,
) -> BenchReport:
    """Measure the first epoch of a store at a URL beside its network, for about so many seconds.

    Args:
        scratch: a folder on a local disk, where caches are made and removed.
        batch_size: rows a batch; None: as `measure` chooses it.
        order: of MemmapLoader: "full", "block" or "sequential"; None: "block".

    Raises:
        StoreError: there is no store, or some of it cannot be had.
        BenchError: it has fewer rows than a batch.
    """
    data = MemmapDataset(url, cache=Path(scratch, "opened"))
    assert data.remote is not None
    if data.manifest.compression:
        raise BenchError(f"{url}: {NEEDS_RAW}.")
    size, where = checked(data, batch_size, "cpu")
    limit, name = _limit_name(url), f"MemmapLoader, {order or 'block'}, its cache empty"
    progress("network", 0.0)
    probed = _probed(data, url)
    within = RowBytes(data).count_within(int(min(_MOST_BYTES, probed * seconds * _TURN_SHARE)))
    count = min(len(data), max(size, within))
    images = RowBytes(data).images(np.arange(count))
    rates: dict[str, list[float]] = {limit: [], name: []}
    first, started = list[float](), time.perf_counter()
    for number in itertools.count():
        if number >= _FEWEST_ROUNDS and time.perf_counter() - started > seconds:
            break
        for way in (list(rates), list(rates)[::-1])[number % 2]:
            if way == limit:
                rates[way].append(images / _fetch(data, url, RowBytes(data).end(count)))
                continue
            turn = _epoch(url, Path(scratch, f"turn{number}"), size, ORDERS[order or "block"], count)
            rates[way].append(images / turn.seconds)
            first.append(turn.first_batch)
        progress("network", min(1.0, (time.perf_counter() - started) / seconds))
    data.remote.close()
    section = section_of("network", data, count, (limit,), rates)
    loaded = section.ways[-1].gigabytes_per_second
    total_bytes = data.mapped.pixels.nbytes
    return BenchReport(
        store=url,
        rows=len(data),
        row_shape=(data.manifest.height, data.manifest.width, data.manifest.channels),
        pixel_bytes=total_bytes,
        has_own_sizes=data.manifest.has_own_sizes,
        batch_size=size,
        device=str(where),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        file_system=system.file_system(Path(scratch)),
        cached_share=0.0,
        residency="cache",
        residency_reason="blocks are fetched into a cache on a local disk, and read there",
        first_batch_ms=round(1e3 * float(np.median(first)), 2),
        sections=(section,),
        not_measured={"later epochs": "they read a complete cache as a local store: pack bench CACHE/<digest>"},
        advice=(
            f"The first epoch fetches {size_text(total_bytes)}: about {_duration(total_bytes / max(loaded, 1e-9) / 1e9)} at"
            f" {size_text(int(loaded * 1e9))}/s.",
        ),
    )


def _limit_name(url: str) -> str:
    """Name the limit by what carries the bytes: obstore, or Python from a folder of this machine."""
    return f"the same ranges by {Source(url).objects.library} alone"


def _probed(data: MemmapDataset, url: str) -> float:
    """Return bytes a second of a short fetch, the first of which opens connections."""
    end = min(_PROBE_BYTES, data.mapped.pixels.nbytes)
    return end / _fetch(data, url, end)


def _fetch(data: MemmapDataset, url: str, end: int) -> float:
    """Fetch the blocks that hold the first bytes of the pixels; returns the seconds."""
    assert data.remote is not None
    folder, source = data.remote.folder, Source(url)
    source.look()
    stop = folder.starts[folder.blocks_of(0, end)[-1] + 1]
    step = tuning().request_bytes
    spans = [(at, min(stop, at + step)) for at in range(0, stop, step)]
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(tuning().requests_at_once) as pool:
        for (at, until), done in zip(
            spans, pool.map(lambda span: source.read_pixels(folder.objects, *span), spans), strict=True
        ):
            assert len(done) == until - at
    return time.perf_counter() - started


def _epoch(url: str, cache: Path, size: int, shuffle: bool | str, count: int) -> _ColdEpoch:
    """Read the first rows by a new loader through an empty cache."""
    data = MemmapDataset(url, cache=cache)
    assert data.remote is not None
    try:
        with MemmapLoader(data.subset(range(count)), size, shuffle=shuffle, residency="cache") as loader:
            started = time.perf_counter()
            steps = iter(loader)
            next(steps)
            first = time.perf_counter() - started
            for _ in steps:
                pass
            return _ColdEpoch(time.perf_counter() - started, first)
    finally:
        data.remote.close()
        shutil.rmtree(cache, ignore_errors=True)


def _duration(seconds: float) -> str:
    """Return 90 as "2 minutes"."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
