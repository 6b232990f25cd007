"""How near does MemmapLoader come to the speed of the disk, when nothing of the store is in memory?

    python -m scripts.benchmarks.bench_disk --rows 20000 --rounds 5 --curve --plot curve.png

Ways, in turns, each with the file's pages dropped first (posix_fadvise) and seen to be gone:

    cat            the whole file read in order in pieces of 8 MiB through the page cache, one thread: what cat does
    direct         the same past the page cache (O_DIRECT) into warm huge pages, with the loader's number of threads
    block, full, sequential
                   an epoch of MemmapLoader(residency="disk", shuffle=...), iter() and thread start included
    page faults    an epoch with shuffle="full" from the mapped file alone, as a memory-mapped reader without read-ahead does

CPU seconds are this process's, all threads. The fastest of cat and direct in a round is the limit of that round.

--curve also measures what the disk gives for reads in random order, by their size and how many are in flight: the best for
reads of a row's size is the limit of shuffle="full". --plot draws it (matplotlib). Checked:
every epoch brings each row once, and a batch of each equals the raw file. --rows is what bench_read.py makes and keeps.
"""

from __future__ import annotations

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader
from reader.bench.disk import NotMeasured, drop, read_through
from reader.format.manifest import PIXELS
from reader.memory import residency
from reader.memory.row_file import READ_BYTES, READERS, RowMemory, read_rows
from scripts.benchmarks._bench import BenchError, machine, publish, ratio_cells, ratios, spread, table
from scripts.benchmarks._disk_curve import best, measure_curve, plot, table_lines
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
    parser = bench_parser(__doc__, rows=20_000, rounds=5, json=None, store=None, work=READ_WORK)
    parser.add_argument("--curve", action="store_true", help="also measure random reads by size and depth")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each point of the curve, at most")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the curve")
    options = parser.parse_args()
    try:
        data = MemmapDataset(options.store or cached_store(options.work, options.rows, 224))
        report = measure(data, options.rounds)
        if options.curve or options.plot:
            add_curve(report, data, options)
    except (BenchError, NotMeasured, ValueError) as e:
        print(f"bench_disk: {e}", file=sys.stderr)
        return 1
    print(text(report))
    if "curve" in report:
        print(curve_text(report))
    publish(report, options.json)
    return 0


def measure(data: MemmapDataset, rounds: int) -> dict[str, Any]:
    """Time each way in turns."""
    path, size, row_bytes = data.path / PIXELS, data.store.pixels.nbytes, data.manifest.row_bytes
    most = max(1, READ_BYTES // row_bytes)
    ring = RowMemory(2 * READERS * most, row_bytes)
    ring.rows.zero_()
    reads = [
        (row, min(most, len(data) - row), n % (2 * READERS) * most) for n, row in enumerate(range(0, len(data), most))
    ]
    ways: dict[str, Callable[[], Any]] = {
        "cat": lambda: read_through(path, size),
        "direct": lambda: read_rows(path, row_bytes, ring.bytes, reads, past_cache=True),
    }
    ways |= {name: lambda name=name: epoch(data, *LOADERS[name]) for name in LOADERS}

    def turn(way: Callable[[], Any]) -> tuple[float, float]:
        drop(path, size)
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


def add_curve(report: dict[str, Any], data: MemmapDataset, options: Namespace) -> None:
    """Measure random reads, and what share of their best the full shuffle has; draw them where asked."""
    row_bytes = data.manifest.row_bytes
    curves = measure_curve(data.path / PIXELS, row_bytes, min(2, options.rounds), options.seconds)
    limit = best(curves, row_bytes)
    full = report["gigabytes_per_second"]["full"]["median"]
    report["curve"], report["row_bytes"] = curves, row_bytes
    report["random_row_limit"], report["full_to_random_limit"] = limit, round(full / limit, 3)
    if options.plot:
        plot(curves, options.plot, f"{data.path / PIXELS}: rows of {row_bytes:,} bytes, best {limit:.2f} GB/s")


def curve_text(report: dict[str, Any]) -> str:
    """Draw the curve for a person."""
    share, limit = report["full_to_random_limit"], report["random_row_limit"]
    drawn = table(table_lines(report["curve"]))
    return f"random reads, GB/s:\n{drawn}\nof rows' {limit:.2f} GB/s at the best depth a full shuffle has {share:.2f}"


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
