"""How near does MemmapLoader come to the speed of the disk, when nothing of the store is in memory?

    python -m scripts.benchmarks.bench_disk --rows 20000 --rounds 5

Ways, in turns, each with the file's pages dropped first (posix_fadvise) and seen to be gone:

    cat            the whole file read in order in pieces of 8 MiB through the page cache, one thread: what cat does
    direct         the same past the page cache (O_DIRECT) into warm huge pages, with the loader's number of threads
    block, full, sequential
                   an epoch of MemmapLoader(residency="disk", shuffle=...), iter() and thread start included
    page faults    an epoch with shuffle="full" from the mapped file alone, as a memory-mapped reader without read-ahead does

CPU seconds are this process's, all threads. The fastest of cat and direct in a round is the limit of that round. Checked:
every epoch brings each row once, and a batch of each equals the raw file. --rows is what bench_read.py makes and keeps.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader, system
from reader.format.manifest import PIXELS
from reader.memory import residency
from reader.memory.row_file import READ_BYTES, READERS, RowFile, RowMemory
from scripts.benchmarks._bench import BenchError, machine, publish, ratio_cells, ratios, spread, table
from scripts.benchmarks.arguments import READ_WORK, bench_parser
from scripts.benchmarks.bench_read import cached_store
from scripts.benchmarks.timing import in_turns, seconds

BATCH = 256
LOADERS: dict[str, tuple[str, str | bool]] = {
    "block": ("disk", "block"),
    "full": ("disk", "full"),
    "sequential": ("disk", False),
    "page faults": ("cache", "full"),
}


def main() -> int:
    options = bench_parser(__doc__, rows=20_000, rounds=5, json=None, store=None, work=READ_WORK).parse_args()
    try:
        data = MemmapDataset(options.store or cached_store(options.work, options.rows, 224))
        report = measure(data, options.rounds)
    except (BenchError, ValueError) as e:
        print(f"bench_disk: {e}", file=sys.stderr)
        return 1
    print(text(report))
    publish(report, options.json)
    return 0


def measure(data: MemmapDataset, rounds: int) -> dict[str, Any]:
    """Time each way in turns."""
    path, size = data.path / PIXELS, data.store.pixels.nbytes
    ring = [RowMemory(READ_BYTES // data.manifest.row_bytes, data.manifest.row_bytes) for _ in range(READERS)]
    for memory in ring:
        memory.rows.zero_()
    ways: dict[str, Callable[[], Any]] = {"cat": lambda: cat(path), "direct": lambda: direct(data, ring)}
    ways |= {name: lambda name=name: epoch(data, *LOADERS[name]) for name in LOADERS}

    def turn(way: Callable[[], Any]) -> tuple[float, float]:
        drop(path)
        begun_cpu = time.process_time()
        return size / 1e9 / seconds(way), time.process_time() - begun_cpu

    found = in_turns({name: partial(turn, way) for name, way in ways.items()}, rounds)
    rates = {name: [rate for rate, _ in taken] for name, taken in found.items()}
    cpu = {name: [spent for _, spent in taken] for name, taken in found.items()}
    limit = [max(pair) for pair in zip(rates["cat"], rates["direct"], strict=True)]
    return {
        "benchmark": "bench_disk",
        "machine": machine(data.path),
        "rows": len(data),
        "gigabytes": round(size / 1e9, 3),
        "rounds": rounds,
        "gigabytes_per_second": {name: spread(values, 3) for name, values in rates.items()},
        "cpu_seconds": {name: spread(values, 3) for name, values in cpu.items()},
        "ratio_to_limit": {name: ratios(rates[name], limit) for name in ways},
        "ratio_to_cat": {name: ratios(rates[name], rates["cat"]) for name in ways},
    }


def drop(path: Path) -> None:
    """Drop the file's pages from the page cache.

    Raises:
        BenchError: they stay; another process may have mapped them.
    """
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if system.cached_share(path) > 0.05:
        raise BenchError(f"{path} stays in the page cache. Is another program reading it?")


def cat(path: Path) -> None:
    into, offset = bytearray(READ_BYTES), 0
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(into):
            offset += count
    if offset != path.stat().st_size:
        raise BenchError(f"{path}: {offset} bytes came.")


def direct(data: MemmapDataset, ring: list[RowMemory]) -> None:
    file = RowFile(data.path / PIXELS, data.manifest.row_bytes, past_cache=True)
    rows = len(ring[0].rows)
    starts, turn = iter(range(0, len(data), rows)), threading.Lock()

    def work(memory: RowMemory) -> tuple[RowMemory, int]:
        start = -1
        while True:
            with turn:
                following = next(starts, None)
            if following is None:
                return memory, start
            start = following
            file.read(memory.bytes, [(start, min(rows, len(data) - start), 0)])

    with contextlib.closing(file), ThreadPoolExecutor(len(ring)) as readers:
        for memory, start in readers.map(work, ring):
            if start >= 0:
                check(data, np.array([start]), memory.rows[:1])


def epoch(data: MemmapDataset, where: str, shuffle: str | bool) -> None:
    """Read an epoch and check it; "cache" here never reads ahead. Pages that stay mapped could not be dropped."""
    data = MemmapDataset(data.path)
    never = contextlib.ExitStack()
    if where == "cache":
        was = residency.is_cold
        never.callback(setattr, residency, "is_cold", was)
        residency.is_cold = lambda *_: False
    seen = np.zeros(len(data), dtype=np.int64)
    with never, MemmapLoader(data, BATCH, shuffle=shuffle, residency=where, as_tuple=False) as loader:
        for batch in loader:
            seen[batch.rows.numpy()] += 1
        check(data, batch.rows.numpy()[:1], batch.pixels[:1])
    if not (seen == 1).all():
        raise BenchError(f"an epoch of {where}, {shuffle} does not bring each row once.")


def check(data: MemmapDataset, rows: np.ndarray, pixels: Any) -> None:
    with open(data.path / PIXELS, "rb") as file:
        file.seek(int(rows[0]) * data.manifest.row_bytes)
        if file.read(data.manifest.row_bytes) != pixels.numpy().tobytes():
            raise BenchError(f"row {rows[0]} is not what the file holds.")


def text(report: dict[str, Any]) -> str:
    lines = [["", "GB/s", "min..max", "CPU s", "of the limit", "p10..p90", "of cat"]]
    for name, rate in report["gigabytes_per_second"].items():
        lines.append(
            [
                name,
                f"{rate['median']:.2f}",
                f"{rate['min']:.2f}..{rate['max']:.2f}",
                f"{report['cpu_seconds'][name]['median']:.2f}",
                *ratio_cells(report["ratio_to_limit"][name]),
                ratio_cells(report["ratio_to_cat"][name])[0],
            ]
        )
    head = f"{report['rows']} rows, {report['gigabytes']} GB, nothing cached, {report['rounds']} rounds: medians"
    return f"{head}\n{table(lines)}"


if __name__ == "__main__":
    sys.exit(main())
