"""Does saved data load straight to a device, and does DataParallel move nested batches there by itself?

From a file to the first shuffled batch on the device: torch.load(map_location) of a saved tensor, the same with mmap=True, and
ours, which opens the store and gathers (on a GPU with the store resident there). DataParallel's own moving of a nest is
timed beside reader.to_device, on a GPU alone. Files are in the page cache. Checked: the batch is on the device, with those rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reader import MemmapDataset, MemmapLoader, to_device
from scripts.common import plot
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOOPS, ClaimResult, best_device, lacking, medians, milliseconds

CLAIM = "torch.load(map_location) brings saved data straight to a device; DataParallel moves nested batches by itself."
SOURCE = LOOPS

ROUNDS, BATCH = 7, 256
LOAD, MAPPED, OURS = "torch.load(map_location)", "torch.load(mmap=True)", "MemmapLoader"
PARALLEL, MOVED = "DataParallel", "to_device"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds to the first batch, and of a nest moved."""
    rows, side, batch, rounds = (16, 32, 8, 1) if quick else (4_096, 224, BATCH, ROUNDS)
    device = best_device()
    store = random_store(work, rows, side)
    saved = work / f"saved-{rows}x{side}.pt"
    if not saved.exists():
        torch.save(MemmapDataset(store).store.pixels.clone(), saved)
    figures: dict[str, Any] = {"device": device.type, "mib": rows * side * side * 3 / 2**20, "not_measured": {}}
    figures["first_batch_ms"] = milliseconds(first_batches(store, saved, batch, device), device, rounds)
    if device.type == "cuda":
        figures["nest_ms"] = milliseconds(moves(device), device, rounds)
    else:
        figures["not_measured"] = {"a GPU, and DataParallel": "no GPU"}
    return figures


def first_batches(store: Path, saved: Path, size: int, device: torch.device) -> dict[str, Callable[[], torch.Tensor]]:
    """Return the ways to a first batch, uint8[size, H, W, 3] on the device; raises if one is not rows of the store."""
    expected = MemmapDataset(store).store.pixels
    rows = torch.randperm(len(expected), generator=torch.Generator().manual_seed(0))[:size]

    def loaded(**options: Any) -> torch.Tensor:
        pixels = torch.load(saved, **options)
        return pixels[rows.to(pixels.device)].to(device)

    def ours() -> torch.Tensor:
        residency = "gpu" if device.type == "cuda" else "auto"
        data = MemmapDataset(store)
        with MemmapLoader(data, size, sampler=rows.tolist(), device=device, residency=residency) as loader:
            images, _ = next(iter(loader))
            return images.movedim(-3, -1).clone()

    ways = {LOAD: lambda: loaded(map_location=device), MAPPED: lambda: loaded(mmap=True), OURS: ours}
    for name, way in ways.items():
        found = way()
        if found.device.type != device.type or not torch.equal(found.cpu(), expected[rows]):
            raise RuntimeError(f"{name}: the first batch is not those rows on {device}.")
    return ways


def moves(device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return the ways to move a nest; raises if DataParallel leaves a part of it where it was."""

    class Same(nn.Module):
        def forward(self, nest: Any) -> Any:
            return nest

    nest = {"images": [torch.zeros(8, 3, 224, 224), torch.zeros(8, 3, 224, 224)], "label": {"y": torch.zeros(8)}}
    parallel = nn.DataParallel(Same().to(device), device_ids=[torch.cuda.current_device()])
    moved = parallel(nest)
    if not all(t.is_cuda for t in [*moved["images"], moved["label"]["y"]]):
        raise RuntimeError("DataParallel has not moved all of the nest.")
    return {PARALLEL: lambda: parallel(nest), MOVED: lambda: to_device(nest, device)}


def conclude(figures: dict[str, Any]) -> ClaimResult:
    first = medians(figures["first_batch_ms"])
    reported = ", ".join(f"{name} {value:,.0f}" for name, value in first.items())
    nest = "".join(f"; a nest moved by {name} {of['median']:.2f}" for name, of in figures.get("nest_ms", {}).items())
    return ClaimResult(
        f"The first batch comes after {first[LOAD]:.0f} ms by torch.load, {first[MAPPED]:.0f} with mmap=True,"
        f" {first[OURS]:.0f} from a store",
        f"Milliseconds to the first batch on {figures['device']}, of {figures['mib']:,.0f} MiB:"
        f" {reported}{nest}{lacking(figures)}.",
        # that it is moved at all is checked while it is measured
        True if "nest_ms" in figures else None,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    values = medians(figures["first_batch_ms"])
    label = f"milliseconds from the file to the first shuffled batch on {figures['device']}, median, log scale"
    plot.bars(axes, values, [f"{value:,.0f} ms" for value in values.values()], xlabel=label, log=True)
    return figure
