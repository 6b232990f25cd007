"""Which num_workers and prefetch_factor make DataLoader(MemmapDataset) fastest, and how far is it then from MemmapLoader?

Whole epochs, workers kept (persistent_workers), full shuffle, after one untimed epoch each; MemmapLoader takes a turn in
every round. A loop that does nothing with its batches: what is measured is how fast they can come.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from reader import MemmapDataset, MemmapLoader
from scripts.benchmarks.reading._read_ways import touch
from scripts.common import plot
from scripts.common.figures import ratios, spread
from scripts.common.timing import drain
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOADER_NOTES, Calls, ClaimResult, medians, seconds_in_turns

CLAIM = "num_workers reads in parallel and prefetch_factor queues ahead: both make loading faster."
SOURCE = LOADER_NOTES

ROUNDS = 3
BATCH = 256
LOADER = "MemmapLoader"
# "workers prefetch_factor" in the figures
ALONE = "0 None"
FACTORS = {2: plot.LINES[0], 4: plot.LINES[1], 16: plot.LINES[2]}


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s by workers and prefetch_factor."""
    rows, side, size = (256, 32, 32) if quick else (20_000, 224, BATCH)
    data = MemmapDataset(random_store(work, rows, side))
    touch(data.store.pixels.numpy())
    sweep: list[tuple[int, int | None]] = [(0, None)] + [
        (n, factor) for n in ((2,) if quick else (1, 2, 4, 8)) for factor in FACTORS
    ]
    found: dict[str, Any] = {}
    beside: list[float] = []
    for workers, factor in sweep:
        kept = {"persistent_workers": True, "prefetch_factor": factor} if workers else {}
        theirs = DataLoader(data, size, shuffle=True, num_workers=workers, **kept)
        ours = MemmapLoader(data, size, shuffle="full")
        ways = {
            "theirs": Calls(lambda loader=theirs: drain(loader)),
            LOADER: Calls(lambda loader=ours: drain(loader), 2),
        }
        rates = {name: [rows / s for s in seconds] for name, seconds in seconds_in_turns(ways, ROUNDS).items()}
        ours.close()
        theirs._iterator = None  # ends its workers
        beside += rates[LOADER]
        found[f"{workers} {factor}"] = spread(rates["theirs"], 1) | {"ratio": ratios(rates[LOADER], rates["theirs"])}
    return {"rows": rows, "side": side, "batch_size": size, "images_per_second": found, LOADER: spread(beside, 1)}


def shares(figures: dict[str, Any]) -> dict[str, float]:
    """Images/s as a share of MemmapLoader's in the same round: what disturbs both cancels."""
    return {name: 1 / found["ratio"]["median"] for name, found in figures["images_per_second"].items()}


def conclude(figures: dict[str, Any]) -> ClaimResult:
    share, rates = shares(figures), medians(figures["images_per_second"])
    best = max((name for name in share if name != ALONE), key=lambda name: share[name])
    worst = min(share, key=lambda name: share[name])
    workers, factor = best.split()
    return ClaimResult(
        f"Workers make a mapped store {'slower' if share[best] < share[ALONE] else 'faster'}: a DataLoader reaches"
        f" {share[ALONE]:.2f} of MemmapLoader without, at best {share[best]:.2f} with them",
        f"DataLoader(MemmapDataset), as a share of MemmapLoader in the same round: {share[ALONE]:.2f} with 0 workers"
        f" ({rates[ALONE]:,.0f} images/s), with workers at best {share[best]:.2f} ({workers} workers, prefetch_factor {factor},"
        f" {rates[best]:,.0f} images/s), at worst {share[worst]:.2f}; MemmapLoader {figures[LOADER]['median']:,.0f} images/s.",
        share[best] > share[ALONE],
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    figure.subplots_adjust(right=0.8)
    share = shares(figures)
    counts = sorted({int(name.split()[0]) for name in share})
    ends, colors = {LOADER: 1.0}, {LOADER: plot.OURS}
    for factor, color in FACTORS.items():
        name, some = f"prefetch_factor {factor}", [n for n in counts if n]
        values = [share[f"{n} {factor}"] for n in some]
        axes.plot([counts.index(n) for n in some], values, "o-", color=color)
        ends[name], colors[name] = values[-1], color
    axes.plot([0], [share[ALONE]], "o", color=plot.GRAY, markersize=9)
    beside = {"xytext": (12, 0), "textcoords": "offset points", "va": "center", "size": 9}
    axes.annotate(f"no workers: {share[ALONE]:.2f}", (0, share[ALONE]), **beside)
    axes.axhline(1, color=plot.OURS)
    axes.set_xticks(range(len(counts)), [str(n) for n in counts])
    axes.set_xlim(-0.3, len(counts) - 0.9)
    axes.set_ylim(0, max(1, *share.values()) * 1.1)
    axes.set_xlabel("num_workers of DataLoader(MemmapDataset)")
    axes.set_ylabel("images/s, as a share of MemmapLoader's")
    plot.end_labels(axes, ends, colors)
    return figure
