"""What does MemmapLoader itself cost, where there is next to nothing to copy?

300,000 rows of one pixel, batches of 300, shuffled, pairs of arrays: MemmapLoader beside numpy's loop that gives the same
pairs from arrays in memory. Whole epochs, the order and the thread's start included, in turns; the figure is the median of
the ratios of each round. Checked: both bring every row's target once, and pixels that belong to their targets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from reader import MemmapDataset, MemmapLoader
from scripts.benchmarks._bench import ratios, spread
from scripts.samples.stores import random_store
from scripts.studies.claims import _plot
from scripts.studies.claims._claim import OURS, Calls, Finding, medians, seconds_in_turns

CLAIM = "MemmapLoader's own work for a small batch is at most 3 times that of numpy's loop over arrays in memory."
SOURCE = OURS

BATCH = 300
ROUNDS = 60
MOST = 3
NUMPY, LOADER, UNTHREADED = "numpy's loop", "MemmapLoader", "MemmapLoader(prefetch=0)"

Pairs = Iterable[tuple[Any, Any]]


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds an epoch, and ratios to numpy's."""
    rows, rounds = (3_000, 2) if quick else (300_000, ROUNDS)
    data = MemmapDataset(random_store(work, rows, 1))
    images, targets = np.array(data.numpy()), np.asarray(data.targets)
    loaders = {LOADER: MemmapLoader(data, BATCH, shuffle="full")}
    loaders[UNTHREADED] = MemmapLoader(data, BATCH, shuffle="full", prefetch=0)
    for pairs in (numpy_loop(images, targets), *loaders.values()):
        check(pairs, images, targets)
    ways = {NUMPY: Calls(lambda: run(numpy_loop(images, targets)))}
    ways |= {name: Calls(lambda loader=loader: run(loader)) for name, loader in loaders.items()}
    found = seconds_in_turns(ways, rounds)
    for loader in loaders.values():
        loader.close()
    return {
        "rows": rows,
        "batch_size": BATCH,
        "milliseconds": {name: spread([1e3 * s for s in values], 3) for name, values in found.items()},
        "ratio": {name: ratios(found[name], found[NUMPY]) for name in loaders},
    }


def numpy_loop(images: np.ndarray, targets: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng().permutation(len(images))
    for i in range(0, len(order), BATCH):
        rows = order[i : i + BATCH]
        yield images[rows], targets[rows]


def run(pairs: Pairs) -> None:
    for _ in pairs:
        pass


def check(pairs: Pairs, images: np.ndarray, targets: np.ndarray) -> None:
    """Raise unless an epoch brings each pair of pixel and target as often as it is stored."""
    found = [(np.asarray(pixels).reshape(-1, 3), np.asarray(labels)) for pixels, labels in pairs]
    seen = np.column_stack([np.concatenate(part) for part in zip(*found, strict=True)])
    stored = np.column_stack([images.reshape(-1, 3), targets])
    if not np.array_equal(in_order(seen), in_order(stored)):
        raise RuntimeError("an epoch is not the rows of the store.")


def in_order(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(rows.T)]


def conclude(figures: dict[str, Any]) -> Finding:
    milliseconds = medians(figures["milliseconds"])
    ratio = figures["ratio"][LOADER]
    return Finding(
        f"An epoch of one-pixel rows takes MemmapLoader {ratio['median']:.1f} times as long as numpy's loop;"
        f" the aim is at most {MOST}",
        f"{milliseconds[LOADER]:.1f} ms an epoch of {figures['rows']:,} in batches of {figures['batch_size']}, numpy"
        f" {milliseconds[NUMPY]:.1f}: {ratio['median']:.2f} times (p10 {ratio['p10']:.2f}, p90 {ratio['p90']:.2f});"
        f" without a thread {figures['ratio'][UNTHREADED]['median']:.2f} times.",
        ratio["median"] <= MOST,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    values = medians(figures["milliseconds"])
    texts = [f"{values[NUMPY]:.1f} ms"]
    for name in (LOADER, UNTHREADED):
        ratio = figures["ratio"][name]
        texts.append(f"{values[name]:.1f} ms\n{ratio['median']:.2f} times")
    figure, (axes,) = make()
    _plot.bars(axes, values, texts, xlabel=f"milliseconds an epoch of {figures['rows']:,} rows of one pixel, median")
    limit = MOST * values[NUMPY]
    axes.axvline(limit, color=_plot.WARM, linestyle="--", linewidth=1.5)
    axes.text(limit, 2.52, f" the aim: {MOST} times numpy's", color=_plot.WARM, size=9, va="bottom")
    axes.set_xlim(right=max(*values.values(), limit) * 1.3)
    return figure
