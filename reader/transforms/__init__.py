"""Transforms of batches, on the CPU or a device, whose randomness is a function of (seed, epoch, position, row).

Never use torch's generators, and know nothing about loaders.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    name: f"reader.transforms.{home}"
    for home, names in {
        "affine": "RandomAffine RandomRotation",
        "color": "ColorJitter Normalize",
        "composition": "Compose RandomApply RandomChoice",
        "detection": "FixedSizeCrop RandomShortestSize ScaleJitter ToDetection",
        "conversion": "from_torchvision",
        "mixing": "CutMix MixUp RandomErasing",
        "padding": "Pad",
        "pixel_transforms": "GaussianBlur Grayscale RandomAdjustSharpness RandomAutocontrast RandomEqualize RandomGrayscale"
        " RandomInvert RandomPosterize RandomSolarize",
        "policies": "RandAugment TimmRandAugment TrivialAugmentWide",
        "random_crops": "RandomCrop RandomHorizontalFlip RandomResizedCrop RandomVerticalFlip",
        "resize": "CenterCrop Resize ResizeCenterCrop",
        "views": "MultiCrop MultiView",
    }.items()
    for name in names.split()
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reader.transforms' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
