"""Do images arrive sooner as bytes that the device converts, or as floats that the host has made of them?

Both begin with uint8 images on the host, and end with the same float32 images in [0, 1] on the device. The bytes go from pinned
memory; the floats are made into pinned memory. Once alone, once inside a step of training with automatic mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from scripts.common import plot
from scripts.studies.claims._claim import BATCHES, SENDING, SIZES, ClaimResult, MissingRequirement, milliseconds

CLAIM = "Images sent as uint8 and converted on the device arrive sooner than floats, the more so the larger they are."
SOURCE = SENDING

BYTES, FLOATS = "uint8, then converted", "converted, then sent"
TRAINING = ", training"
ROUNDS = 30

# size -> batch -> way -> milliseconds
Figures = dict[str, dict[str, dict[str, Any]]]


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds a batch of both, alone and in training.

    Raises:
        MissingRequirement: there is no device.
    """
    if not torch.cuda.is_available():
        raise MissingRequirement("no GPU: torch sees no CUDA device.")
    options = (SIZES[:1], BATCHES[:1], 2) if quick else (SIZES, BATCHES, ROUNDS)
    return {"milliseconds": swept(torch.device("cuda"), *options)}


def swept(device: torch.device, sizes: Sequence[tuple[int, int]], batches: Sequence[int], rounds: int) -> Figures:
    """Time the ways to send random images, uint8[B, C, H, W] on the host, in turns, over sizes and batches."""
    found: Figures = {}
    for height, width in sizes:
        for batch in batches:
            images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)
            found.setdefault(f"{height}x{width}", {})[str(batch)] = milliseconds(ways(images, device), device, rounds)
    return found


def ways(images: torch.Tensor, device: torch.device) -> dict[str, Callable[[], Any]]:
    """Return the ways to send a batch; raises if they do not bring the same."""
    source, floats = images, images.float()
    if device.type == "cuda":
        source, floats = source.pin_memory(), floats.pin_memory()

    def as_bytes() -> torch.Tensor:
        return source.to(device, non_blocking=True).float().div_(255)

    def as_floats() -> torch.Tensor:
        torch.div(images, 255, out=floats)
        return floats.to(device, non_blocking=True, copy=True)

    if not torch.allclose(as_bytes(), as_floats(), rtol=0, atol=1e-6):
        raise RuntimeError("the two ways of sending do not give the same images.")
    step = training_step(device)
    return {
        BYTES: as_bytes,
        FLOATS: as_floats,
        BYTES + TRAINING: lambda: step(as_bytes()),
        FLOATS + TRAINING: lambda: step(as_floats()),
    }


def training_step(device: torch.device) -> Callable[[torch.Tensor], None]:
    """Return a step of a small network under autocast."""
    layers = [
        nn.Conv2d(3, 32, 3, 2),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    model = nn.Sequential(*layers, nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(images: torch.Tensor) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            loss = model(images).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def speedups(found: Figures, where: str = "") -> dict[str, float]:
    """Return how many times as fast bytes are: size -> median over its batches."""
    return {
        size: float(np.median([of[FLOATS + where]["median"] / of[BYTES + where]["median"] for of in batches.values()]))
        for size, batches in found.items()
    }


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found: Figures = figures["milliseconds"]
    alone, training = speedups(found), speedups(found, TRAINING)
    reported = ", ".join(f"{size} {times:.1f}" for size, times in alone.items())
    reported_training = ", ".join(f"{size} {times:.1f}" for size, times in training.items())
    first, *_, last = alone.values() if len(alone) > 1 else [*alone.values()] * 2
    return ClaimResult(
        f"As uint8 a batch arrives {min(alone.values()):.1f} to {max(alone.values()):.1f} times as fast",
        f"Times as fast as floats: {reported}; inside a training step: {reported_training}.",
        min(alone.values()) > 1 and last >= first,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, (axes,) = make()
    found: Figures = figures["milliseconds"]
    for color, (size, batches) in zip((plot.OURS, *plot.LINES), found.items(), strict=False):
        ratios = [of[FLOATS]["median"] / of[BYTES]["median"] for of in batches.values()]
        axes.plot([int(batch) for batch in batches], ratios, "o-", color=color, label=size)
    axes.axhline(1, color=plot.GRAY, linewidth=1)
    axes.set_ylim(bottom=0)
    sizes = sorted({int(batch) for of in found.values() for batch in of})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(batch) for batch in sizes])
    axes.set_xlabel("images a batch")
    axes.set_ylabel(f"times as fast: {BYTES},\nagainst {FLOATS}")
    axes.legend(frameon=False)
    return figure
