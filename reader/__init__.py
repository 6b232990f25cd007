"""Read what `pack` wrote: `MemmapDataset` opens a store, `MemmapLoader` serves its batches.

    train = MemmapDataset("out/")
    for images, targets in MemmapLoader(train, batch_size=256, shuffle=True, device="cuda"):
        model(images)

Names load on first use (PEP 562): importing `reader` or `reader.manifest` does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reader.center import CenterCrop
    from reader.color import ColorJitter, Normalize
    from reader.dataset import MemmapDataset
    from reader.loader import MemmapLoader
    from reader.manifest import IncompleteStoreError, Manifest, StoreError
    from reader.nests import to_device
    from reader.store import ImageBatch, RaggedBatch, open_store
    from reader.transforms import RandomCrop, RandomHorizontalFlip, RandomResizedCrop

_HOMES = {
    "MemmapDataset": "reader.dataset",
    "MemmapLoader": "reader.loader",
    "ImageBatch": "reader.store",
    "RaggedBatch": "reader.store",
    "open_store": "reader.store",
    "Manifest": "reader.manifest",
    "StoreError": "reader.manifest",
    "IncompleteStoreError": "reader.manifest",
    "CenterCrop": "reader.center",
    "ColorJitter": "reader.color",
    "Normalize": "reader.color",
    "RandomCrop": "reader.transforms",
    "RandomHorizontalFlip": "reader.transforms",
    "RandomResizedCrop": "reader.transforms",
    "to_device": "reader.nests",
}

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "ImageBatch",
    "IncompleteStoreError",
    "Manifest",
    "MemmapDataset",
    "MemmapLoader",
    "Normalize",
    "RaggedBatch",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "StoreError",
    "open_store",
    "to_device",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reader' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
