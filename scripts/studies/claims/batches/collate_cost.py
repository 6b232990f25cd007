"""What does putting images together into a batch cost?

default_collate copies 256 images, here views of the mapped file, into a new tensor; a MemmapDataset behind the same
DataLoader copies each row once, from the map into the batch, and its collate has nothing left to do. Both halves of each are
timed: getting the items, and collating them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import default_collate

from reader import MemmapDataset
from scripts.benchmarks.reading._read_ways import touch
from scripts.common import plot
from scripts.common.figures import spread
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOADER_NOTES, Calls, ClaimResult, medians, seconds_in_turns

CLAIM = "Collating images into a batch is a slow step of its own that can be made fast."
SOURCE = LOADER_NOTES

ROUNDS = 30
EACH, OURS = "(pixels, target) each, default_collate", "MemmapDataset.__getitems__"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds of both halves of a batch."""
    rows, side, size, rounds = (256, 32, 16, 2) if quick else (20_000, 224, 256, ROUNDS)
    data = MemmapDataset(random_store(work, rows, side))
    touch(data.store.pixels.numpy())
    orders = torch.randperm(rows)[: rows // size * size].view(-1, size).tolist()
    turn = iter(range(1 << 30))

    def index() -> list[int]:
        return orders[next(turn) % len(orders)]

    # the halves need each other's results: what the last call of the first half has left
    items: dict[str, Any] = {}

    pixels, targets = data.store.pixels, data.targets

    def get_each() -> None:
        items[EACH] = [(pixels[i], targets[i]) for i in index()]

    def get_all() -> None:
        items[OURS] = data.__getitems__(index())

    ways = {f"{EACH}: items": Calls(get_each), f"{EACH}: collate": Calls(lambda: default_collate(items[EACH]))}
    ways |= {f"{OURS}: items": Calls(get_all, 4), f"{OURS}: collate": Calls(lambda: default_collate(items[OURS]), 100)}
    get_each()
    get_all()
    rows_of_one = orders[0]
    together = default_collate([(pixels[i], targets[i]) for i in rows_of_one])
    images, found_targets = default_collate(data.__getitems__(rows_of_one))
    if not (torch.equal(together[0], images.movedim(-3, -1)) and torch.equal(together[1], found_targets)):
        raise RuntimeError("the two ways of collating do not give the same batch.")
    found = seconds_in_turns(ways, rounds)
    milliseconds = {name: spread([1e3 * s for s in values], 4) for name, values in found.items()}
    return {"batch_size": size, "side": side, "milliseconds": milliseconds}


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = medians(figures["milliseconds"])
    slow, ours = found[f"{EACH}: collate"], found[f"{OURS}: collate"]
    both = {way: found[f"{way}: items"] + found[f"{way}: collate"] for way in (EACH, OURS)}
    return ClaimResult(
        f"default_collate takes {slow:.1f} ms a batch, {slow / both[EACH]:.0%} of the work; ours {ours * 1e3:.1f} µs,"
        f" since rows were copied into the batch already",
        f"Batch of {figures['batch_size']}, {figures['side']} x {figures['side']}: items {found[f'{EACH}: items']:.1f} ms and"
        f" default_collate {slow:.1f} ms; ours {found[f'{OURS}: items']:.1f} ms and {ours:.4f} ms,"
        f" {both[EACH] / both[OURS]:.1f} times as fast together.",
        slow > 0.3 * both[EACH] and ours < 0.1 * slow,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    found = medians(figures["milliseconds"])
    for height, (way, colors) in enumerate({OURS: (plot.OURS, plot.WARM), EACH: (plot.OTHER, plot.WARM)}.items()):
        items, collate = found[f"{way}: items"], found[f"{way}: collate"]
        axes.barh(height, items, 0.5, color=colors[0])
        axes.barh(height, collate, 0.5, left=items, color=colors[1])
        axes.text(items + collate, height, f"  items {items:.1f} ms, collate {collate:.3g} ms", va="center", size=10)
    axes.set_yticks([0, 1], [OURS.replace(".", ".\n"), EACH.replace(", ", ",\n")])
    axes.tick_params("y", labelcolor=plot.DARK)
    axes.set_ylim(-0.6, 1.6)
    axes.set_xlim(0, max(axes.get_xlim()) * 1.35)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"milliseconds a batch of {figures['batch_size']} (orange: the collate)")
    return figure
