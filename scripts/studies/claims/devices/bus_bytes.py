"""Do images arrive sooner as bytes that the device converts, or as floats that the host has made of them?

Both begin with uint8 images on the host, and end with the same float32 images in [0, 1] on the device. The bytes go from pinned
memory; the floats are made into pinned memory. Once alone, once inside a step of training with automatic mixed precision.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from scripts.studies.claims._claim import SENDING, ClaimResult
from scripts.studies.claims._sending import Figures, Ways, draw_speedups, measured, pinned_if_cuda, speedups

CLAIM = "Images sent as uint8 and converted on the device arrive sooner than floats, the more so the larger they are."
SOURCE = SENDING

BYTES, FLOATS = "uint8, then converted", "converted, then sent"
TRAINING = ", training"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds a batch of both, alone and in training."""
    return measured(ways, quick)


def ways(images: torch.Tensor, device: torch.device) -> Ways:
    """Return the ways to send a batch; raises if they do not bring the same."""
    source, floats = pinned_if_cuda(images, device), pinned_if_cuda(images.float(), device)

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


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found: Figures = figures["milliseconds"]
    alone = speedups(found, FLOATS, BYTES)
    training = speedups(found, FLOATS + TRAINING, BYTES + TRAINING)
    reported = ", ".join(f"{size} {times:.1f}" for size, times in alone.items())
    reported_training = ", ".join(f"{size} {times:.1f}" for size, times in training.items())
    first, *_, last = alone.values() if len(alone) > 1 else [*alone.values()] * 2
    return ClaimResult(
        f"As uint8 a batch arrives {min(alone.values()):.1f} to {max(alone.values()):.1f} times as fast",
        f"Times as fast as floats: {reported}; inside a training step: {reported_training}.",
        min(alone.values()) > 1 and last >= first,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    return draw_speedups(make, figures["milliseconds"], FLOATS, BYTES)
