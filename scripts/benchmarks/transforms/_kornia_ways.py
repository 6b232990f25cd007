"""kornia's transforms of a batch, which draw parameters for each sample: from uint8 to the floats that they need, not back.

RandomResizedCrop has two ways there, and is measured in both: "slice", its default, resizes each sample's part by itself;
"resample" maps the batch in one call. Neither gives torchvision's pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from scripts.common.figures import rate_cells, ratio_cells

TITLES = ["transform", "beside", "images/s", "min..max", "ratio", "p10..p90"]


def kornia_ways(size: int) -> dict[str, dict[str, Callable[[torch.Tensor], torch.Tensor]]]:
    """Return kornia's ways by our transform's name, none where kornia cannot be imported."""
    try:
        import kornia.augmentation as found
    except ImportError:
        return {}
    flip = found.RandomHorizontalFlip
    named: dict[str, dict[str, list[Any]]] = {
        "RandomHorizontalFlip()": {"kornia": [flip()]},
        f"RandomCrop({size})": {"kornia": [found.RandomCrop((size, size))]},
    }
    crops = {
        f"kornia, {mode}": found.RandomResizedCrop((size, size), cropping_mode=mode) for mode in ("slice", "resample")
    }
    named[f"RandomResizedCrop({size})"] = {name: [crop] for name, crop in crops.items()}
    named[f"RandomResizedCrop({size}), RandomHorizontalFlip()"] = {name: [crop, flip()] for name, crop in crops.items()}
    named["ColorJitter(0.4, 0.4, 0.4)"] = {"kornia": [found.ColorJitter(0.4, 0.4, 0.4, 0.0, p=1.0)]}
    return {name: {way: _of_floats(steps) for way, steps in ways.items()} for name, ways in named.items()}


def _of_floats(steps: Iterable[Callable[[torch.Tensor], torch.Tensor]]) -> Callable[[torch.Tensor], torch.Tensor]:
    def apply(images: torch.Tensor) -> torch.Tensor:
        images = images.float().div_(255)
        for step in steps:
            images = step(images)
        return images

    return apply


def lines_of_others(found: dict[str, Any]) -> list[list[str]]:
    """Return a line of the table for each way: its rate, and ours as a ratio to it."""
    return [
        [found["transform"], name, *rate_cells(other["images_per_second"]), *ratio_cells(other["ratio"])]
        for name, other in found["others"].items()
    ]
