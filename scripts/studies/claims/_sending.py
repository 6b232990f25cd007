"""What the claims of sending images to a device share: sizes, batches, a timed call, a picture. No GPU has run them yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from scripts.common import plot
from scripts.common.figures import spread
from scripts.common.timing import collection_paused, in_turns, seconds
from scripts.studies.claims._claim import MissingRequirement

# height x width, and batches: the slides'
SIZES = ((384, 384), (640, 480), (1280, 960))
BATCHES = (8, 16, 32, 64)
ROUNDS = 30

# size -> batch -> way -> milliseconds
Figures = dict[str, dict[str, dict[str, Any]]]
Ways = dict[str, Callable[[], Any]]
WaysOf = Callable[[torch.Tensor, torch.device], Ways]


def device_or_not_measured() -> torch.device:
    """Return the device to measure on.

    Raises:
        MissingRequirement: there is none.
    """
    if not torch.cuda.is_available():
        raise MissingRequirement("no GPU: torch sees no CUDA device.")
    return torch.device("cuda")


def measured(ways_of: WaysOf, quick: bool) -> dict[str, Any]:
    """Return milliseconds a batch of the ways to send it.

    Raises:
        MissingRequirement: there is no device.
    """
    options = (SIZES[:1], BATCHES[:1], 2) if quick else (SIZES, BATCHES, ROUNDS)
    return {"milliseconds": swept(ways_of, device_or_not_measured(), *options)}


def swept(
    ways_of: WaysOf,
    device: torch.device,
    sizes: Sequence[tuple[int, int]] = SIZES,
    batches: Sequence[int] = BATCHES,
    rounds: int = ROUNDS,
) -> Figures:
    """Time the ways to send random images, uint8[B, C, H, W] on the host, in turns, over sizes and batches."""
    found: Figures = {}
    for height, width in sizes:
        for batch in batches:
            images = torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8)
            figures = milliseconds(ways_of(images, device), device, rounds, untimed=2)
            found.setdefault(f"{height}x{width}", {})[str(batch)] = figures
    return found


def milliseconds(ways: Ways, device: torch.device, rounds: int, *, untimed: int) -> dict[str, Any]:
    """Time the ways in turns, each until the device has ended it."""
    turns = {name: partial(seconds, way, device) for name, way in ways.items()}
    with collection_paused():
        found = in_turns(turns, rounds, untimed=untimed)
    return {name: spread([1e3 * value for value in values], 4) for name, values in found.items()}


def pinned_if_cuda(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor.pin_memory() if device.type == "cuda" else tensor


def speedups(found: Figures, slow: str, fast: str) -> dict[str, float]:
    """Return how many times as fast the fast way is: size -> median over its batches."""
    return {
        size: float(np.median([of[slow]["median"] / of[fast]["median"] for of in batches.values()]))
        for size, batches in found.items()
    }


def draw_speedups(make: Any, found: Figures, slow: str, fast: str) -> Any:
    """Draw, for each size, how many times as fast the fast way is over the batch."""
    figure, (axes,) = make()
    for color, (size, batches) in zip((plot.OURS, *plot.LINES), found.items(), strict=False):
        ratios = [of[slow]["median"] / of[fast]["median"] for of in batches.values()]
        axes.plot([int(batch) for batch in batches], ratios, "o-", color=color, label=size)
    axes.axhline(1, color=plot.GRAY, linewidth=1)
    axes.set_ylim(bottom=0)
    batches = sorted({int(batch) for of in found.values() for batch in of})
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.set_xlabel("images a batch")
    axes.set_ylabel(f"times as fast: {fast},\nagainst {slow}")
    axes.legend(frameon=False)
    return figure
