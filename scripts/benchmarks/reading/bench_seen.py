"""How long does it take to say which steps of 300 epochs of 1.28 million rows saw a row, and which rows a step saw?

    python -m scripts.benchmarks.reading.bench_seen

Nothing is read: the rows are one row of 224 x 224 again and again, in every order of MemmapLoader. The answers are checked with
each other: a step that is said to have seen the row must have it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import packer
from reader import MemmapDataset, MemmapLoader, concat

BATCH_SIZE, WORLD_SIZE = 256, 8


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="pixpack-seen-") as work:
        rows = dataset(Path(work), options.rows)
        halves = concat({"a": rows.subset(slice(0, None, 2)), "b": rows.subset(slice(1, None, 2))})
        weights = np.random.default_rng(0).uniform(0.5, 1.5, options.rows)
        ways: dict[str, dict[str, Any]] = {
            "sequential": {"shuffle": False},
            "full": {"shuffle": "full"},
            "block": {"shuffle": "block"},
            "canonical nodes": {"shuffle": "block", "canonical_nodes": 16},
            "epochs of other length": {"shuffle": "full", "epoch_rows": options.rows // 3},
            "mixture": {"weights": {"a": 0.7, "b": 0.3}},
            "weights": {"weights": weights},
        }
        report = {"epochs": options.epochs, "rows": options.rows, "seconds": {}}
        for name, how in ways.items():
            data = halves if name == "mixture" else rows
            loader = MemmapLoader(data, BATCH_SIZE, seed=0, rank=0, world_size=WORLD_SIZE, pad=True, **how)
            report["seconds"][name] = measured(loader, options)
            print(f"{name}: {report['seconds'][name]}", flush=True)
    print(json.dumps(report))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_281_167)
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5, help="rows that are asked for; the median is reported")
    return parser.parse_args()


def dataset(work: Path, count: int) -> MemmapDataset:
    """Return a dataset of so many rows, all of them one row of a store: an order does not know what it gives."""
    (work / "images").mkdir()
    Image.new("RGB", (224, 224)).save(work / "images" / "0.png")
    packer.pack(work / "images", work / "out")
    return MemmapDataset(work / "out").subset(np.zeros(count, np.int64))


def measured(loader: MemmapLoader, options: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of each question; raises AssertionError where the answers contradict each other."""
    state = {**loader.state_dict(), "epoch": options.epochs}
    by_row, cpu, by_step = [], [], []
    for n in range(options.rounds):
        row = n * 254_987 % options.rows
        start, cpu_start = time.perf_counter(), time.process_time()
        seen = loader.steps_of(row, state)
        by_row.append(time.perf_counter() - start)
        cpu.append(time.process_time() - cpu_start)
        for epoch, step in seen[:: max(1, len(seen) // 10)]:
            start = time.perf_counter()
            rows = loader.rows(epoch, step)
            by_step.append(time.perf_counter() - start)
            assert row in rows, f"step {step} of epoch {epoch} has not seen row {row}"
    assert by_step, "no step has seen any of the rows"
    seconds = {"steps of a row": by_row, "CPU-seconds of that": cpu, "rows of a step": by_step}
    return {name: round(statistics.median(values), 4) for name, values in seconds.items()}


if __name__ == "__main__":
    main()
