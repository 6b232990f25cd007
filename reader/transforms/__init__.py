"""Transforms of batches, on the CPU or a device, whose randomness is a function of (seed, epoch, position, row).

Never touch torch's generators, and know nothing of loaders.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "CenterCrop": "reader.transforms.center_crop",
    "ColorJitter": "reader.transforms.color",
    "Normalize": "reader.transforms.color",
    "RandomCrop": "reader.transforms.random_crops",
    "RandomHorizontalFlip": "reader.transforms.random_crops",
    "RandomResizedCrop": "reader.transforms.random_crops",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reader.transforms' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
