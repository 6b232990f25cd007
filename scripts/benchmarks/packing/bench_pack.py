"""How near does `pack` come to merely decoding?

    python -m scripts.benchmarks.packing.bench_pack --count 2000 --size 224 --workers 2 --runs 3

Packs a folder of photographs repeated to --count files (copies, warm in the page cache) in several ways, in turns; which
one begins moves on by one each run:

    decode     the limit: read the file and decode it (libjpeg-turbo, at the DCT scale that pack takes), nothing else
    row        decode + resize + crop as pack does them, the row then dropped
    call       packer.pack(...) from this process
    pack       the command `pack IMAGES OUT --size S --workers N`, Python's start and all imports included
    update     the command `pack update IMAGES OUT --workers N`, where no image has changed: all are read, none is decoded

All on as many processes, whose start counts; imports count for the command alone. call and pack do more than the others:
checksums, sha256 of each source, channel sums, samples.jsonl, and every row synced to disk.

Checked: the command's rows equal what Pillow makes of the files, to the byte, wherever neither DCT scaling nor EXIF was
involved, and are within 2 levels on average where DCT scaling was; no row is missing; every store passes `pack verify` and is
the same to the byte in each run. A worker's own memory is the peak of its share (PSS) of anonymous and shared pages, looked
at every 10 ms during a pack that is not timed. Linux only: it forks, and reads /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from packer.inputs.scan import scan
from packer.operations.verify import verify
from reader.format.manifest import PIXELS, SAMPLES, read_manifest
from reader.format.samples import read_json_lines
from scripts.benchmarks.packing._pack_ways import (
    ListedFolder,
    command,
    command_environment,
    decode_alone,
    in_processes,
    make_rows,
    time_call,
    time_command,
    time_update,
)
from scripts.common.arguments import bench_parser
from scripts.common.figures import (
    BenchmarkError,
    machine,
    photographs,
    process_bytes,
    rate_cells,
    ratio_cells,
    ratios,
    repeat_files,
    spread,
    table,
)
from scripts.common.pictures import picture
from scripts.common.program import reported
from scripts.common.timing import in_turns

TITLES = {
    "decode": "(a) decode alone",
    "row": "(b) decode + resize + crop",
    "call": "packer.pack()",
    "pack": "pack (the command)",
    "update": "pack update, nothing has changed",
}
OURS = ("pack", "call")
# Those of ../shared/photos are 0.4 levels off on average; other pictures than these would be 50.
SCALED_LEVELS = 2.0
SAMPLE_SECONDS = 0.01
# of memory that a process shares its part: all anonymous and shared-memory pages
SHARES = ("Pss_Anon", "Pss_Shmem")


def main() -> int:
    options = bench_parser(__doc__, images=None, count=2000, size=224, workers=2, runs=3, json=None).parse_args()

    def measured(work: Path) -> dict[str, Any]:
        return measure(prepare(options, work), options.runs)

    return reported("bench_pack", measured, text=text, json=options.json)


def prepare(options: argparse.Namespace, work: Path) -> ListedFolder:
    """Copy the photographs and list them as pack does; what was written is on disk before anything is timed."""
    found = photographs(options.images, work, options.size)
    made = repeat_files(found, work / "images", options.count, link=False)
    os.sync()
    inputs = scan(work / "images")[""]
    return ListedFolder(
        images=work / "images",
        work=work,
        paths=[work / "images" / name for name in inputs.paths],
        names=[*inputs.paths],
        targets=inputs.targets.tolist(),
        scales=[made[name].dct_scale for name in inputs.paths],
        size=options.size,
        workers=options.workers,
    )


def measure(job: ListedFolder, runs: int) -> dict[str, Any]:
    """Warm up and check, then time all ways in turns."""
    torch.set_num_threads(job.workers)
    described = machine(job.work)
    reference = job.work / "reference"
    memory = watched_pack(job, reference)
    checks = check_store(job, reference)
    ways = {
        "decode": lambda: in_processes(job, decode_alone),
        "row": lambda: in_processes(job, make_rows),
        "call": lambda: time_call(job),
        "pack": lambda: time_command(job),
        "update": lambda: time_update(job, reference),
    }

    def turn(name: str) -> float:
        rate = len(job.paths) / ways[name]()
        check_turn(job, reference)
        return rate

    rates = in_turns({name: partial(turn, name) for name in ways}, runs)
    return {
        "benchmark": "bench_pack",
        "machine": described,
        "count": len(job.paths),
        "size": job.size,
        "workers": job.workers,
        "runs": runs,
        "images_per_second": {name: spread(found, 1) for name, found in rates.items()},
        "ratio": {
            f"{ours}/{other}": ratios(rates[ours], rates[other])
            for ours in OURS
            for other in rates
            if other not in OURS
        },
        "own_mib": memory,
        "checks": checks,
    }


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["", "images/s", "min..max", "pack/it", "p10..p90", "pack()/it", "p10..p90"]]
    for name in report["images_per_second"]:
        title = TITLES[name]
        of = [ratio_cells(report["ratio"].get(f"{ours}/{name}")) for ours in ("pack", "call")]
        lines.append([title, *rate_cells(report["images_per_second"][name]), *of[0], *of[1]])
    memory, checks = report["own_mib"], report["checks"]
    counts = f"{report['count']} files, {report['size']} x {report['size']}, {report['workers']} workers"
    return (
        f"{counts}, {report['runs']} runs: medians; ratios are medians of the ratios of each run\n{table(lines)}\n"
        f"own memory: {seen(memory['worker'])} the largest worker, {seen(memory['parent'])} the parent\n"
        f"checked: {checks['rows']} rows, {checks['equal_rows']} equal to Pillow's to the byte,"
        f" {checks['scaled_rows']} DCT-scaled and {checks['scaled_levels']} levels off on average,"
        f" {checks['turned_rows']} turned by EXIF and not compared"
    )


# -- memory


def watched_pack(job: ListedFolder, out: Path) -> dict[str, float | None]:
    """Pack by the command, looking at memory meanwhile; returns the peaks in MiB: the largest worker's, the parent's.

    A pack of a few tiny images may end between two looks: what was not seen is None.

    Raises:
        BenchmarkError: the command failed.
    """
    peaks = {"worker": 0, "parent": 0}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    # the first run: it compiles what the timed ones find
    with subprocess.Popen(command(job, out), env=command_environment(), **quiet) as process:
        while process.poll() is None:
            peaks["parent"] = max(peaks["parent"], process_bytes(process.pid, *SHARES))
            peaks["worker"] = max([peaks["worker"], *(process_bytes(pid, *SHARES) for pid in children(process.pid))])
            time.sleep(SAMPLE_SECONDS)
        if process.returncode:
            raise BenchmarkError(f"pack ended with exit code {process.returncode}: {process.stderr.read().strip()}")
    return {name: round(value / 2**20, 1) if value else None for name, value in peaks.items()}


def seen(mib: float | None) -> str:
    """Write a peak of watched_pack."""
    return "not seen" if mib is None else f"{mib} MiB"


def children(pid: int) -> list[int]:
    """List the processes that a process has started and that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # "12 (a name) S 7 ...": the name may hold spaces and parentheses, the parent stands two words after it
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


# -- checks


def check_store(job: ListedFolder, store: Path) -> dict[str, Any]:
    """Compare a store with the listing, with its own checksums, and with what Pillow makes of the files.

    Raises:
        BenchmarkError: saying what differs.
    """
    problems = verify(store).problems
    if problems:
        raise BenchmarkError(f"the store does not pass verify: {problems[0]}")
    samples = list(read_json_lines(store / SAMPLES))
    if [(sample["path"], sample["target"]) for sample in samples] != list(zip(job.names, job.targets, strict=True)):
        raise BenchmarkError(
            f"the store has {len(samples)} rows that are not the {len(job.paths)} files in their order."
        )
    turned = np.array(["exif_orientation" in sample for sample in samples])
    scaled = np.array(["dct_scale" in sample for sample in samples]) & ~turned
    if (turned | scaled).all():
        raise BenchmarkError("no row could be compared to the byte: all are DCT-scaled or turned. Use a larger --size.")
    rows = np.memmap(store / PIXELS, np.uint8, "r", shape=(len(samples), job.size, job.size, 3))
    # the mean absolute difference of each row in levels of 0..255
    levels = np.array(
        [
            np.abs(row.astype(np.int16) - picture(path, job.size)).mean()
            for row, path in zip(rows, job.paths, strict=True)
        ]
    )
    wrong = np.flatnonzero((levels > 0) & ~(turned | scaled))
    if len(wrong):
        raise BenchmarkError(f"row {wrong[0]} ({job.names[wrong[0]]}) is not what Pillow makes of it.")
    off = float(levels[scaled].mean()) if scaled.any() else 0.0
    if off > SCALED_LEVELS:
        raise BenchmarkError(f"DCT-scaled rows are {off:.1f} levels off on average, expected {SCALED_LEVELS} at most.")
    return {
        "rows": len(samples),
        "equal_rows": int((~(turned | scaled)).sum()),
        "scaled_rows": int(scaled.sum()),
        "scaled_levels": round(off, 2),
        "turned_rows": int(turned.sum()),
    }


def check_turn(job: ListedFolder, reference: Path) -> None:
    """Check the store that the turn just timed has left, then remove it.

    Raises:
        BenchmarkError: it differs from the reference, which was checked in full.
    """
    store = job.work / "store"
    if store.exists():
        problems = verify(store).problems
        if problems or read_manifest(store).digest != read_manifest(reference).digest:
            raise BenchmarkError(f"this pack differs from the first: {problems or 'another manifest'}.")
        shutil.rmtree(store)


if __name__ == "__main__":
    sys.exit(main())
