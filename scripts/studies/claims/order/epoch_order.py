"""What does the order of an epoch cost, from 100,000 to 100 million rows?

torch.randperm and numpy's permutation make all of it before the first batch; so does the slides' remedy (groups in random
order, each shuffled inside), faster. Ours compute 65,536 positions at a time, as MemmapLoader does: "full" by a keyed
bijection, "block" a window of 32 blocks of 8 MiB at a time. Timed are the way to the first batch, and the whole epoch;
memory is the rise of the process's peak. Checked up to 1 million: each order has every row once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reader.order import BlockOrder, permuted
from scripts.common import plot
from scripts.common.timing import in_turns
from scripts.studies.claims._claim import LOOPS, ClaimResult, in_child

CLAIM = "Random numbers for an epoch of a big array are slow; groups in random order, shuffled inside, are fast."
SOURCE = LOOPS

RANDPERM, NUMPY, GROUPS = "torch.randperm", "numpy permutation", "groups, shuffled inside"
FULL, BLOCK = 'MemmapLoader "full"', 'MemmapLoader "block"'
COLORS = {RANDPERM: plot.LINES[0], NUMPY: plot.LINES[1], GROUPS: plot.LINES[2], FULL: plot.OURS}
COLORS[BLOCK] = plot.OURS_LIGHT
GROUP = 1000
# What MemmapLoader asks an order for at a time, and its blocks, of 224 x 224 x 3.
CHUNK = 1 << 16
BLOCK_ROWS, WINDOW_BLOCKS = 55, 32
CHECKED = 1_000_000
TURNS = 3


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return seconds to the first batch and of the epoch, and MiB, by order and count."""
    counts = [10_000, 100_000] if quick else [10**5, 10**6, 10**7, 10**8]
    ways = {RANDPERM: randperm, NUMPY: numpy_permutation, GROUPS: groups, FULL: full, BLOCK: block}
    found: dict[str, Any] = {name: {"first": [], "whole": [], "mib": []} for name in ways}
    for count in counts:
        for name, way in ways.items():
            if count <= CHECKED and not in_child(has_each_row, way, count):
                raise RuntimeError(f"{name}: an epoch of {count} rows does not have each of them once.")
        turns = in_turns({name: partial(in_child, one_epoch, way, count) for name, way in ways.items()}, TURNS)
        for name, taken in turns.items():
            medians = np.median(taken, axis=0)
            for key, value in zip(("first", "whole", "mib"), medians, strict=True):
                found[name][key].append(round(float(value), 7))
    return {"counts": counts, "orders": found}


def randperm(count: int) -> Iterator[np.ndarray]:
    yield torch.randperm(count).numpy()


def numpy_permutation(count: int) -> Iterator[np.ndarray]:
    yield np.random.default_rng().permutation(count)


def groups(count: int) -> Iterator[np.ndarray]:
    generator = np.random.default_rng()
    starts = generator.permutation(count // GROUP) * GROUP
    rows = starts[:, None] + np.arange(GROUP)
    yield generator.permuted(rows, axis=1, out=rows).reshape(-1)


def full(count: int) -> Iterator[np.ndarray]:
    for start in range(0, count, CHUNK):
        yield permuted(count, start, min(count, start + CHUNK), seed=0, epoch=1)


def block(count: int) -> Iterator[np.ndarray]:
    order = BlockOrder(count, BLOCK_ROWS, WINDOW_BLOCKS, seed=0, epoch=1)
    for start in range(0, count, CHUNK):
        yield order.rows(start, min(count, start + CHUNK))


def has_each_row(way: Callable[[int], Iterator[np.ndarray]], count: int) -> bool:
    return bool(np.array_equal(np.sort(np.concatenate(list(way(count)))), np.arange(count)))


def one_epoch(way: Callable[[int], Iterator[np.ndarray]], count: int) -> tuple[float, float, float]:
    """Return seconds to the first batch, seconds of the epoch, and by how many MiB the process's peak rose."""
    # what runs first touches pages of its libraries
    for piece in way(10_000):
        del piece
    before = reset_peak()
    started = time.perf_counter()
    pieces = way(count)
    piece = next(pieces)
    first = time.perf_counter() - started
    for piece in pieces:
        del piece
    total = time.perf_counter() - started
    return first, total, (status("VmHWM") - before) / 1024


def reset_peak() -> int:
    """Make the peak of this process's memory what it has now, in KiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def conclude(figures: dict[str, Any]) -> ClaimResult:
    orders, count = figures["orders"], figures["counts"][-1]
    first = {name: found["first"][-1] for name, found in orders.items()}
    total = {name: found["whole"][-1] for name, found in orders.items()}
    mib = {name: found["mib"][-1] for name, found in orders.items()}
    slow = min(first[RANDPERM], first[NUMPY])
    return ClaimResult(
        f"An epoch of {count:,} rows: the first batch waits {slow:.1f} s for a permutation,"
        f" {first[GROUPS]:.1f} s for groups, {max(first[FULL], first[BLOCK]) * 1e3:.0f} ms at most for ours",
        f"At {count:,} rows: torch.randperm {total[RANDPERM]:.1f} s and {mib[RANDPERM]:,.0f} MiB, numpy {total[NUMPY]:.1f} s,"
        f" groups {total[GROUPS]:.1f} s; ours over the whole epoch {total[FULL]:.1f} s (full) and {total[BLOCK]:.1f} s"
        f" (block), first batch after {first[FULL] * 1e3:.1f} and {first[BLOCK] * 1e3:.1f} ms,"
        f" {mib[FULL]:.0f} and {mib[BLOCK]:.0f} MiB.",
        slow / first[GROUPS] > 1.5,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=3)
    figure.subplots_adjust(wspace=0.3)
    titles = {
        "first": "to the first batch, seconds",
        "whole": "whole epoch, seconds",
        "mib": "memory, MiB",
    }
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for name, found in figures["orders"].items():
            values = np.maximum(found[key], 0.1) if key == "mib" else found[key]
            axes.plot(figures["counts"], values, "o-", color=COLORS[name], label=name)
        axes.margins(0.1, 0.09)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("rows of the epoch")
        plot.written_out(axes.xaxis)
        plot.written_out(axes.yaxis)
    plot.names_below(figure, panels[0])
    return figure
