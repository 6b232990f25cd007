"""Read packed stores: `MemmapDataset` opens a store, `MemmapLoader` serves its batches.

    train = MemmapDataset("out/")
    for images, targets in MemmapLoader(train, batch_size=256, shuffle=True, device="cuda"):
        model(images)

Names load on first use (PEP 562): importing `reader` or `reader.format.manifest` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reader.comparison import CompareReport, compare
    from reader.dataset.dataset import MemmapDataset
    from reader.device.to_device import to_device
    from reader.format.errors import IncompleteStoreError, StoreError
    from reader.format.manifest import Manifest
    from reader.loading.loader import MemmapLoader
    from reader.store import ImageBatch, RaggedBatch
    from reader.transforms.affine import RandomAffine, RandomRotation
    from reader.transforms.color import ColorJitter, Normalize
    from reader.transforms.composition import Compose, RandomApply, RandomChoice
    from reader.transforms.conversion import from_torchvision
    from reader.transforms.detection import FixedSizeCrop, RandomShortestSize, ScaleJitter, ToDetection
    from reader.transforms.mixing import CutMix, MixUp, RandomErasing
    from reader.transforms.padding import Pad
    from reader.transforms.pixel_transforms import (
        GaussianBlur,
        Grayscale,
        RandomAdjustSharpness,
        RandomAutocontrast,
        RandomEqualize,
        RandomGrayscale,
        RandomInvert,
        RandomPosterize,
        RandomSolarize,
    )
    from reader.transforms.policies import RandAugment, TimmRandAugment, TrivialAugmentWide
    from reader.transforms.random_crops import RandomCrop, RandomHorizontalFlip, RandomResizedCrop, RandomVerticalFlip
    from reader.transforms.resize import CenterCrop, Resize, ResizeCenterCrop
    from reader.transforms.views import MultiCrop, MultiView

_HOMES = {
    name: f"reader.{home}"
    for home, names in {
        "comparison": "CompareReport compare",
        "dataset.dataset": "MemmapDataset",
        "device.to_device": "to_device",
        "format.errors": "IncompleteStoreError StoreError",
        "format.manifest": "Manifest",
        "loading.loader": "MemmapLoader",
        "store": "ImageBatch RaggedBatch",
    }.items()
    for name in names.split()
}

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "CompareReport",
    "Compose",
    "CutMix",
    "FixedSizeCrop",
    "GaussianBlur",
    "Grayscale",
    "ImageBatch",
    "IncompleteStoreError",
    "Manifest",
    "MemmapDataset",
    "MemmapLoader",
    "MixUp",
    "MultiCrop",
    "MultiView",
    "Normalize",
    "Pad",
    "RaggedBatch",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ResizeCenterCrop",
    "ScaleJitter",
    "StoreError",
    "TimmRandAugment",
    "ToDetection",
    "TrivialAugmentWide",
    "compare",
    "from_torchvision",
    "to_device",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'reader' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES.get(name, "reader.transforms")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
