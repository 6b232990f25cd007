"""How much faster do batches go to a device from pinned memory?

Three ways with the same uint8 images: a plain copy from ordinary memory; pinned again each time, and copied without waiting;
copied without waiting from memory that was pinned once, as MemmapLoader's slots are. Each is timed until the images are there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from scripts.studies.claims._claim import SENDING, ClaimResult
from scripts.studies.claims._sending import Ways, draw_speedups, measured, pinned_if_cuda, speedups

CLAIM = "Copies from pinned memory that do not wait are faster than plain ones."
SOURCE = SENDING

PLAIN, EACH, ONCE = "plain", "pinned each time", "pinned once"


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return milliseconds a batch of the three ways."""
    return measured(ways, quick)


def ways(images: torch.Tensor, device: torch.device) -> Ways:
    """Return the ways to send a batch; raises if they do not bring the same."""
    pinned = pinned_if_cuda(images, device)
    found: Ways = {
        PLAIN: lambda: images.to(device, copy=True),
        EACH: lambda: pinned_if_cuda(images, device).to(device, non_blocking=True, copy=True),
        ONCE: lambda: pinned.to(device, non_blocking=True, copy=True),
    }
    if not all(torch.equal(way().cpu(), images) for way in found.values()):
        raise RuntimeError("the ways of sending do not give the same images.")
    return found


def conclude(figures: dict[str, Any]) -> ClaimResult:
    once = speedups(figures["milliseconds"], PLAIN, ONCE)
    each = speedups(figures["milliseconds"], PLAIN, EACH)
    reported, reported_each = (", ".join(f"{size} {times:.1f}" for size, times in of.items()) for of in (once, each))
    return ClaimResult(
        f"From memory pinned once a batch arrives {min(once.values()):.1f} to {max(once.values()):.1f} times as fast",
        f"Times as fast as a plain copy: {reported}; pinned each time: {reported_each}.",
        min(once.values()) > 1.1,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    return draw_speedups(make, figures["milliseconds"], PLAIN, ONCE)
