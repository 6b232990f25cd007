"""How random is each order of an epoch, on a store that is sorted by class?

As many rows as ImageNet has, in 1,000 classes one after the other; blocks of 8 MiB are 55 rows of 224 x 224 x 3. Of each order:

- neighbors: mean distance in the store of rows that follow each other, 1 where they are independent, 0 in store order;
- displacement: mean distance of a row from where it stands in the store, 1 for a permutation;
- classes: how many different ones a batch of 256 has, and the total variation distance of its labels from the epoch's.

"quasi-random" is like FFCV's order (its ffcv/traversal_order/quasi_random.py): pages of 8 MiB in random order, each shuffled
inside, 2 x batch_size of them open at a time, each row from a random one. "groups" are those of the slides, of 1,000 rows. Over
canonical nodes, with a rank on each, a batch is one rank's; its neighbors stand in one node's part of the store.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np

from reader.order import BlockOrder, CanonicalNodes, Cut, permuted
from scripts.common import plot
from scripts.studies.claims._claim import LOOPS, ClaimResult

CLAIM = "Groups in random order, shuffled inside, can stand for a permutation of all rows."
SOURCE = LOOPS

BATCH = 256
BLOCK_ROWS, ROW_BYTES = 55, 224 * 224 * 3
WINDOWS = (1, 4, 8, 32, 128, 512)
DEFAULT_WINDOW = 32
NODES = 8
GROUP = 1000
NUMPY, FULL, QUASI, GROUPS, CANONICAL = (
    "numpy permutation",
    'pixpack "full"',
    "quasi-random, like FFCV: 4.2 GB",
    "groups of 1,000",
    f'pixpack "block", {NODES} canonical nodes',
)
SORTED, MIXED = "sorted", "packed with --shuffle"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return the figures of each order, on the sorted store and on one packed in random order."""
    rows, classes = (20_000, 100) if quick else (1_281_167, 1_000)
    labels = np.arange(rows) * classes // rows
    orders = {NUMPY: np.random.default_rng(0).permutation(rows), FULL: permuted(rows, 0, rows, seed=0)}
    for window in WINDOWS:
        orders[block_name(window)] = BlockOrder(rows, BLOCK_ROWS, window, seed=0, epoch=0).rows(0, rows)
    orders |= {CANONICAL: canonical(rows), QUASI: quasi_random(rows), GROUPS: grouped(rows)}
    for name, order in orders.items():
        if not np.array_equal(np.sort(order), np.arange(rows)):
            raise RuntimeError(f"{name}: not every row comes once.")
    mixed = np.random.default_rng(1).permutation(labels)
    return {
        "rows": rows,
        "classes": classes,
        "batch_size": BATCH,
        "orders": {
            name: distances(order) | {SORTED: mixing(labels[order], classes), MIXED: mixing(mixed[order], classes)}
            for name, order in orders.items()
        },
    }


def block_name(window: int) -> str:
    """Name an order by its window and what that holds in memory; FFCV's 2 x 256 pages are those of a window of 512."""
    megabytes = window * BLOCK_ROWS * ROW_BYTES / 1e6
    size = f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"
    return f'pixpack "block", {window}: {size}' + (", default" if window == DEFAULT_WINDOW else "")


def canonical(rows: int) -> np.ndarray:
    """Return an epoch, step after step, of one rank on each node."""
    nodes, cut = CanonicalNodes(rows, NODES), Cut(rows, BATCH, False, world_size=NODES, pad=False)
    blocks = [
        BlockOrder(nodes.rows(n), BLOCK_ROWS, DEFAULT_WINDOW, seed=0, epoch=0, first=nodes.first(n), part=n)
        for n in range(NODES)
    ]
    of_nodes = [order.rows(0, order.count) for order in blocks]
    found, position = [], 0
    while position < rows:
        step = cut.step(position)
        found += [of_nodes[node][start:stop] for node, start, stop in nodes.pieces(position, step.rows, 0, step.rows)]
        position = step.after
    return np.concatenate(found)


def quasi_random(rows: int) -> np.ndarray:
    chance = random.Random(0)
    starts = np.random.default_rng(0).permutation(range(0, rows, BLOCK_ROWS)).tolist()
    order, pages = [], []
    while pages or starts:
        while starts and len(pages) < 2 * BATCH:
            start = starts.pop()
            page = list(range(start, min(start + BLOCK_ROWS, rows)))
            chance.shuffle(page)
            pages.append(page)
        chosen = chance.randrange(len(pages))
        order.append(pages[chosen].pop())
        if not pages[chosen]:
            del pages[chosen]
    return np.array(order)


def grouped(rows: int) -> np.ndarray:
    generator = np.random.default_rng(0)
    starts = generator.permutation(range(0, rows, GROUP))
    return np.concatenate([generator.permutation(range(start, min(start + GROUP, rows))) for start in starts])


def distances(order: np.ndarray) -> dict[str, float]:
    """Mean distances, in units of that of two independent rows, which is a third of the store."""
    unit = len(order) / 3
    return {
        "neighbors": round(float(np.abs(np.diff(order)).mean() / unit), 3),
        "displacement": round(float(np.abs(order - np.arange(len(order))).mean() / unit), 3),
    }


def mixing(labels: np.ndarray, classes: int) -> dict[str, float]:
    """How the labels of whole batches are distributed, mean over the epoch."""
    batches = labels[: len(labels) // BATCH * BATCH].reshape(-1, BATCH)
    counts = np.stack([np.bincount(batch, minlength=classes) for batch in batches])
    expected = np.bincount(labels, minlength=classes) / len(labels)
    variation = np.abs(counts / BATCH - expected).sum(axis=1) / 2
    return {
        "classes_a_batch": round(float((counts > 0).sum(axis=1).mean()), 1),
        "total_variation": round(float(variation.mean()), 3),
    }


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found, default = figures["orders"], block_name(DEFAULT_WINDOW)
    classes = {name: one[SORTED]["classes_a_batch"] for name, one in found.items()}
    mixed = found[default][MIXED]["classes_a_batch"]
    return ClaimResult(
        f'On a store sorted by class, a "full" batch has {classes[FULL]:.0f} classes, as a permutation; "block" has'
        f" {classes[default]:.0f}, and {mixed:.0f} once the store is packed with --shuffle",
        f"Classes in a batch of {figures['batch_size']}, {figures['classes']:,} classes sorted: permutation {classes[NUMPY]:.0f},"
        f" full {classes[FULL]:.0f}, quasi-random {classes[QUASI]:.0f}, {NODES} canonical nodes {classes[CANONICAL]:.0f}, block "
        + ", ".join(f"{classes[block_name(w)]:.0f} (window {w})" for w in WINDOWS)
        + f", groups {classes[GROUPS]:.0f}; block on a store packed with --shuffle {mixed:.0f}.",
        classes[GROUPS] > 0.95 * classes[NUMPY],
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=3)
    figure.subplots_adjust(wspace=0.08)
    found = figures["orders"]
    titles = ["distance of neighbors", "displacement", f"classes in a batch of {figures['batch_size']}"]
    columns = [{name: one[key] for name, one in found.items()} for key in ("neighbors", "displacement")]
    columns.append({name: one[SORTED]["classes_a_batch"] for name, one in found.items()})
    for axes, title, values in zip(panels, titles, columns, strict=True):
        form = "{:.2f}" if title != titles[-1] else "{:.0f}"
        plot.bars(axes, values, [form.format(value) for value in values.values()], xlabel="")
        axes.set_title(title)
        axes.set_xlabel(
            "1 = independent rows" if title != titles[-1] else f"of {figures['classes']:,}, sorted by class"
        )
    for axes in panels[1:]:
        axes.set_yticklabels([])
    return figure
