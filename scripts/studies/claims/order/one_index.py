"""What do 100 items cost one by one, and what as one index?

On the slides' tensor of numbers, and on stores: rows of one pixel, where all is overhead, and of 224 x 224, where copying
counts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader import MemmapDataset
from scripts.common import plot
from scripts.common.figures import spread
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOOPS, Calls, ClaimResult, seconds_in_turns

CLAIM = "100 __getitem__ calls cost 122 µs, one batched index 3.42 µs: 36 times less."
SOURCE = LOOPS

ITEMS = 100
ROUNDS = 30
NUMBERS = "torch.arange"
# The exact factor is that of a machine; the claim stands where it is an order of magnitude.
LEAST = 10


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return microseconds of both ways on each kind of data."""
    rows, side, rounds = (300, 32, 2) if quick else (20_000, 224, ROUNDS)
    numbers = torch.arange(300_000)
    ways = {
        f"{NUMBERS} singly": Calls(lambda: torch.stack([numbers[i] for i in range(ITEMS)]), 50),
        f"{NUMBERS} at once": Calls(lambda: numbers[torch.arange(ITEMS)], 1000),
    }
    for kind, store in ("1 x 1", random_store(work, rows, 1)), (f"{side} x {side}", random_store(work, rows, side)):
        data = MemmapDataset(store, as_tuple=False)
        index = np.random.default_rng(0).permutation(rows)[:ITEMS].tolist()
        if not torch.equal(singly(data, index), data[index].pixels):
            raise RuntimeError("100 rows one by one are not the rows of one index.")
        ways[f"MemmapDataset, {kind} singly"] = Calls(lambda d=data, i=index: singly(d, i), 10)
        ways[f"MemmapDataset, {kind} at once"] = Calls(lambda d=data, i=index: d[i], 50)
    found = seconds_in_turns(ways, rounds)
    microseconds = {name: [1e6 * s for s in values] for name, values in found.items()}
    kinds = [name.removesuffix(" singly") for name in ways if name.endswith(" singly")]
    return {
        kind: {way: spread(microseconds[f"{kind} {way}"], 2) for way in ("singly", "at once")}
        | {"ratio": round(float(np.median(found[f"{kind} singly"]) / np.median(found[f"{kind} at once"])), 1)}
        for kind in kinds
    }


def singly(data: MemmapDataset, index: list[int]) -> torch.Tensor:
    return torch.stack([data[i].pixels for i in index])


def conclude(figures: dict[str, Any]) -> ClaimResult:
    parts = [
        f"{kind}: {found['singly']['median']:,.0f} and {found['at once']['median']:,.1f} µs ({found['ratio']:.0f} times)"
        for kind, found in figures.items()
    ]
    stores = " and ".join(f"{found['ratio']:.0f}" for kind, found in figures.items() if kind != NUMBERS)
    return ClaimResult(
        f"One index of 100 items is {figures[NUMBERS]['ratio']:.0f} times as fast as 100 items;"
        f" of 100 rows of a store {stores} times",
        "; ".join(parts) + ".",
        figures[NUMBERS]["ratio"] >= LEAST,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    values = {
        f"{kind}, {way}": found[way]["median"] for kind, found in figures.items() for way in ("singly", "at once")
    }
    texts = [f"{value:,.1f} µs" for value in values.values()]
    plot.bars(axes, values, texts, xlabel="microseconds for 100 items, median, log scale", log=True)
    for bar, name in zip(axes.patches, values, strict=True):
        bar.set_color(plot.OURS if name.endswith("at once") else plot.OTHER)
    return figure
