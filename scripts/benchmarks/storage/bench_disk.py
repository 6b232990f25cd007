"""How near does MemmapLoader come to the speed of the disk, when nothing of the store is in memory?

    python -m scripts.benchmarks.storage.bench_disk --rows 20000 --rounds 5 --curve

Ways, in turns, each with the file's pages dropped first (posix_fadvise) and seen to be gone:

    cat            the whole file read in order in pieces of 8 MiB through the page cache, one thread: what cat does
    direct         the same past the page cache (O_DIRECT) with 4 threads, each into a warm huge page or more of its own
    blocks         the same pieces in random order: the limit of "block"
    random         each row once in random order so, with as many threads as a loader reads with: the limit of "full"
    block, full, sequential
                   an epoch of MemmapLoader(residency="disk", shuffle=...), iter() and thread start included. An untimed round
                   comes first, so that memory is used again, as that of "direct" is; "first epoch": how that one compares
    page faults    an epoch with shuffle="full" from the mapped file alone, as a memory-mapped reader without read-ahead does

CPU seconds are this process's, all threads. The fastest of cat and direct in a round is the limit of that round.

--compress zstd reads the same rows compressed in turns with the raw ones, --compress jpeg:95 as JPEGs: "block, zstd" and so on,
in images/s beside those of the raw store in the same order. --megabytes-per-second limits the disk to a rate, by the kernel's
control groups (root); the limit is of this process's reads and shared by all of its threads.

--curve also measures what the disk gives for reads in random order, by their size and how many are in flight: the best for
reads of a row's size is the limit of shuffle="full". Checked:
every epoch brings each row once, and a batch of each equals the raw file. --rows is what bench_read.py makes and keeps.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader
from reader.bench import drop, read_through
from reader.format.errors import NotMeasured
from reader.format.manifest import PIXELS
from reader.memory import residency
from reader.memory.raw_file import READERS
from scripts.benchmarks.reading.bench_read import cached_store
from scripts.benchmarks.storage._disk_curve import best, disk_reads, measure_curve, table_lines
from scripts.benchmarks.storage._limited_disk import limited_disk
from scripts.benchmarks.storage._row_forms import RAW, add_forms, check_batch, check_once, file_bytes, in_forms
from scripts.common.arguments import READ_WORK, bench_parser
from scripts.common.figures import machine, ratio_cells, ratios, spread, table
from scripts.common.program import reported
from scripts.common.timing import in_turns, seconds

BATCH = 256
READ_BYTES, DIRECT_READERS = 8 << 20, 4
ORDERS: dict[str, str | bool] = {"block": "block", "full": "full", "sequential": False}


def main() -> int:
    parser = bench_parser(__doc__, rows=20_000, rounds=5, json=None, store=None, work=READ_WORK)
    parser.add_argument("--curve", action="store_true", help="also measure random reads by size and depth")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each point of the curve, at most")
    parser.add_argument("--megabytes-per-second", type=float, help="limit the disk to this rate (root, Linux)")
    add_forms(parser)
    options = parser.parse_args()

    def measured(_: Path) -> dict[str, Any]:
        store, limit = options.store or cached_store(options.work, options.rows, 224), options.megabytes_per_second
        forms = in_forms(store, options.compress, options.work)
        with limited_disk(store, int(limit * 1e6)) if limit else contextlib.nullcontext():
            report = measure(forms, options.rounds) | {"megabytes_per_second": limit}
            if options.curve:
                add_curve(report, forms[RAW], options)
        return report

    return reported("bench_disk", measured, text=text, json=options.json, also=(NotMeasured, ValueError))


def measure(forms: dict[str, MemmapDataset], rounds: int) -> dict[str, Any]:
    """Time each way in turns; forms: of the same rows, see `in_forms`."""
    data = forms[RAW]
    path, size, row_bytes = data.path / PIXELS, file_bytes(data), data.manifest.row_bytes
    ways: dict[str, tuple[str, Callable[[], Any]]] = {
        "cat": (RAW, lambda: read_through(path, size)),
        "direct": (RAW, lambda: disk_reads(path, READ_BYTES, DIRECT_READERS, in_order=True)),
        "blocks": (RAW, lambda: disk_reads(path, READ_BYTES, DIRECT_READERS)),
        "random": (RAW, lambda: disk_reads(path, row_bytes, READERS)),
        "page faults": (RAW, lambda: by_page_faults(forms)),
    }
    epochs = {way_of(order, form): (form, order) for order, form in itertools.product(ORDERS, forms)}
    loaders = {name: loader_of(forms[form], ORDERS[order]) for name, (form, order) in epochs.items()}
    ways |= {name: (form, partial(epoch, loaders[name], forms, form)) for name, (form, _) in epochs.items()}
    first: dict[str, float] = {}

    def turn(name: str) -> tuple[float, float]:
        for other in forms.values():
            drop(other.path / PIXELS, file_bytes(other))
        begun_cpu = time.process_time()
        taken = seconds(ways[name][1])
        first.setdefault(name, taken)
        return taken, time.process_time() - begun_cpu

    with contextlib.ExitStack() as stack:
        for loader in loaders.values():
            stack.enter_context(loader)
        found = in_turns({name: partial(turn, name) for name in ways}, rounds, untimed=1)
    return report_of(forms, {name: form for name, (form, _) in ways.items()}, found, first) | {"rounds": rounds}


def report_of(
    forms: dict[str, MemmapDataset],
    ways: dict[str, str],
    found: dict[str, list[tuple[float, float]]],
    first: dict[str, float],
) -> dict[str, Any]:
    """Make the report of ways; found: seconds and CPU seconds of each turn; first: seconds of the untimed one."""
    data, size = forms[RAW], file_bytes(forms[RAW])
    bytes_of = {name: file_bytes(forms[form]) for name, form in ways.items()}
    rates = {name: [bytes_of[name] / 1e9 / taken for taken, _ in turns] for name, turns in found.items()}
    images = {name: [len(data) / taken for taken, _ in turns] for name, turns in found.items()}
    compared = {
        way_of(order, form): ratios(images[way_of(order, form)], images[order])
        for order, form in itertools.product(ORDERS, forms)
        if form != RAW
    }
    limit = [max(pair) for pair in zip(rates["cat"], rates["direct"], strict=True)]
    return {
        "benchmark": "bench_disk",
        "machine": machine(data.path),
        "rows": len(data),
        "gigabytes": round(size / 1e9, 3),
        "gigabytes_per_second": {name: spread(values, 3) for name, values in rates.items()},
        "cpu_seconds_a_gigabyte": {
            name: spread([cpu * 1e9 / bytes_of[name] for _, cpu in turns], 3) for name, turns in found.items()
        },
        "cpu_seconds": {name: spread([cpu for _, cpu in turns], 3) for name, turns in found.items()},
        "ratio_to_limit": {name: ratios(rates[name], limit) for name in ways},
        "ratio_to_cat": {name: ratios(rates[name], rates["cat"]) for name in ways},
        "block_to_blocks": ratios(rates["block"], rates["blocks"]),
        "full_to_random": ratios(rates["full"], rates["random"]),
        "first_epoch_to_later": {
            name: round(float(np.median([taken for taken, _ in found[name]])) / first[name], 3)
            for name in (way_of(order, form) for order, form in itertools.product(ORDERS, forms))
        },
        "bytes_to_raw": {form: round(file_bytes(other) / size, 4) for form, other in forms.items()},
        "images_per_second": {name: spread(values, 1) for name, values in images.items()},
        "images_to_raw": compared,
    }


def way_of(order: str, form: str) -> str:
    """Name an epoch."""
    return order if form == RAW else f"{order}, {form}"


def add_curve(report: dict[str, Any], data: MemmapDataset, options: Namespace) -> None:
    """Measure random reads, and what share of their best the full shuffle has; draw them where asked."""
    row_bytes = data.manifest.row_bytes
    curves = measure_curve(data.path / PIXELS, row_bytes, min(2, options.rounds), options.seconds)
    limit = best(curves, row_bytes)
    full = report["gigabytes_per_second"]["full"]["median"]
    report["curve"], report["row_bytes"] = curves, row_bytes
    report["random_row_limit"], report["full_to_random_limit"] = limit, round(full / limit, 3)


def curve_text(report: dict[str, Any]) -> str:
    """Draw the curve for a person."""
    share, limit = report["full_to_random_limit"], report["random_row_limit"]
    drawn = table(table_lines(report["curve"]))
    return f"random reads, GB/s:\n{drawn}\nof rows' {limit:.2f} GB/s at the best depth a full shuffle has {share:.2f}"


def loader_of(data: MemmapDataset, shuffle: str | bool, where: str = "disk") -> MemmapLoader:
    """Open a loader of a store that no other one has mapped: pages that stay mapped could not be dropped."""
    return MemmapLoader(MemmapDataset(data.path), BATCH, shuffle=shuffle, residency=where, as_tuple=False)


def epoch(loader: MemmapLoader, forms: dict[str, MemmapDataset], form: str) -> None:
    """Read an epoch and check it."""
    seen = np.zeros(len(forms[form]), dtype=np.int64)
    for batch in loader:
        seen[batch.rows.numpy()] += 1
    check_batch(forms, form, batch.rows[:1], batch.pixels[:1])
    check_once(seen, form)


def by_page_faults(forms: dict[str, MemmapDataset]) -> None:
    """Read an epoch of the mapped file, and never ahead."""
    was, residency.is_cold = residency.is_cold, lambda *_: False
    try:
        with loader_of(forms[RAW], "full", "cache") as loader:
            epoch(loader, forms, RAW)
    finally:
        residency.is_cold = was


def text(report: dict[str, Any]) -> str:
    heads = ("GB/s", "min..max", "CPU s/GB", "of the limit", "p10..p90", "of cat", "images/s", "of raw", "p10..p90")
    lines = [["", *heads, "first epoch"]]
    for name, rate in report["gigabytes_per_second"].items():
        lines.append(
            [
                name,
                f"{rate['median']:.2f}",
                f"{rate['min']:.2f}..{rate['max']:.2f}",
                f"{report['cpu_seconds_a_gigabyte'][name]['median']:.3f}",
                *ratio_cells(report["ratio_to_limit"][name]),
                ratio_cells(report["ratio_to_cat"][name])[0],
                f"{report['images_per_second'][name]['median']:,.0f}",
                *ratio_cells(report["images_to_raw"].get(name)),
                str(report["first_epoch_to_later"].get(name, "")),
            ]
        )
    limit = report["megabytes_per_second"]
    disk = f", a disk limited to {limit:.0f} MB/s" if limit else ""
    head = f"{report['rows']} rows, {report['gigabytes']} GB, nothing cached{disk}, {report['rounds']} rounds: medians"
    block, full = (
        " (p10..p90 ".join(ratio_cells(report[name])) + ")" for name in ("block_to_blocks", "full_to_random")
    )
    drawn = (
        f"{head}\n{table(lines)}\nblock has {block} of reads of 8 MiB in random order, full {full} of random reads of rows,"
        f" {READERS} in progress"
    )
    return f"{drawn}\n{curve_text(report)}" if "curve" in report else drawn


if __name__ == "__main__":
    sys.exit(main())
