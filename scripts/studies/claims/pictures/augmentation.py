"""Where do augmentations belong: on the CPU, on the GPU, or on both?

A MemmapLoader over rows of 256 x 256, in turns, whole epochs. All on the CPU: crop and resize, flip, jitter of colors and
normalizing, then floats are sent. All on the GPU: uint8 is sent first. Both: crop and flip on the CPU, the rest on the GPU.
Without a GPU the chain is timed on the CPU stage by stage, which shows what a GPU would take over. Checked: up to the last step
pixels stay uint8, and that step makes them float32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from reader import (
    ColorJitter,
    ImageBatch,
    MemmapDataset,
    MemmapLoader,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
)
from scripts.common import plot
from scripts.common.figures import spread
from scripts.common.timing import drain
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import SENDING, Calls, ClaimResult, best_device, lacking, medians, seconds_in_turns

CLAIM = "Augmentations keep uint8, and are done faster on the GPU than on the CPU or on both."
SOURCE = SENDING

ROUNDS = 5
BARE, CROPPED, JITTERED = "MemmapLoader, no augmentation", "CPU: crop, flip", "CPU: crop, flip, jitter"
ON_CPU, ON_GPU, ON_BOTH = "all on the CPU", "all on the GPU", "crop, flip on the CPU, the rest on the GPU"

Stage = Callable[[Any], Any]


class Chain:
    """Stages one after the other."""

    def __init__(self, *stages: Stage) -> None:
        self._stages = stages

    def __call__(self, batch: Any) -> Any:
        for stage in self._stages:
            batch = stage(batch)
        return batch


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s of each way."""
    rows, side, size, batch, rounds = (16, 32, 24, 8, 1) if quick else (1024, 256, 224, 128, ROUNDS)
    device = best_device()
    data = MemmapDataset(random_store(work, rows, side), as_tuple=False)
    found = ways(data, size, batch, device)
    seconds = seconds_in_turns(
        {name: Calls(lambda e=epoch: drain(e(), device)) for name, epoch in found.items()}, rounds
    )
    return {
        "rows": rows,
        "side": side,
        "images_per_second": {name: spread([rows / s for s in values], 1) for name, values in seconds.items()},
        "not_measured": {} if ON_GPU in found else dict.fromkeys((ON_GPU, ON_BOTH), "no GPU"),
    }


def ways(data: MemmapDataset, size: int, batch: int, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return each way as an epoch of batches on the device; raises if a stage gives another type than it should."""
    moved, jitter = Chain(RandomResizedCrop(size), RandomHorizontalFlip()), ColorJitter(0.4, 0.4, 0.4)
    to_floats = {where: Normalize.of(data.manifest).to(where) for where in {"cpu", device.type}}

    def normalized(batch: ImageBatch) -> torch.Tensor:
        return to_floats[batch.pixels.device.type](batch.images)

    def loader(transform: Stage | None, where: str = "cpu") -> MemmapLoader:
        options: dict[str, Any] = {"shuffle": "full", "residency": "cache", "as_tuple": False}
        return MemmapLoader(data, batch, device=where, transform=transform, **options)

    chain, some = Chain(moved, jitter, normalized), data[:2]
    if jitter(moved(some)).pixels.dtype != torch.uint8 or chain(some).dtype != torch.float32:
        raise RuntimeError("the augmentations do not keep uint8 until pixels are normalized.")

    def epochs(loader: MemmapLoader) -> Callable[[], Any]:
        return lambda: loader

    on_cpu = loader(chain)
    found: dict[str, Callable[[], Any]] = {
        BARE: epochs(loader(None)),
        CROPPED: epochs(loader(moved)),
        JITTERED: epochs(loader(Chain(moved, jitter))),
        ON_CPU: lambda: (images.to(device, non_blocking=True) for images in on_cpu),
    }
    if device.type == "cuda":
        on_both, rest = loader(moved), Chain(jitter, normalized)
        found[ON_GPU] = epochs(loader(chain, device.type))
        found[ON_BOTH] = lambda: (rest(part.to(device)) for part in on_both)
    return found


def conclude(figures: dict[str, Any]) -> ClaimResult:
    rates = medians(figures["images_per_second"])
    reported = ", ".join(f"{name} {rate:,.0f}" for name, rate in rates.items())
    title = f"Augmentation on the CPU leaves {rates[ON_CPU]:,.0f} of {rates[BARE]:,.0f} images/s"
    if ON_GPU not in rates:
        return ClaimResult(f"{title}; no GPU to take it over", f"Images/s: {reported}{lacking(figures)}.", None)
    best = max((ON_CPU, ON_GPU, ON_BOTH), key=lambda name: rates[name])
    return ClaimResult(f"{title}; fastest: {best}, {rates[best]:,.0f}", f"Images/s: {reported}.", best == ON_GPU)


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    rates = medians(figures["images_per_second"])
    side = figures["side"]
    label = f"images/s, rows of {side} x {side}, median, log scale"
    plot.bars(axes, rates, [f"{rate:,.0f}" for rate in rates.values()], xlabel=label, log=True)
    return figure
