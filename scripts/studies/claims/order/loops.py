"""Which loop over 300,000 numbers in batches of 300 is the fastest?

The slides' loops as they stand there, their two remedies (a dataset with __getitems__, a loader of one's own), and ours,
over a store of 300,000 rows of one pixel. The slides run 1,000 epochs; here a few of each are timed, in turns, since an
epoch of the slowest takes seconds. Checked: each loop brings every number, or row, once an epoch. tf.data is timed where
tensorflow is installed, which we do not do.
"""

from __future__ import annotations

import importlib.util
import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from reader import MemmapDataset, MemmapLoader
from scripts.common import plot
from scripts.common.figures import spread
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOOPS, Calls, ClaimResult, medians, seconds_in_turns

CLAIM = "Of a loop in pure Python, a DataLoader with workers, tf.data and numpy, numpy's is the fastest."
SOURCE = LOOPS

BATCH = 300
ROUNDS = 5
PYTHON, NUMPY, LOADER = "list, random.sample", "numpy, permutation.reshape", "MemmapLoader (images and targets)"
PLAIN, GETITEMS, INDEX = "DataLoader", "DataLoader, __getitems__", "a loader that indexes once a batch"
TENSORFLOW = "tf.data"
# The slides' workers and prefetch_factor; 2 workers are what this machine's class has cores for.
WORKERS = (2, 10)
PREFETCH = 16
# The fast loops run often enough a turn for the clock.
SHORT = {NUMPY: 20, INDEX: 20, LOADER: 5, GETITEMS: 2}

Epoch = Callable[[], Iterable[Any]]


class OneByOne(Dataset):
    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.data[index]


class AllAtOnce(OneByOne):
    def __getitems__(self, indices: list[int]) -> torch.Tensor:
        return self.data[indices]


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return seconds an epoch of each loop."""
    count = 3_000 if quick else 300_000
    epochs = loops(count, work, workers=WORKERS[:1] if quick else WORKERS)
    for name, epoch in epochs.items():
        check(name, epoch, count)
    ways = {name: Calls(lambda e=epoch: run(e), SHORT.get(name, 1)) for name, epoch in epochs.items()}
    found = seconds_in_turns(ways, 1 if quick else ROUNDS)
    return {
        "rows": count,
        "batch_size": BATCH,
        "epochs_timed": {name: way.count * len(found[name]) for name, way in ways.items()},
        "seconds_per_epoch": {name: spread(values, 6) for name, values in found.items()},
        "missing": [] if TENSORFLOW in found else ["tf.data: tensorflow is not installed"],
        "tensorflow": sys.modules["tensorflow"].__version__ if TENSORFLOW in found else None,
    }


def loops(count: int, work: Path, workers: tuple[int, ...]) -> dict[str, Epoch]:
    """Return each loop as a function that gives one epoch's batches."""
    numbers = torch.arange(count)
    pinned = torch.cuda.is_available()
    found: dict[str, Epoch] = {PYTHON: lambda: python_loop(list(range(count)))}
    found[PLAIN] = lambda: DataLoader(numbers, batch_size=BATCH, shuffle=True)
    for n in workers:
        ahead = {"prefetch_factor": PREFETCH, "pin_memory": pinned, "persistent_workers": True}
        loader = DataLoader(numbers, batch_size=BATCH, shuffle=True, num_workers=n, **ahead)
        found[f"DataLoader, {n} workers"] = lambda loader=loader: loader
    if importlib.util.find_spec("tensorflow"):
        found[TENSORFLOW] = tensorflow_loop(count)
    dataset = AllAtOnce(numbers)
    found[GETITEMS] = lambda: DataLoader(dataset, batch_size=BATCH, shuffle=True, collate_fn=lambda batch: batch)
    found[INDEX] = lambda: index_loop(numbers)
    generator, array = np.random.default_rng(), np.arange(count)
    found[NUMPY] = lambda: generator.permutation(array).reshape(-1, BATCH)
    data = MemmapDataset(random_store(work, count, 1))
    ours = MemmapLoader(data, BATCH, shuffle="full")
    found[LOADER] = lambda: ours
    return found


def python_loop(data: list[int]) -> Iterator[list[int]]:
    order = random.sample(data, k=len(data))
    return (order[i : i + BATCH] for i in range(0, len(order), BATCH))


def index_loop(data: torch.Tensor) -> Iterator[torch.Tensor]:
    order = torch.randperm(len(data))
    return (data[order[i : i + BATCH]] for i in range(0, len(order), BATCH))


def tensorflow_loop(count: int) -> Epoch:
    import tensorflow as tf

    data = tf.data.Dataset.range(count)
    data = data.shuffle(buffer_size=data.cardinality(), reshuffle_each_iteration=True).batch(BATCH)
    data = data.prefetch(tf.data.AUTOTUNE)
    return lambda: data


def run(epoch: Epoch) -> None:
    for _ in epoch():
        pass


def check(name: str, epoch: Epoch, count: int) -> None:
    """Raise unless an epoch brings each number once; of ours, whose pixels are random, each target as often as it is stored."""
    batches = [batch[1] if isinstance(batch, tuple | list) and name == LOADER else batch for batch in epoch()]
    found = np.sort(np.fromiter(itertools.chain.from_iterable(np.asarray(batch) for batch in batches), np.int64))
    expected = np.arange(count) if name != LOADER else np.arange(count) * 100 // count
    if not np.array_equal(found, expected):
        raise RuntimeError(f"{name}: an epoch is not the {count} numbers, each once.")


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = medians(figures["seconds_per_epoch"])
    theirs = {name: s for name, s in found.items() if name in (PYTHON, NUMPY, TENSORFLOW) or name.startswith(PLAIN)}
    best = min(s for name, s in theirs.items() if name.startswith(PLAIN) and name != GETITEMS)
    slowest = max(found, key=lambda name: found[name])
    missing = "".join(f"; not measured: {text}" for text in figures["missing"])
    tensorflow = f", tf.data {found[TENSORFLOW] * 1e3:.0f}" if TENSORFLOW in found else ""
    return ClaimResult(
        f"numpy's loop is {best / found[NUMPY]:,.0f} times as fast as the best DataLoader;"
        f" MemmapLoader, which gathers images too, {best / found[LOADER]:,.0f} times",
        f"An epoch takes numpy {found[NUMPY] * 1e3:.1f} ms, Python {found[PYTHON] * 1e3:.0f}, DataLoader"
        f" {found[PLAIN] * 1e3:.0f}, {slowest.removeprefix('DataLoader, ')} {found[slowest] * 1e3:,.0f}{tensorflow};"
        f" with __getitems__ {found[GETITEMS] * 1e3:.0f}, one index a batch {found[INDEX] * 1e3:.1f};"
        f" MemmapLoader {found[LOADER] * 1e3:.1f}{missing}.",
        min(theirs, key=lambda name: theirs[name]) == NUMPY and found[INDEX] < found[GETITEMS] < best,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    found = medians(figures["seconds_per_epoch"])
    values = {name: 1e3 * found[name] for name in sorted(found, key=lambda name: -found[name])}
    figure, (axes,) = make()
    texts = [f"{ms:,.{0 if ms > 100 else 1}f} ms  (1,000 epochs: {duration(ms)})" for ms in values.values()]
    label = f"milliseconds an epoch of {figures['rows']:,} in batches of {figures['batch_size']}, median, log scale"
    plot.bars(axes, values, texts, xlabel=label, log=True)
    axes.set_xlim(right=max(values.values()) * 45)
    return figure


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
