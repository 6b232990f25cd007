"""Transforms of batches, on the CPU or a device, whose randomness is a function of (seed, epoch, position, row).

Never touch torch's generators, and know nothing of loaders.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    name: f"reader.transforms.{home}"
    for home, names in {
        "affine": "RandomAffine RandomRotation",
        "color": "ColorJitter Normalize",
        "detection.boxes": "ClampBoundingBoxes ConvertBoundingBoxFormat SanitizeBoundingBoxes ToDetection",
        "detection.cropping": "FixedSizeCrop RandomIoUCrop RandomZoomOut",
        "detection.distorting": "RandomPhotometricDistort",
        "detection.resizing": "RandomShortestSize ScaleJitter",
        "pixel_transforms": "GaussianBlur Grayscale RandomAdjustSharpness RandomAutocontrast RandomEqualize RandomGrayscale"
        " RandomInvert RandomPosterize RandomSolarize",
        "random_crops": "AlternatingFlip RandomCrop RandomHorizontalFlip RandomResizedCrop RandomVerticalFlip",
        "conversions": "ConvertImageDtype PILToTensor ToDtype ToImage ToPureTensor ToTensor from_torchvision",
        "composition": "Compose RandomApply RandomChoice RandomOrder",
        "mixing": "CutMix MixUp RandomErasing",
        "padding": "Pad",
        "resize": "CenterCrop Resize ResizeCenterCrop",
        "auto_augment": "AugMix AutoAugment RandAugment TrivialAugmentWide",
        "per_sample": "PerSample",
        "recipes": "MultiCrop TimmRandAugment MultiView timm_train torchvision_eval torchvision_train",
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
