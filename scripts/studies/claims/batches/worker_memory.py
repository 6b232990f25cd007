"""What does each DataLoader worker hold of a dataset in memory of its own?

Three datasets behind torch's DataLoader, without workers and with 2, 4 and 8 of them, forked and spawned: a Python list of
(path, target), as ImageFolder keeps; a numpy memmap; a MemmapDataset; and an empty one beside them. An epoch in random
order goes through first. A process's own memory is what /proc/PID/smaps_rollup calls Private_Dirty: pages that no other process
shares and that the kernel cannot take back. USS (with clean pages of files, which it can) and PSS are in the JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from reader import MemmapDataset
from reader.format.manifest import PIXELS
from scripts.benchmarks.reading._worker_data import Empty, Listed, Mapped
from scripts.benchmarks.reading.bench_workers import mean_memory, with_first_batch
from scripts.common import plot
from scripts.common.timing import timed
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOADER_NOTES, Finding, in_child

CLAIM = "Each worker makes a copy of the dataset: N workers, N times the memory."
SOURCE = LOADER_NOTES

BATCH = 16
SIDE = 64
EMPTY, LIST, MEMMAP, OURS = "an empty dataset", "a list of paths", "a numpy memmap", "MemmapDataset"
COLORS = {EMPTY: "#d5dade", LIST: plot.LINES[0], MEMMAP: plot.LINES[1], OURS: plot.OURS}
# Eight spawned workers take half a minute to import torch.
WORKERS = {"fork": (0, 2, 4, 8), "spawn": (2, 8)}


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return MiB of a worker by way of starting it, dataset and number of workers."""
    rows, samples, starts = (200, 2_000, {"fork": (0, 2)}) if quick else (20_000, 200_000, WORKERS)
    out, shape = random_store(work, rows, SIDE), (rows, SIDE, SIDE, 3)
    makers: dict[str, Callable[[], Dataset]] = {
        EMPTY: lambda: Empty(rows),
        LIST: lambda: Listed(samples),
        MEMMAP: lambda: Mapped(out / PIXELS, shape),
        OURS: lambda: MemmapDataset(out),
    }
    return {
        "batch_size": BATCH,
        "paths": samples,
        "store_mib": round(np.prod(shape) / 2**20, 1),
        "mib": {
            start: {
                name: {str(n): in_child(per_process, maker, start, n) for n in counts} for name, maker in makers.items()
            }
            for start, counts in starts.items()
        },
    }


def per_process(maker: Callable[[], Dataset], start: str, workers: int) -> dict[str, float]:
    """Read an epoch; return MiB of a worker, on average, or of this process where there are none, and seconds to start."""
    context = {"multiprocessing_context": start, "persistent_workers": True} if workers else {}
    loader = DataLoader(maker(), BATCH, shuffle=True, num_workers=workers, **context)
    (iterator, _), first = timed(lambda: with_first_batch(loader))
    for batch in iterator:
        del batch
    found = mean_memory([worker.pid for worker in iterator._workers] if workers else [os.getpid()])
    if workers:
        iterator._shutdown_workers()
    mebibytes = {name: round(size_bytes / 2**20, 2) for name, size_bytes in found.items()}
    return mebibytes | {"first_batch_seconds": round(first, 3)}


def beyond_empty(figures: dict[str, Any], start: str, name: str) -> float:
    """Return MiB that a worker holds more than one of an empty dataset, at the largest number of workers."""
    found = figures["mib"][start]
    most = max(found[name], key=int)
    return found[name][most]["private"] - found[EMPTY][most]["private"]


def conclude(figures: dict[str, Any]) -> Finding:
    most = {start: max(found[OURS], key=int) for start, found in figures["mib"].items()}
    more = {start: {name: beyond_empty(figures, start, name) for name in (LIST, MEMMAP, OURS)} for start in most}
    texts = [
        f"{start}, {most[start]} workers: list {found[LIST]:.0f}, memmap {found[MEMMAP]:.1f}, MemmapDataset {found[OURS]:.1f}"
        for start, found in more.items()
    ]
    spawned = more.get("spawn", more["fork"])
    return Finding(
        f"A worker holds {max(found[OURS] for found in more.values()):.1f} MiB of a MemmapDataset,"
        f" {more['fork'][LIST]:.0f} MiB of a list of {figures['paths']:,} paths,"
        f" and all {spawned[MEMMAP]:.0f} MiB of a numpy memmap when spawned",
        f"MiB a worker beyond one with an empty dataset (list of {figures['paths']:,} paths, memmap and store of"
        f" {figures['store_mib']:.0f} MiB): {'; '.join(texts)}.",
        min(more["fork"][LIST], spawned[MEMMAP]) > 10 * max(found[OURS] for found in more.values()),
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=len(figures["mib"]))
    titles = {"fork": "forked workers", "spawn": "spawned workers (mind the scale)"}
    for axes, (start, by_name) in zip(panels, figures["mib"].items(), strict=True):
        counts = list(by_name[EMPTY])
        for number, (name, by_count) in enumerate(by_name.items()):
            values = [by_count[n]["private"] for n in counts]
            centers = np.arange(len(counts)) + (number - 1.5) * 0.21
            drawn = axes.bar(centers, values, 0.19, color=COLORS[name], label=name)
            axes.bar_label(drawn, [f"{value:.0f}" for value in values], size=8, padding=2, color=plot.DARK)
        axes.set_xticks(range(len(counts)), [f"{n} workers" if n != "0" else "no worker" for n in counts])
        axes.grid(axis="x", visible=False)
        axes.set_ylim(top=axes.get_ylim()[1] * 1.06)
        axes.set_title(titles[start])
        axes.set_ylabel("memory of its own, MiB a worker")
    plot.names_below(figure, panels[0])
    return figure
