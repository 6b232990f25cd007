"""Is an epoch's order made faster on the device in groups, shuffled inside, than as a permutation of all rows?

The slides' remedy where the rows are on the device already: only making the order is timed, and gathering a batch by it, which
memory may like more where rows of a group are together. Checked: each order has every row once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from scripts.common import plot
from scripts.studies.claims._claim import LOOPS, ClaimResult
from scripts.studies.claims._sending import device_or_not_measured, milliseconds

CLAIM = "On the device, too, groups in random order, shuffled inside, come faster than a permutation of all rows."
SOURCE = LOOPS

ROWS, GROUP, ROUNDS = (100_000, 1_000_000, 10_000_000, 100_000_000), 1000, 15
PERMUTATION, GROUPS = "torch.randperm", "groups, shuffled inside"
COLORS = {PERMUTATION: plot.LINES[0], GROUPS: plot.OURS}


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds of each way by the number of rows."""
    device = device_or_not_measured()
    return timed(device, *((ROWS[:1], 2) if quick else (ROWS, ROUNDS)))


def timed(device: torch.device, counts: tuple[int, ...], rounds: int) -> dict[str, Any]:
    """Time the ways in turns, after a round that does not count."""
    found: dict[str, dict[str, Any]] = {}
    for count in counts:
        found[str(count)] = milliseconds(ways_to(count, device), device, rounds, untimed=1)
    return {"group": GROUP, "milliseconds": found}


def ways_to(count: int, device: torch.device) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the ways to make an order of int64[count]; raises if one is no permutation."""
    ways: dict[str, Callable[[], torch.Tensor]] = {
        PERMUTATION: lambda: torch.randperm(count, device=device),
        GROUPS: lambda: in_groups(count, device),
    }
    for name, way in ways.items():
        if not torch.equal(way().sort().values, torch.arange(count, device=device)):
            raise RuntimeError(f"{name} does not give each of {count} rows once.")
    return ways


def in_groups(count: int, device: torch.device) -> torch.Tensor:
    """Put groups of 1,000 in random order, and shuffle each by random numbers of its own."""
    starts = torch.randperm(count // GROUP, device=device)[:, None] * GROUP
    return (starts + torch.rand(count // GROUP, GROUP, device=device).argsort(1)).view(-1)


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found = figures["milliseconds"]
    faster = {count: of[PERMUTATION]["median"] / of[GROUPS]["median"] for count, of in found.items()}
    reported = "; ".join(
        f"{int(count):,} rows: {of[PERMUTATION]['median']:.2f} and {of[GROUPS]['median']:.2f}"
        for count, of in found.items()
    )
    return ClaimResult(
        f"On the device groups come {min(faster.values()):.1f} to {max(faster.values()):.1f} times as fast as torch.randperm",
        f"Milliseconds of torch.randperm and of groups: {reported}.",
        min(faster.values()) > 1,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    found = figures["milliseconds"]
    for name, color in COLORS.items():
        axes.plot(
            [int(count) for count in found],
            [of[name]["median"] for of in found.values()],
            "o-",
            color=color,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    plot.written_out(axes.xaxis)
    plot.written_out(axes.yaxis)
    axes.set_xlabel("rows of the epoch, log scale")
    axes.set_ylabel("milliseconds to make the order, log scale")
    axes.legend(frameon=False)
    return figure
