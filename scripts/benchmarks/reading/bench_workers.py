"""What does a DataLoader worker of a MemmapDataset cost: memory of its own, and time and bytes to start, whatever the rows?

    python -m scripts.benchmarks.reading.bench_workers --workers 8 --rows 1000 10000000

torch's DataLoader with batches of 16 rows of 224 x 224 in store order, forked and spawned, over an empty dataset and over stores
of --rows rows, whose files are holes (bench_open.py). Every worker gives 20 batches and then waits. Its own memory is what
/proc/PID/smaps_rollup calls Private_Dirty, and USS with clean pages of files; both beyond those of a worker of the empty
dataset. Beside them a list of (path, target), as ImageFolder has one, and a numpy memmap are read to the end, shuffled. Time is
from the start of the DataLoader to its first batch: medians of --rounds turns. A spawned worker gets the dataset pickled.
Checked: the rows of the first batch.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from reader import MemmapDataset
from reader.format.manifest import PIXELS
from scripts.benchmarks.reading._worker_data import EmptyBatches, ListedSamples, Mapped
from scripts.common.arguments import Count, bench_parser
from scripts.common.figures import machine, process_bytes, table
from scripts.common.program import reported
from scripts.common.timing import in_turns, timed
from scripts.samples.stores import SIDE, sparse_store

BATCH = 16
BATCHES_A_WORKER = 20
FIELDS = {"private": ("Private_Dirty",), "uss": ("Private_Clean", "Private_Dirty"), "pss": ("Pss",)}
MOST_MB = 20
# ImageFolder keeps so many for a sixth of ImageNet.
PATHS = 200_000
MAPPED_ROWS = 1000


def main() -> int:
    about = {"rounds": "starts of each kind"}
    parser = bench_parser(__doc__, about=about, workers=8, rounds=3)
    parser.add_argument("--paths", action=Count, default=PATHS, help=f"samples of the list (default: {PATHS})")
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000_000])
    parser.add_argument("--starts", nargs="+", choices=("fork", "spawn"), default=["fork", "spawn"])
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than CPUs are meant

    def all_measured(work: Path) -> dict[str, Any]:
        stores = {rows: sparse_store(work / f"{rows}", rows) for rows in {*options.rows, MAPPED_ROWS}}
        found = [one for start in options.starts for one in measured(stores, start, options)]
        kinds = {name: [one for one in found if ("rows" in one) is (name == "stores")] for name in ("stores", "others")}
        holds = all(one["private_mb_beyond_empty"] < MOST_MB for one in kinds["stores"])
        head = {"machine": machine(work), "workers": options.workers, "batch_size": BATCH, "rounds": options.rounds}
        return head | kinds | {"holds": holds}

    return reported("bench_workers", all_measured, text=text, is_right=lambda report: report["holds"])


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["dataset", "start", "first batch, s", "own MB beyond empty", "USS MB beyond empty", "pickled"]]
    for one in [*report["stores"], *report["others"]]:
        cells = [f"{one[n]:.1f}" for n in ("private_mb_beyond_empty", "uss_mb_beyond_empty")]
        first = f"{one['first_batch_seconds']:.2f}"
        lines.append([one["dataset"], one["start"], first, *cells, f"{one['pickle_bytes']:,} B"])
    head = f"{report['workers']} workers, batches of {BATCH}: medians of {report['rounds']} of a worker's mean"
    return f"{head}\n{table(lines)}"


def measured(stores: dict[int, Path], start: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Take turns over all datasets with workers that are started in one way; returns the medians of each."""
    ours = {f"MemmapDataset of {rows:,} rows": rows for rows in options.rows}
    # the empty one first: the first worker of all touches what later ones are forked with
    datasets: dict[str, Dataset] = {"empty": EmptyBatches(10**6)}
    datasets |= {name: MemmapDataset(stores[rows]) for name, rows in ours.items()}
    datasets[f"a list of {options.paths:,} paths"] = ListedSamples(options.paths)
    mapped = stores[MAPPED_ROWS]
    datasets[f"a numpy memmap of {MAPPED_ROWS:,} rows"] = Mapped(mapped / PIXELS, (MAPPED_ROWS, SIDE, SIDE, 3))
    turns = {name: partial(run, data, start, options.workers) for name, data in datasets.items()}
    taken = {name: median(runs) for name, runs in in_turns(turns, options.rounds).items()}
    empty, found = taken.pop("empty"), []
    for name, one in taken.items():
        beyond = {f"{n}_beyond_empty": round(one[n] - empty[n], 2) for n in ("private_mb", "uss_mb")}
        head: dict[str, Any] = {"dataset": name, "start": start, "pickle_bytes": len(pickle.dumps(datasets[name]))}
        head |= {"rows": ours[name]} if name in ours else {}
        found.append(head | one | beyond | {"empty": empty})
    return found


def median(runs: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(one[name] for one in runs), 3) for name in runs[0]}


def run(dataset: Dataset, start: str, workers: int) -> dict[str, float]:
    """Return the seconds to the first batch, and a worker's memory in MB, the mean of all."""
    kept: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": start, "persistent_workers": True}
    # what a worker copies of these is known once it has touched all of them
    is_copied = isinstance(dataset, ListedSamples | Mapped)
    loader = DataLoader(dataset, BATCH, shuffle=is_copied, **kept)
    (iterator, first), seconds = timed(lambda: with_first_batch(loader))
    if isinstance(dataset, MemmapDataset) and not torch.equal(first[0], dataset[:BATCH][0]):
        raise SystemExit("bench_workers: the first batch is not the first rows.")
    del first
    wanted = len(loader) if is_copied else BATCHES_A_WORKER * workers
    for _ in range(min(wanted, len(loader) - 1) - 2 * workers):
        next(iterator)
    memory = mean_memory([worker.pid for worker in iterator._workers])
    iterator._shutdown_workers()
    return {"first_batch_seconds": seconds} | {f"{name}_mb": memory[name] / 1e6 for name in ("private", "uss")}


def with_first_batch(loader: DataLoader) -> tuple[Any, Any]:
    """Start an epoch and wait for its first batch; returns the iterator and the batch."""
    iterator = iter(loader)
    return iterator, next(iterator)


def mean_memory(processes: list[int]) -> dict[str, float]:
    """Return bytes of a process, the mean of all: its own that the kernel cannot take back, its own, its share of all."""
    return {name: statistics.fmean(process_bytes(one, *fields) for one in processes) for name, fields in FIELDS.items()}


if __name__ == "__main__":
    sys.exit(main())
