"""What `pack bench` measures: how near reading a store comes to the speed of this machine's memory, disk or network.

A limit, MemmapLoader and torch's DataLoader take turns of a few batches in one process, and ratios are taken within a round,
so that what disturbs the machine disturbs both. Of a large store the first rows are measured. Also records who does what when
in a run of a MemmapLoader. Nothing else in `reader` imports this. It prints nothing and never changes a store.

A loader that prefetches can be timed wrong in two ways: begin with a full queue, and its batches cost nothing; or leave one
being refilled, and it slows down what is timed next. So the clock of MemmapLoader starts with its queue full and its thread
idle, and stops when it is so again: as many batches were gathered as were taken. The workers of torch's DataLoader cannot be
seen, so they get the batches of one turn: the clock starts when all that they prefetch, and one more, were taken, and stops
with the last.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import gc
import itertools
import json
import logging
import mmap
import os
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader, Dataset

from reader import system
from reader.buffers import BufferPool
from reader.compiled import span_copier
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import BenchError, NotMeasured
from reader.format.filesystem import size_text
from reader.format.manifest import PIXELS
from reader.format.tensors import NEEDS_RAW
from reader.format.urls import is_url
from reader.loading.iteration import Iteration
from reader.loading.loader import MemmapLoader
from reader.loading.options import checked_device
from reader.memory import residency as residencies
from reader.memory.raw_file import READERS, read_all
from reader.memory.residency import Residency
from reader.memory.threads import on_threads
from reader.remote.leftovers import Scratch
from reader.remote.opening import Source
from reader.rows import Rows
from reader.system import MEMORY_FILE_SYSTEMS
from reader.transforms.color import Normalize
from reader.transforms.composition import Compose
from reader.tuning import tuning

ORDERS: dict[str, str | bool] = {"full": "full", "block": "block", "sequential": False}

COPIES, PINNED_COPIES = "copying consecutive slices", "copying pinned batches"
NO_WORKERS, WORKERS = "DataLoader, 0 workers", "DataLoader, 2 workers"
IN_ORDER, BY_THREADS = "reading in order, as cat does", f"reading in order, {READERS} threads"

BATCH_SIZE = 256
# An epoch of fewer batches shows no pipeline: its start takes prefetch + 2.
_LEAST_BATCHES = 8
# Rows are so large at times that 256 of them fill a machine's memory: each way has a few batches at a time.
_BATCH_BYTES = 256 << 20

# A turn takes some 10 ms: long beside a thread's wake-up (30 us), short beside what else happens on a machine.
_TURN_BYTES = 256 << 20
_MOST_BATCHES = 1024
# Bytes of a turn on a device. Nothing runs beside the gather of its first batch and the copy of its last: on a bus that is as
# fast as the gather, they take a ninth of the time of 8 batches.
DEVICE_TURN_BYTES = 2 << 30
# A DataLoader is so many times slower: shorter turns, so that what is compared stays close in time, and in every third round
# alone: most of the time is the others'.
SLOWER, _RARELY = 8, 3
# A MemmapLoader with prefetch=2 uses so many buffers.
_BUFFERS = 4
# A thread copies so much at a time: one whose core another program has leaves the rest to the others.
_COPY_BYTES = 4 << 20
_WORKERS_PREFETCH = 2
# The first rows of a store are in memory, though the rest may not be: a loader of them never reads ahead.
_IN_MEMORY = Residency("cache", "its rows were read before", "cache", is_warm=True)
# How late the end of a turn is seen, at most.
_POLL_SECONDS = 5e-5

# More rows are read no differently, and mapping or fetching them takes longer than measuring them.
_MOST_BYTES, _MOST_FETCHED_BYTES = 4 << 30, 1 << 30
_PROBED_BYTES = 32 << 20
# Sequential to any disk.
_READ_BYTES = 8 << 20
# Shares of the time: to find how much a turn reads from the disk, for all turns of the disk, to bring rows into memory; and for
# one turn of one way over a network.
_PROBE_SHARE, _DISK_SHARE, _WARM_SHARE, _FETCH_SHARE = 0.08, 0.35, 0.1, 1 / 9
# From a disk or a network, a turn is an epoch of many batches: fewer of them.
_LEAST_ROUNDS, _FEWEST_ROUNDS = 6, 2
_FIRST_BATCHES = 5
# Batches of a trace: it shows the start, which takes prefetch + 2 of them, and what follows.
_TRACED_BATCHES = 16
# The report calls a way faster where its rate is so many times that of the other.
_CLEARLY = 1.2
# A rate that falls below this share of its median in a tenth of the rounds shared the machine with other programs.
_STEADY = 0.7
# If more than this share of a file is still cached after its pages were dropped, the system keeps them.
_DROPPED = 0.05
# The page cache drops its large folios as a whole or not at all.
_LARGEST_FOLIO_BYTES = 2 << 20

# Takes a turn, beginning with what must not be timed; returns images/s, of rows with sizes of their own those of mean size.
Turn = Callable[[], float]
# A Chrome trace, as torch.profiler writes it: "traceEvents" and others; times in microseconds.
Trace = dict[str, Any]
# Takes the section that is measured and the share of its time that has passed, 0..1.
OnShare = Callable[[str, float], object]


@dataclass(frozen=True)
class Way:
    """One way to read: the median rate of its turns, and median, p10 and p90 of its share of the limit in the same round."""

    name: str
    images_per_second: float
    gigabytes_per_second: float
    of_limit: float
    of_limit_p10: float
    of_limit_p90: float


@dataclass(frozen=True)
class Section:
    """Ways that took turns over a store's first rows; the fastest of `limits` in a round is the limit of that round.

    title: a sentence on the share of the limit that the first loader reaches, or on the machine if it is too busy to say.
    limit_p10, limit_p90: how the limit varies between rounds, as shares of its median.
    """

    name: str
    title: str
    rows: int
    rounds: int
    limits: tuple[str, ...]
    limit_p10: float
    limit_p90: float
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class BenchReport:
    """What was measured, and what follows.

    row_shape: height, width and channels; if rows have their own sizes, the largest, and images/s count images of mean size.
    cached_share: share of the pixels that the page cache holds before the measurement, 0..1.
    residency, residency_reason: the residency that "auto" chooses before the measurement, and why.
    first_batch_ms: median time from iter() of a new MemmapLoader to its first batch; rows are in memory, a URL's cache is empty.
    not_measured: what was left out -> why.
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
def _opened(path: str | os.PathLike[str], cache: str | os.PathLike[str] | None) -> Iterator[MemmapDataset]:
    """Open a store; one at a URL through an empty cache in a folder of its own, which is removed."""
    if not is_url(path):
        yield MemmapDataset(path)
        return
    if cache is not None:
        os.makedirs(cache, exist_ok=True)
    with Scratch("bench", cache) as folder:
        data = MemmapDataset(path, cache=folder / "cache")
        assert data.remote is not None
        try:
            yield data
        finally:
            data.remote.close()


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Let loaders log errors only: their warnings are about options that the user of a benchmark did not choose."""
    logger = logging.getLogger("reader")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@_unlogged()
def measure(
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    device: str = "cpu",
    order: str | None = None,
    seconds: float = 5.0,
    cache: str | os.PathLike[str] | None = None,
    progress: OnShare = lambda section, share: None,
) -> BenchReport:
    """Measure how fast a store is read, beside the limits of this machine, or the first epoch of a store at a URL.

    Args:
        batch_size: rows a batch; None: 256, or fewer if the store is small or its rows are large.
        device: "cuda" also measures copies to that device.
        order: the order of MemmapLoader, "full", "block" or "sequential"; None: all three, and "block" from the disk or a URL.
        seconds: about how long to measure.
        cache: a folder on a local disk for the caches of a store at a URL, which are removed; None: TMPDIR.
        progress: is called with the section that is measured and the share of its time that has passed.

    Raises:
        StoreError: path is not a store.
        BenchError: it has fewer rows than a batch, or there is no such device.

    Example:
        >>> measure(store_path, batch_size=8, seconds=0.1).sections[0].limits
        ('copying consecutive slices',)
    """
    with _opened(path, cache) as data:
        if data.manifest.compression:
            raise BenchError(
                f"{path}: {NEEDS_RAW}. This measures raw rows; scripts/benchmarks/packing/bench_compress.py measures these."
            )
        size, where = _checked(data, batch_size, device)
        report = BenchReport(
            store=str(path),
            rows=len(data),
            row_shape=(data.manifest.height, data.manifest.width, data.manifest.channels),
            pixel_bytes=data.opened_store.file_bytes,
            has_own_sizes=data.manifest.has_own_sizes,
            batch_size=size,
            device=str(where),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            file_system=system.file_system(data.path / PIXELS),
            cached_share=0.0,
            residency="cache",
            residency_reason="blocks are fetched into a cache on a local disk, and read there",
            first_batch_ms=0.0,
            sections=(),
            not_measured={},
            advice=(),
        )
        first = FirstRows(data, size, size)
        if data.remote is not None:
            return _measure_url(report, first, cache, order or "block", seconds, progress)
        return _measure_folder(report, first, order, where, seconds, progress)


def _checked(data: MemmapDataset, batch_size: int | None, device: str) -> tuple[int, torch.device]:
    """Return the batch size and the device to measure with.

    Raises:
        BenchError: the store has fewer rows than a batch, or there is no such device.
    """
    size = _usual_size(data) if batch_size is None else batch_size
    if not 1 <= size <= len(data):
        raise BenchError(f"the batch size is {size}, expected 1 to {len(data)}, the rows of {data.path}.")
    try:
        return size, checked_device("device", device)
    except ValueError as e:
        raise BenchError(str(e)) from None


def _usual_size(data: MemmapDataset) -> int:
    """Return a power of two, as users choose it."""
    most = min(BATCH_SIZE, len(data) // _LEAST_BATCHES, _BATCH_BYTES // data.manifest.row_bytes)
    return 1 << max(1, most).bit_length() - 1


# -- what is measured


def _measure_folder(
    report: BenchReport, first: FirstRows, order: str | None, device: torch.device, seconds: float, progress: OnShare
) -> BenchReport:
    """Measure the disk, memory and the device; first: the rows of one batch."""
    pixels, orders = first.data.path / PIXELS, (order,) if order else tuple(ORDERS)
    cached = system.cached_share(pixels)
    auto = residencies.choose("auto", residencies.Reads(pixels, report.pixel_bytes))
    sections, not_measured = list[Section](), dict[str, str]()
    # workers start here, before threads that a fork would miss
    torch_loaders = {NO_WORKERS: TorchLoader(first.data, 0)}
    if lack := lack_of_shared_memory(first.batch_bytes, 2):
        not_measured[WORKERS] = lack
    else:
        torch_loaders[WORKERS] = TorchLoader(first.data, 2)
    # before memory: pages that are mapped cannot be dropped
    progress("disk", 0.0)
    left = 1 - _WARM_SHARE
    try:
        # the probe drops pages from the page cache; what follows brings them back
        first, limits, loader = disk_ways(first, order or "block", seconds=seconds * _PROBE_SHARE)
        sections.append(compare("disk", first, limits, loader, seconds * _DISK_SHARE, progress, is_cold=True))
        left -= _PROBE_SHARE + _DISK_SHARE
    except NotMeasured as e:
        not_measured["disk"] = str(e)
    progress("memory", 0.0)
    part = _warmed(first, cached, seconds * _WARM_SHARE)
    left *= seconds / (1 + (device.type == "cuda"))
    if device.type == "cuda":
        sent = replace(part, turn_bytes=DEVICE_TURN_BYTES)
        copies: dict[str, Turn] = {PINNED_COPIES: pinned_copies(sent, device).__next__}
        sections.insert(0, compare("device", sent, copies, _loaders(sent, orders, device), left, progress))
    copies = {COPIES: slice_copies(part).__next__}
    slow = {name: functools.partial(torch_loader.turn, part) for name, torch_loader in torch_loaders.items()}
    ways = _loaders(part, orders, torch.device("cpu")) | slow
    sections.insert(0, compare("memory", part, copies, ways, left, progress, rarely=slow))
    # smaller stores are in the page cache after a few page faults
    share = cached if report.pixel_bytes > tuning().small_store_bytes else 1.0
    return replace(
        report,
        cached_share=cached,
        residency=auto.name,
        residency_reason=auto.reason,
        first_batch_ms=_first_batch_ms(part, orders[0], device),
        sections=tuple(sections),
        not_measured=not_measured,
        advice=_advice(sections, share, auto.name),
    )


def _measure_url(
    report: BenchReport,
    first: FirstRows,
    cache: str | os.PathLike[str] | None,
    order: str,
    seconds: float,
    progress: OnShare,
) -> BenchReport:
    """Measure the first epoch of the first rows, beside the library that fetches the same ranges and does nothing with them."""
    url, first_batch_ms = report.store, list[float]()

    def fetch(end: int) -> float:
        """Fetch the blocks that hold the first bytes of the pixels; returns the seconds."""
        assert first.data.remote is not None
        folder, source = first.data.remote.folder, Source(url)
        source.look()
        stop, step = folder.starts[folder.blocks_of(0, end)[-1] + 1], tuning().request_bytes
        spans = [(at, min(stop, at + step)) for at in range(0, stop, step)]
        started = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(tuning().requests_at_once) as pool:
            fetched = pool.map(lambda span: len(source.read_pixels(folder.objects, *span)), spans)
            assert sum(fetched) == stop
        return time.perf_counter() - started

    def epoch() -> float:
        with _opened(url, cache) as data, _cold_loader(replace(part, data=data), order, "cache") as loader:
            started = time.perf_counter()
            batches = iter(loader)
            next(batches)
            first_batch_ms.append((time.perf_counter() - started) * 1e3)
            for _ in batches:
                pass
            return part.mean_rows / (time.perf_counter() - started)

    progress("network", 0.0)
    probed = min(_PROBED_BYTES, report.pixel_bytes)
    # this fetch opens connections, too
    part = first.within(int(min(_MOST_FETCHED_BYTES, probed / fetch(probed) * seconds * _FETCH_SHARE)))
    limit: dict[str, Turn] = {
        f"{Source(url).objects.library} alone, the same ranges": lambda: part.mean_rows / fetch(part.end)
    }
    section = compare("network", part, limit, {f"MemmapLoader, {order}": epoch}, seconds, progress, is_cold=True)
    loaded = section.ways[-1].gigabytes_per_second * 1e9
    lasts = _duration(report.pixel_bytes / max(loaded, 1))
    return replace(
        report,
        first_batch_ms=round(float(np.median(first_batch_ms)), 2),
        sections=(section,),
        not_measured={"later epochs": "they read a complete cache as a local store: pack bench CACHE/<digest>.store"},
        advice=(
            f"The first epoch fetches {size_text(report.pixel_bytes)}: about {lasts} at {size_text(int(loaded))}/s.",
        ),
    )


def _duration(seconds: float) -> str:
    """Return 90 as "2 minutes"."""
    for unit, length in (("hours", 3600), ("minutes", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _loaders(part: FirstRows, orders: Iterable[str], device: torch.device) -> dict[str, Turn]:
    return {f"MemmapLoader, {order}": loader_turns(part, order, device).__next__ for order in orders}


def compare(
    name: str,
    part: FirstRows,
    limits: Mapping[str, Turn],
    others: Mapping[str, Turn],
    seconds: float,
    progress: OnShare,
    *,
    rarely: Collection[str] = (),
    is_cold: bool = False,
) -> Section:
    """Time ways in turns, six rounds and on until time is up; slow rounds are fewer, though never fewer than two.

    Args:
        rarely: ways that take part in every third round.
        is_cold: turns are epochs from a cold start: two rounds are enough, and none before them is untimed.
    """
    ways = {**limits, **others}
    rates: dict[str, list[float]] = {way: [] for way in ways}
    least = _FEWEST_ROUNDS if is_cold else _LEAST_ROUNDS
    progress(name, 0.0)
    for turn in () if is_cold else ways.values():
        turn()
    names, rounds, passed, started = deque(ways), 0, 0.0, time.perf_counter()
    gc.disable()  # a collection in the middle of a turn would be charged to whose turn it is
    try:
        while (
            rounds < _FEWEST_ROUNDS or passed < seconds or (rounds < least and passed < tuning().bench_rounds_seconds)
        ):
            for way in names:
                rates[way].append(np.nan if way in rarely and rounds % _RARELY else ways[way]())
            names.rotate(-1)
            rounds, passed = rounds + 1, time.perf_counter() - started
            progress(name, min(1.0, rounds / least, passed / max(seconds, 1e-3)))
    finally:
        gc.enable()
    return section_of(name, part, tuple(limits), rates)


# -- what follows


def section_of(name: str, part: FirstRows, limits: tuple[str, ...], rates: Mapping[str, list[float]]) -> Section:
    """Return what follows from images/s of each way in each round, the limits first, nan without a turn."""
    table = np.array(list(rates.values()))
    limit = table[: len(limits)].max(axis=0)
    p10, median, p90 = np.nanpercentile(table / limit, [10, 50, 90], axis=1).round(4).tolist()
    ways = tuple(
        Way(way, round(rate, 1), round(rate * part.row_bytes / 1e9, 6), *shares)
        for way, rate, *shares in zip(rates, np.nanmedian(table, axis=1).tolist(), median, p10, p90, strict=True)
    )
    lowest, highest = (np.percentile(limit, [10, 90]) / np.median(limit)).round(4).tolist()
    title = _title(name, [way for way in ways if way.name.startswith("MemmapLoader")], lowest, highest)
    return Section(name, title, part.count, len(limit), limits, lowest, highest, ways)


def _title(section: str, loaders: list[Way], lowest: float, highest: float) -> str:
    """Say how near the first loader comes to the limit, or why that cannot be said; lowest, highest: of the limit's rounds."""
    way, fastest = loaders[0], max(loaders, key=lambda way: way.of_limit)
    share = f"{way.of_limit:.2f} of the limit ({way.of_limit_p10:.2f} to {way.of_limit_p90:.2f})"
    if lowest < _STEADY:
        busy = f"the limit varied from {lowest:.2f} to {highest:.2f} of its median"
    elif way.of_limit_p10 < _STEADY * way.of_limit:
        busy = f"{way.name}, varied around {share}"
    elif fastest.of_limit > _CLEARLY:
        busy = f"{fastest.name}, was {fastest.of_limit:.1f} times as fast as what limits it"
    else:
        return f"{way.name}, reads at {share}."
    what = f"The machine or the {section}" if section in ("disk", "network") else "The machine"
    return f"{what} is busy, so shares of the limit mean little: {busy}. Measure again when it is idle."


def _advice(sections: Iterable[Section], cached: float, residency: str) -> tuple[str, ...]:
    """Say what to do, only where it was measured."""
    ways = {section.name: {way.name: way for way in section.ways} for section in sections}
    memory, disk = ways.get("memory", {}), list(ways.get("disk", {}).values())
    speed = f", here {size_text(int(disk[-1].gigabytes_per_second * 1e9))}/s" if disk else ""
    advice = []
    if residency == "disk":
        advice.append(f"The store does not fit in free memory: every epoch reads it at the disk's speed{speed}.")
    elif cached < residencies.WARM:
        advice.append(
            f"The page cache holds {cached:.0%} of the store: the first epoch reads the rest at the disk's speed{speed}."
        )
    if WORKERS in memory:
        times = memory[NO_WORKERS].images_per_second / memory[WORKERS].images_per_second
        if times > _CLEARLY:
            advice.append(
                f"Workers slow this store down: a DataLoader without is {times:.1f} times as fast as with two."
            )
    return tuple(advice)


# -- rows in memory, and the ways to read them


@dataclass(frozen=True)
class FirstRows:
    """The first `count` rows of a store, to be read in batches of `size`."""

    data: MemmapDataset
    size: int
    count: int
    turn_bytes: int = _TURN_BYTES
    residency: str | Residency = _IN_MEMORY

    @functools.cached_property
    def _ends(self) -> Rows:
        """Where the first rows end in the file of pixels: int64[N], the first row, the first two, and so on."""
        return np.maximum.accumulate(self.data.opened_store.spans(np.arange(len(self.data))).ends)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's pixels, of rows with sizes of their own on average."""
        return self.data.manifest.row_bytes

    @property
    def batch_bytes(self) -> int:
        """Bytes of the pixels of a batch, of rows with sizes of their own on average."""
        return self.size * self.row_bytes

    @property
    def batches_a_turn(self) -> int:
        """Batches that the fast ways read in a turn."""
        return min(max(_LEAST_BATCHES, self.turn_bytes // self.batch_bytes), _MOST_BATCHES)

    @property
    def end(self) -> int:
        """The byte of the file where the rows end."""
        return int(self._ends[self.count - 1])

    @property
    def mean_rows(self) -> float:
        """How many rows of mean size have as many bytes as the file up to `end`."""
        return self.end / self.row_bytes

    def within(self, size_bytes: int) -> FirstRows:
        """Return those of the store's first rows that end within so many bytes of the file, and no fewer than there are here."""
        ended = int(np.searchsorted(self._ends, size_bytes, "right"))
        return replace(self, count=max(self.count, ended))

    def images(self, rows: Rows) -> float:
        """Return how many images of mean size have as many bytes as these rows, int64[...]."""
        return float(self.data.opened_store.spans(rows.reshape(-1)).sizes.sum() / self.row_bytes)

    def loader(self, order: str, device: torch.device, least_batches: int = 1) -> MemmapLoader:
        """Make a loader of full batches, at least so many an epoch; few rows are repeated for that."""
        full = self.count - self.count % self.size
        return MemmapLoader(
            self.data.subset(np.resize(np.arange(full), max(full, least_batches * self.size))),
            self.size,
            shuffle=ORDERS[order],
            device=device,
            residency=self.residency,
            as_tuple=False,
        )


def _warmed(first: FirstRows, cached: float, seconds: float) -> FirstRows:
    """Bring the first rows into the page cache and map their pages; returns which these are."""
    pixels = first.data.opened_store.pixels
    assert pixels is not None
    most = min(pixels.nbytes, _MOST_BYTES)
    if cached < residencies.WARM:
        most = min(most, int(system.available_bytes() * residencies.COPY_SHARE))
    part = first.within(read_through(first.data.path / PIXELS, first.end, most=most, seconds=seconds))
    # the first fault of each page is not part of reading it in every epoch
    pixels[: part.end : mmap.PAGESIZE].max()
    return part


def _first_batch_ms(part: FirstRows, order: str, device: torch.device) -> float:
    milliseconds = []
    for epoch in range(_FIRST_BATCHES):
        with part.loader(order, device) as loader:
            loader.set_epoch(epoch)
            started = time.perf_counter()
            next(iter(loader))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            milliseconds.append((time.perf_counter() - started) * 1e3)
    return round(float(np.median(milliseconds)), 2)


def slice_copies(part: FirstRows) -> Iterator[float]:
    """Copy the bytes of consecutive rows into as many buffers as a loader has, on as many threads as torch uses.

    A thread takes the next slice when it is done with one. A copy by torch's own threads ends with the slowest of them: beside
    other programs it had a tenth of this rate. What a loader writes past the caches, this does too: memcpy takes 1.5 times the
    CPU time (2 threads, 2026-11-26).
    """
    pairs = slices(part)
    size_bytes = next(pairs)[0].nbytes
    first, whole = np.zeros(1, np.int64), np.array([size_bytes])
    copy_spans = span_copier() if part.batch_bytes >= tuning().streamed_batch_bytes else None

    def copy(out: np.ndarray, source: np.ndarray) -> None:
        if copy_spans is None:
            np.copyto(out, source)
        else:
            copy_spans(source, first, whole, first, out, True)

    count = -(-part.batches_a_turn * part.batch_bytes // size_bytes)
    while True:
        started = time.perf_counter()
        on_threads("copy", torch.get_num_threads(), copy, list(itertools.islice(pairs, count))).wait()
        yield count * size_bytes / part.row_bytes / (time.perf_counter() - started)


def slices(part: FirstRows) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pair slices of as much memory as a loader's buffers with slices of the rows, uint8[size_bytes] each, again and again."""
    size_bytes = min(_COPY_BYTES, part.end)
    # no two threads write to one slice at a time: that would be slower
    least_bytes = 2 * torch.get_num_threads() * size_bytes
    buffers = BufferPool(max(_BUFFERS * part.batch_bytes, least_bytes), keep=1).lease().zero_()
    assert part.data.opened_store.pixels is not None
    pixels = part.data.opened_store.pixels[: part.end]
    ring, rows = (memory[: len(memory) // size_bytes * size_bytes] for memory in (buffers.numpy(), pixels))
    return zip(itertools.cycle(ring.reshape(-1, size_bytes)), itertools.cycle(rows.reshape(-1, size_bytes)))


def pinned_copies(part: FirstRows, device: torch.device) -> Iterator[float]:
    """Copy a ring of pinned buffers into a ring on the device, on one side stream."""
    pool, stream = BufferPool(part.batch_bytes, keep=_BUFFERS, pinned=device), torch.cuda.Stream(device)
    ring = [pool.lease().zero_() for _ in range(_BUFFERS)]
    pairs = itertools.cycle([(torch.empty_like(buffer, device=device), buffer) for buffer in ring])
    torch.cuda.synchronize(device)  # another stream fills them
    while True:
        started = time.perf_counter()
        with torch.cuda.stream(stream):
            for there, here in itertools.islice(pairs, part.batches_a_turn):
                there.copy_(here, non_blocking=True)
        stream.synchronize()
        yield part.batches_a_turn * part.size / (time.perf_counter() - started)


def loader_turns(part: FirstRows, order: str, device: torch.device) -> Generator[float, None, None]:
    """Read by MemmapLoader, from a full queue to a full queue; its thread ends when this is closed."""
    # a turn takes complete groups of small batches, which are far fewer than a turn's
    needed = 2 * part.batches_a_turn
    with part.loader(order, device, needed) as loader:
        while True:
            batches, left = iter(loader), len(loader)
            while left >= needed:
                left -= len(take(batches, 1, device))
                started = time.perf_counter()
                rows = take(batches, part.batches_a_turn, device)
                seconds = time.perf_counter() - started
                left -= len(rows)
                yield part.images(torch.cat(rows).cpu().numpy()) / seconds


def take(batches: Iteration, least: int, device: torch.device) -> list[torch.Tensor]:
    """Take `least` batches and the rest of their group, fewer if time is up; wait until the queue is full; return the rows."""
    rows, end = list[torch.Tensor](), time.perf_counter() + tuning().bench_turn_seconds
    while (len(rows) < least and time.perf_counter() < end) or batches.ready:
        rows.append(next(batches).rows)
    while not batches.is_filled:
        time.sleep(_POLL_SECONDS)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return rows


class TorchLoader:
    """torch's DataLoader over the dataset, in batches of random rows; an iteration is one turn: none of its work outlasts it.

    Its workers start at once, before threads that a fork would miss.
    """

    def __init__(self, data: Dataset[Any], workers: int) -> None:
        self._workers, self._random = workers, np.random.default_rng(0)
        # batches of rows of the next iteration
        self._batches: list[list[int]] = []
        self._loader = DataLoader(
            data,
            batch_sampler=self._batches,
            num_workers=workers,
            persistent_workers=workers > 0,
            prefetch_factor=_WORKERS_PREFETCH if workers else None,
        )
        # an iteration without batches starts the workers, and they stay
        self._iterator = iter(self._loader)

    def turn(self, part: FirstRows) -> float:
        """Take a turn over these rows; returns images/s."""
        ahead = self._workers * _WORKERS_PREFETCH + 1
        count = max(_LEAST_BATCHES if self._workers else 2, part.batches_a_turn // SLOWER)
        # the last turn's end: workers see that nothing is left
        next(self._iterator, None)
        rows = self._random.integers(part.count, size=(ahead + count, part.size))
        self._batches[:] = rows.tolist()
        self._iterator = iter(self._loader)
        for _ in range(ahead):
            next(self._iterator)
        started = time.perf_counter()
        for _ in range(count):
            next(self._iterator)
        return part.images(rows[ahead:]) / (time.perf_counter() - started)


def lack_of_shared_memory(batch_bytes: int, workers: int) -> str:
    """Say why the workers' batches do not fit into shared memory, where they would die of SIGBUS; "" where they do."""
    needed = batch_bytes * (workers * _WORKERS_PREFETCH + 2)
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return ""
    return "" if free >= needed else f"/dev/shm has {size_text(free)} free, their batches need {size_text(needed)}."


# -- rows on the disk


def disk_ways(first: FirstRows, order: str, *, seconds: float) -> tuple[FirstRows, dict[str, Turn], dict[str, Turn]]:
    """Return the rows that are read from the disk in about so many seconds, the limits, and the loader.

    first: the rows of one batch. No page of the store may be mapped yet: it could not be dropped.

    Raises:
        NotMeasured: the disk cannot be distinguished from memory here.
    """
    path = first.data.path / PIXELS
    least = max(tuning().small_store_bytes, first.end)
    most = min(first.data.opened_store.file_bytes, int(system.available_bytes() * residencies.COPY_SHARE))
    if system.file_system(path) in MEMORY_FILE_SYSTEMS:
        raise NotMeasured("the store is on a file system in memory.")
    if most <= least:
        raise NotMeasured(f"{size_text(most)} of rows are too few to distinguish the disk from the page cache.")

    def cold(end: int, way: Callable[[], object]) -> float:
        """Return the seconds of reading the first bytes, none of them cached."""
        drop(path, end)
        started = time.perf_counter()
        way()
        return time.perf_counter() - started

    def epoch() -> None:
        with _cold_loader(part, order, "disk") as loader:
            for batch in loader:
                del batch

    least_seconds = cold(least, lambda: read_through(path, least))
    part = first.within(min(most, max(least, int(least / least_seconds * seconds))))

    def turn(way: Callable[[], object]) -> Turn:
        return lambda: part.mean_rows / cold(part.end, way)

    limits = {
        IN_ORDER: turn(lambda: read_through(path, part.end)),
        BY_THREADS: turn(lambda: read_all(path, part.end)),
    }
    return part, limits, {f"MemmapLoader, {order}": turn(epoch)}


def _cold_loader(part: FirstRows, order: str, residency: str) -> MemmapLoader:
    return MemmapLoader(part.data.subset(range(part.count)), part.size, shuffle=ORDERS[order], residency=residency)


def read_through(path: Path, size_bytes: int, *, most: int = 0, seconds: float = 0.0) -> int:
    """Read a file's first bytes in order through the page cache, and on up to `most` while there is time; returns how many."""
    into, done, end = memoryview(bytearray(_READ_BYTES)), 0, time.perf_counter() + seconds
    with open(path, "rb", buffering=0) as file:
        while done < size_bytes or (done < most and time.perf_counter() < end):
            count = file.readinto(into[: max(size_bytes, most) - done])
            if not count:
                break
            done += count
    return done


def drop(path: Path, size_bytes: int) -> None:
    """Drop the first bytes of a file from the page cache, as any reader of a file may, and see them gone.

    Raises:
        NotMeasured: they cannot be dropped, or stay.
    """
    if not hasattr(os, "posix_fadvise") or not hasattr(os, "RWF_NOWAIT"):
        raise NotMeasured("this system cannot drop a file's pages and show that they are gone.")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, size_bytes + _LARGEST_FOLIO_BYTES, os.POSIX_FADV_DONTNEED)
    if system.cached_share(path, size_bytes) > _DROPPED:
        raise NotMeasured("the store's pages stay in the page cache: probably another program has them mapped.")


# -- who does what when


def record_store(
    path: str | os.PathLike[str],
    *,
    batch_size: int | None = None,
    device: str = "cpu",
    order: str | None = None,
    residency: str = "auto",
    normalize: bool = False,
    step_ms: float = 0.0,
    cache: str | os.PathLike[str] | None = None,
) -> Trace:
    """Record 16 batches of a store read by a new MemmapLoader, see `record`.

    Args:
        order: None: "full", of a URL "block".
        normalize: the loader's transform makes float32 images by the store's mean and std.
        cache: as `measure` has it.

    Raises:
        StoreError: path is not a store.
        BenchError: what was asked for contradicts the store or this machine.
    """
    with _opened(path, cache) as data:
        size, where = _checked(data, batch_size, device)
        try:
            loader = MemmapLoader(
                data,
                size,
                shuffle=ORDERS[order or ("full" if data.remote is None else "block")],
                device=where,
                transform=Compose([Normalize.of(data.manifest).to(where)]) if normalize else None,
                residency=residency,
            )
        except ValueError as e:
            raise BenchError(str(e)) from None
        return record(loader, batches=_TRACED_BATCHES, step_ms=step_ms)


def record(loader: MemmapLoader, *, batches: int, step_ms: float = 0.0) -> Trace:
    """Take so many batches, or an epoch where that is shorter, under torch.profiler, and close the loader.

    The loader's names are pixpack.read, gather, copy, transform, wait, and of a URL network; the loop's is pixpack.step.

    Args:
        step_ms: the loop waits so long with each batch, as for a training step on a device.

    Returns:
        The Chrome trace.

    Example:
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=30)
        >>> sorted(loop_ms(record(loader, batches=3)))
        ['step', 'wait']
    """
    activities = [ProfilerActivity.CPU]
    if loader.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    # without this the profiler sees the thread alone that started it
    all_threads = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with profile(activities=activities, experimental_config=all_threads) as profiler:
        with record_function("clock"):
            clock_seconds = time.monotonic()
        for batch in itertools.islice(loader, batches):
            with record_function("pixpack.step"):
                time.sleep(step_ms / 1e3)
                del batch
        # ended in here, the threads' last spans are complete
        loader.close()
        if loader.device.type == "cuda":
            torch.cuda.synchronize(loader.device)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(written))
        trace: Trace = json.loads(written.read_text(encoding="utf-8"))
    if loader.dataset.remote is not None:
        # events of another process, by the clock that all processes of the machine share
        clock_us = next(
            event["ts"] for event in trace["traceEvents"] if event.get("name") == "clock" and "dur" in event
        )
        fetch = {"ph": "X", "name": "pixpack.network", "cat": "user_annotation", "pid": "fetcher", "tid": "network"}
        trace["traceEvents"] += [
            fetch | {"ts": clock_us + (start - clock_seconds) * 1e6, "dur": (stop - start) * 1e6}
            for start, stop in loader.dataset.remote.requests()
        ]
    return trace


def loop_ms(trace: Trace) -> dict[str, float]:
    """Add up what the thread of pixpack.step did, in the Chrome trace of any program with a MemmapLoader.

    Returns:
        stage -> milliseconds, such as "step", and "wait" for a batch.
    """
    spans = [event for event in trace["traceEvents"] if event.get("cat") == "user_annotation" and "dur" in event]
    threads = {(span["pid"], span["tid"]) for span in spans if span["name"] == "pixpack.step"}
    stages = {"step": 0.0, "wait": 0.0}
    for span in spans:
        _, is_ours, stage = span["name"].partition("pixpack.")
        if is_ours and (span["pid"], span["tid"]) in threads:
            stages[stage] = stages.get(stage, 0.0) + span["dur"] / 1e3
    return stages
