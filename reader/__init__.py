"""Read what `pack` wrote: `MemmapDataset` opens a store, `MemmapLoader` serves its batches.

    train = MemmapDataset("out/")
    for images, targets in MemmapLoader(train, batch_size=256, shuffle=True, device="cuda"):
        model(images)

Names load on first use (PEP 562): importing `reader` or `reader.format.manifest` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reader.dataset.columns import ColumnDataset
    from reader.dataset.concat import concat
    from reader.dataset.dataset import MemmapDataset
    from reader.device.to_device import to_device
    from reader.format.errors import IncompleteStoreError, StoreError
    from reader.format.manifest import Manifest
    from reader.loading.loader import MemmapLoader
    from reader.loading.samplers import RASampler
    from reader.loading.sizes import ConstantPixels, SizeRamp
    from reader.store import ImageBatch, RaggedBatch, open_store
    from reader.transforms.affine import RandomAffine, RandomRotation
    from reader.transforms.auto_augment import AugMix, AutoAugment, RandAugment, TrivialAugmentWide
    from reader.transforms.color import ColorJitter, Normalize
    from reader.transforms.composition import Compose, RandomApply, RandomChoice
    from reader.transforms.conversions import from_torchvision
    from reader.transforms.mixing import CutMix, MixUp, RandomErasing
    from reader.transforms.padding import Pad
    from reader.transforms.per_sample import PerSample
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
    from reader.transforms.random_crops import AlternatingFlip, RandomCrop, RandomHorizontalFlip, RandomResizedCrop
    from reader.transforms.recipes import (
        MultiCrop,
        MultiView,
        TimmRandAugment,
        timm_train,
        torchvision_eval,
        torchvision_train,
    )
    from reader.transforms.resize import CenterCrop, Resize

_HOMES = {
    "MemmapDataset": "reader.dataset.dataset",
    "ColumnDataset": "reader.dataset.columns",
    "concat": "reader.dataset.concat",
    "MemmapLoader": "reader.loading.loader",
    "RASampler": "reader.loading.samplers",
    "ConstantPixels": "reader.loading.sizes",
    "SizeRamp": "reader.loading.sizes",
    "ImageBatch": "reader.store",
    "RaggedBatch": "reader.store",
    "open_store": "reader.store",
    "Manifest": "reader.format.manifest",
    "StoreError": "reader.format.manifest",
    "IncompleteStoreError": "reader.format.errors",
    "CenterCrop": "reader.transforms.resize",
    "ColorJitter": "reader.transforms.color",
    "Normalize": "reader.transforms.color",
    "GaussianBlur": "reader.transforms.pixel_transforms",
    "Grayscale": "reader.transforms.pixel_transforms",
    "RandomAdjustSharpness": "reader.transforms.pixel_transforms",
    "RandomAutocontrast": "reader.transforms.pixel_transforms",
    "RandomEqualize": "reader.transforms.pixel_transforms",
    "RandomGrayscale": "reader.transforms.pixel_transforms",
    "RandomInvert": "reader.transforms.pixel_transforms",
    "RandomPosterize": "reader.transforms.pixel_transforms",
    "RandomSolarize": "reader.transforms.pixel_transforms",
    "RandomCrop": "reader.transforms.random_crops",
    "RandomHorizontalFlip": "reader.transforms.random_crops",
    "RandomResizedCrop": "reader.transforms.random_crops",
    "to_device": "reader.device.to_device",
    "RandomAffine": "reader.transforms.affine",
    "RandomRotation": "reader.transforms.affine",
    "Compose": "reader.transforms.composition",
    "RandomApply": "reader.transforms.composition",
    "RandomChoice": "reader.transforms.composition",
    "RandomErasing": "reader.transforms.mixing",
    "Pad": "reader.transforms.padding",
    "Resize": "reader.transforms.resize",
    "AlternatingFlip": "reader.transforms.random_crops",
    "AugMix": "reader.transforms.auto_augment",
    "AutoAugment": "reader.transforms.auto_augment",
    "RandAugment": "reader.transforms.auto_augment",
    "TimmRandAugment": "reader.transforms.recipes",
    "TrivialAugmentWide": "reader.transforms.auto_augment",
    "CutMix": "reader.transforms.mixing",
    "MixUp": "reader.transforms.mixing",
    "PerSample": "reader.transforms.per_sample",
    "MultiCrop": "reader.transforms.recipes",
    "MultiView": "reader.transforms.recipes",
    "from_torchvision": "reader.transforms.conversions",
    "timm_train": "reader.transforms.recipes",
    "torchvision_eval": "reader.transforms.recipes",
    "torchvision_train": "reader.transforms.recipes",
}

__all__ = [
    "AlternatingFlip",
    "AugMix",
    "AutoAugment",
    "CenterCrop",
    "ColorJitter",
    "ColumnDataset",
    "Compose",
    "ConstantPixels",
    "CutMix",
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
    "PerSample",
    "RASampler",
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
    "RandomSolarize",
    "Resize",
    "SizeRamp",
    "StoreError",
    "TimmRandAugment",
    "TrivialAugmentWide",
    "concat",
    "from_torchvision",
    "open_store",
    "timm_train",
    "to_device",
    "torchvision_eval",
    "torchvision_train",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'reader' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
