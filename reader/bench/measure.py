"""What `pack bench` measures: how near reading a store comes to the speed of this machine's memory and of its disk.

Limits and readers take turns of a few batches in one process, and ratios are taken within a round, so that what disturbs the
machine disturbs both. Knows what is compared with what, and what follows from it. Never prints, writes nothing. Of a store
larger than memory, or than the time allows, the first rows are measured.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from reader import system
from reader.bench.disk import BY_THREADS, IN_ORDER, disk_ways, read_through
from reader.bench.row_bytes import RowBytes
from reader.bench.ways import (
    DEVICE_TURN_BYTES,
    ORDERS,
    FirstRows,
    Loader,
    PinnedCopies,
    SliceCopies,
    TorchLoader,
    Turn,
)
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import BenchError, NotMeasured
from reader.format.filesystem import size_text
from reader.format.manifest import PAGE_BYTES, PIXELS
from reader.format.tensors import NEEDS_RAW
from reader.loading.validation import checked_device
from reader.memory import residency as residencies
from reader.tuning import tuning

BATCH_SIZE = 256
# An epoch of fewer batches shows no pipeline: its start takes prefetch + 2.
_LEAST_BATCHES = 8
# Rows are so large at times that 256 of them fill a machine's memory: each way has a few batches at a time.
_BATCH_BYTES = 256 << 20

COPIES = "copying consecutive slices"
PINNED_COPIES = "copying pinned batches"
NO_WORKERS, WORKERS = "DataLoader, 0 workers", "DataLoader, 2 workers"

# More rows are read no differently, and mapping their pages takes longer than measuring them.
_MOST_BYTES = 4 << 30
# Of the time: to find how much can be read from the disk in a turn, for all its turns, for bringing rows into memory.
_PROBE_SHARE, _DISK_SHARE, _WARM_SHARE = 0.08, 0.35, 0.1
# From a disk, a turn is an epoch of many batches: fewer of them.
_LEAST_ROUNDS, _FEWEST_ROUNDS = 6, 2
# What is many times slower than the limit takes part in every third round: most of the time is the others'.
_RARELY = 3
_FIRST_BATCHES = 5
# What is said to be faster, is so by this much.
_CLEARLY = 1.2

# Takes the section that is measured and the share of its time that has passed, 0..1.
OnShare = Callable[[str, float], object]


@dataclass(frozen=True)
class Way:
    """One way to read: the median of its turns, and its share of the limit in the same round: median, p10, p90."""

    name: str
    images_per_second: float
    gigabytes_per_second: float
    of_limit: float
    of_limit_p10: float
    of_limit_p90: float


@dataclass(frozen=True)
class Section:
    """Ways that took turns over a store's first rows; the fastest of `limits` in a round is the limit of that round."""

    name: str
    rows: int
    rounds: int
    limits: tuple[str, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class BenchReport:
    """What was measured, and what follows.

    row_shape, has_own_sizes: of rows with sizes of their own the largest sides; images/s are then those of mean size.
    cached_share: of the pixels in the page cache before anything was read, 0..1.
    residency, residency_reason: what "auto" chose before anything was read, and why.
    first_batch_ms: from iter() of a new MemmapLoader to its first batch, rows in memory; median.
    not_measured: what -> why.
    """

    store: str
    rows: int
    row_shape: tuple[int, int, int]
    pixel_bytes: int
    has_own_sizes: bool
    batch_size: int
    device: str
    threads: int
    torch: str
    file_system: str
    cached_share: float
    residency: str
    residency_reason: str
    first_batch_ms: float
    sections: tuple[Section, ...]
    not_measured: dict[str, str]
    advice: tuple[str, ...]


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Let loaders log errors alone: what they warn of says nothing to who did not make them."""
    logger = logging.getLogger("reader")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@unlogged()
def measure(
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    device: str = "cpu",
    order: str | None = None,
    seconds: float = 5.0,
    progress: OnShare = lambda section, share: None,
) -> BenchReport:
    """Measure reading a store beside the limits of this machine, for about so many seconds.

    Args:
        batch_size: rows a batch; None: 256, or fewer where a store is small or its rows are large.
        device: "cuda" measures copies to that device too.
        order: of MemmapLoader: "full", "block" or "sequential"; None: all three, and from the disk "block".

    Raises:
        StoreError: path is not a store.
        BenchError: it has fewer rows than a batch, or there is no such device.

    Example:
        >>> measure(store_path, batch_size=8, seconds=0.1).sections[0].limits
        ('copying consecutive slices',)
    """
    data = MemmapDataset(path)
    if data.manifest.compression:
        raise BenchError(
            f"{path}: {NEEDS_RAW}. This measures raw rows; scripts/benchmarks/packing/bench_compress.py measures these."
        )
    size, where = checked(data, batch_size, device)
    pixels, row_bytes = data.path / PIXELS, data.manifest.row_bytes
    orders = (order,) if order else tuple(ORDERS)
    cached = system.cached_share(pixels)
    auto = residencies.choose("auto", residencies.Reads(pixels, data.mapped.pixels.nbytes))
    not_measured: dict[str, str] = {}
    torch_loaders = {NO_WORKERS: TorchLoader(data, 0)}
    if reason := TorchLoader.why_not(size * row_bytes, 2):
        not_measured[WORKERS] = reason
    else:
        torch_loaders[WORKERS] = TorchLoader(data, 2)
    disk = _disk(data, size, order or "block", seconds, not_measured, progress)
    # what was dropped from the page cache is brought back at least
    least = max([size, *(section.rows for section in disk)])
    progress("memory", 0.0)
    part = FirstRows(data, size, _warm_rows(data, least, cached, seconds * _WARM_SHARE))
    left = seconds * (1 - _WARM_SHARE - (_PROBE_SHARE + _DISK_SHARE if disk else 0)) / (1 + (where.type == "cuda"))
    sections = [_memory(part, orders, torch_loaders, left, progress)]
    if where.type == "cuda":
        sections.append(_device(part, orders, where, left, progress))
    sections += disk
    return BenchReport(
        store=str(path),
        rows=len(data),
        row_shape=(data.manifest.height, data.manifest.width, data.manifest.channels),
        pixel_bytes=data.mapped.pixels.nbytes,
        has_own_sizes=data.manifest.has_own_sizes,
        batch_size=size,
        device=str(where),
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        file_system=system.file_system(pixels),
        cached_share=cached,
        residency=auto.name,
        residency_reason=auto.reason,
        first_batch_ms=_first_batch_ms(part, orders[0], where),
        sections=tuple(sections),
        not_measured=not_measured,
        # smaller ones are in the page cache after a few page faults
        advice=tuple(
            _advice(sections, cached if data.mapped.pixels.nbytes > tuning().small_store_bytes else 1.0, auto.name)
        ),
    )


def checked(data: MemmapDataset, batch_size: int | None, device: str) -> tuple[int, torch.device]:
    """Return the batch size and the device to measure with.

    Raises:
        BenchError: the store has fewer rows than a batch, or there is no such device.
    """
    size = _usual_size(data) if batch_size is None else batch_size
    if not 1 <= size <= len(data):
        raise BenchError(f"the batch size is {size}, expected 1 to {len(data)}, the rows of {data.path}.")
    try:
        return size, checked_device(device)
    except ValueError as e:
        raise BenchError(str(e)) from None


def _usual_size(data: MemmapDataset) -> int:
    """Return a power of two, as users choose it."""
    most = min(BATCH_SIZE, len(data) // _LEAST_BATCHES, _BATCH_BYTES // data.manifest.row_bytes)
    return 1 << max(1, most).bit_length() - 1


def _warm_rows(data: MemmapDataset, least: int, cached: float, seconds: float) -> int:
    """Bring the first rows into the page cache and map their pages; returns how many."""
    pixels, rows = data.mapped.pixels, RowBytes(data)
    most = min(pixels.nbytes, _MOST_BYTES)
    if cached < residencies.WARM:
        most = min(most, int(system.available_bytes() * residencies.COPY_SHARE))
    count = rows.count_within(read_through(data.path / PIXELS, rows.end(least), most=most, seconds=seconds))
    # the first fault of each page is not part of reading it in every epoch
    pixels.view(-1)[: rows.end(count) : PAGE_BYTES].max()
    return count


# -- sections


def _memory(
    part: FirstRows, orders: Sequence[str], torch_loaders: Mapping[str, TorchLoader], seconds: float, progress: OnShare
) -> Section:
    loaders = {f"MemmapLoader, {order}": Loader(part, order, torch.device("cpu")) for order in orders}
    ways: dict[str, Turn] = {COPIES: SliceCopies(part).turn}
    ways |= {name: loader.turn for name, loader in loaders.items()}
    for name, torch_loader in torch_loaders.items():
        torch_loader.part = part
        ways[name] = torch_loader.turn
    rates = _warmed_up(ways, seconds, lambda share: progress("memory", share))
    for loader in loaders.values():
        loader.close()
    return section_of("memory", part.data, part.count, (COPIES,), rates)


def _device(part: FirstRows, orders: Sequence[str], device: torch.device, seconds: float, progress: OnShare) -> Section:
    """Measure copies to a CUDA device. No GPU has run this yet."""
    part = replace(part, turn_bytes=DEVICE_TURN_BYTES)
    loaders = {f"MemmapLoader to {device}, {order}": Loader(part, order, device) for order in orders}
    ways: dict[str, Turn] = {PINNED_COPIES: PinnedCopies(part, device).turn}
    ways |= {name: loader.turn for name, loader in loaders.items()}
    rates = _warmed_up(ways, seconds, lambda share: progress("device", share))
    for loader in loaders.values():
        loader.close()
    return section_of("device", part.data, part.count, (PINNED_COPIES,), rates)


def _disk(
    data: MemmapDataset, size: int, order: str, seconds: float, not_measured: dict[str, str], progress: OnShare
) -> list[Section]:
    """Return the disk's section, or none and say why; seconds are those of the whole measurement."""
    progress("disk", 0.0)
    try:
        count, ways = disk_ways(data, size, order, seconds=seconds * _PROBE_SHARE)
        rates = _in_turns(ways, seconds * _DISK_SHARE, lambda share: progress("disk", share), least=_FEWEST_ROUNDS)
    except NotMeasured as e:
        not_measured["disk"] = str(e)
        return []
    return [section_of("disk", data, count, (IN_ORDER, BY_THREADS), rates)]


def _in_turns(
    ways: Mapping[str, Turn], seconds: float, progress: Callable[[float], object], *, least: int = _LEAST_ROUNDS
) -> dict[str, list[float]]:
    """Time the ways in turns, `least` rounds and on until time is up; returns images/s in each round, nan without a turn.

    Slow rounds are fewer than `least`, though never fewer than two.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    names, rounds, started = list(ways), 0, time.perf_counter()
    progress(0.0)
    gc.disable()  # a collection in the middle of a turn would be charged to whose turn it is
    try:
        while (
            rounds < _FEWEST_ROUNDS
            or (passed := time.perf_counter() - started) < seconds
            or (rounds < least and passed < tuning().bench_rounds_seconds)
        ):
            first = rounds % len(names)
            for name in names[first:] + names[:first]:
                left_out = name in (NO_WORKERS, WORKERS) and rounds % _RARELY
                rates[name].append(np.nan if left_out else ways[name]())
            rounds += 1
            progress(min(1.0, rounds / least, (time.perf_counter() - started) / max(seconds, 1e-3)))
    finally:
        gc.enable()
    return rates


def _warmed_up(ways: Mapping[str, Turn], seconds: float, progress: Callable[[float], object]) -> dict[str, list[float]]:
    """Time ways in turns, after one round that does not count."""
    started = time.perf_counter()
    progress(0.0)
    for turn in ways.values():
        turn()
    return _in_turns(ways, seconds - (time.perf_counter() - started), progress)


def section_of(
    name: str, data: MemmapDataset, rows: int, limits: tuple[str, ...], rates: Mapping[str, list[float]]
) -> Section:
    """Return a section of what took turns: images/s of each way in each round."""
    limit = np.max([rates[name] for name in limits], axis=0)
    ways = []
    for way, found in rates.items():
        p10, median, p90 = (round(float(value), 4) for value in np.nanpercentile(np.array(found) / limit, [10, 50, 90]))
        rate = float(np.nanmedian(found))
        gigabytes = round(rate * data.manifest.row_bytes / 1e9, 6)
        ways.append(Way(way, round(rate, 1), gigabytes, median, p10, p90))
    return Section(name, rows, len(limit), limits, tuple(ways))


def _first_batch_ms(part: FirstRows, order: str, device: torch.device) -> float:
    found = []
    for epoch in range(_FIRST_BATCHES):
        with part.loader(order, device) as loader:
            loader.set_epoch(epoch)
            started = time.perf_counter()
            next(iter(loader))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            found.append((time.perf_counter() - started) * 1e3)
    return round(float(np.median(found)), 2)


# -- what follows


def _advice(sections: Sequence[Section], cached: float, residency: str) -> list[str]:
    """Say what to do, only where it was measured."""
    ways = {way.name: way for section in sections for way in section.ways}
    # of the disk's section, the loader
    disk = next((section.ways[-1] for section in sections if section.name == "disk"), None)
    advice = []
    memory = next((section for section in sections if section.name == "memory"), None)
    if memory and any(way.name.startswith("MemmapLoader") and way.of_limit > _CLEARLY for way in memory.ways):
        advice.append(
            "The copies that limit MemmapLoader were slower than it: probably other programs were at work on this machine."
            " Measure again when it is idle."
        )
    if residency == "disk" and disk:
        advice.append(
            "The store does not fit in free memory: every epoch reads from the disk,"
            f" in {disk.name.split()[-1]} order at {disk.of_limit:.0%} of the disk's speed."
        )
    elif cached < residencies.WARM:
        speed = f", here {size_text(int(disk.gigabytes_per_second * 1e9))}/s" if disk else ""
        advice.append(
            f"The page cache holds {cached:.0%} of the store: the first epoch reads the rest at the disk's speed{speed}."
        )
    if WORKERS in ways and ways[NO_WORKERS].images_per_second > _CLEARLY * ways[WORKERS].images_per_second:
        times = ways[NO_WORKERS].images_per_second / ways[WORKERS].images_per_second
        advice.append(f"Workers slow this store down: a DataLoader without is {times:.1f} times as fast as with two.")
    return advice
