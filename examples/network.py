"""Shared code of the examples: stores opened for training, a small network, and the views of a row."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from pixpack import (
    Compose,
    Manifest,
    MemmapDataset,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
)


def datasets(store: str, val: str | None) -> tuple[MemmapDataset, MemmapDataset]:
    """Open the training and the validation dataset."""
    train = MemmapDataset(store)
    if train.manifest.target_kind != "class" or len(train.classes) < 2:
        found = f"{len(train.classes)} classes, targets of kind {train.manifest.target_kind}"
        raise ValueError(f"{store} has {found}; expected 2 classes or more. Pack a folder of class folders.")
    if val is None:
        return train.split(0.9, stratify=True)
    held_out = MemmapDataset(val)
    if held_out.classes != train.classes:
        raise ValueError(f"{val} has other classes than {store}. Pack it with --classes {store}")
    return train, held_out


def views(manifest: Manifest) -> tuple[Any, Any]:
    """Return the transforms of training and validation: both make squares of one size from uint8 batches on the device."""
    side = side_of(manifest)
    return Compose([RandomResizedCrop(side, scale=(0.25, 1)), RandomHorizontalFlip()]), ResizeCenterCrop(side)


def one_size(manifest: Manifest) -> Any:
    """Return the center crop for rows with sizes of their own; None if all have one size."""
    return ResizeCenterCrop(side_of(manifest)) if manifest.has_own_sizes else None


def side_of(manifest: Manifest) -> int:
    """Return the side of a crop: 224 for whole images, which are larger; for rows of one size, 7/8 of it."""
    short = min(manifest.height, manifest.width)
    return min(224, short) if manifest.has_own_sizes else short * 7 // 8


def network(manifest: Manifest, name: str = "small") -> nn.Module:
    """uint8[B, C, H, W] -> float[B, classes]; the first layer normalizes by the store's own mean and std.

    name: a classification model of torchvision; "small" needs no torchvision.
    """
    if not manifest.classes:
        raise ValueError("the store has no classes: name the one that the network learned from, --trained-on STORE")
    if name != "small":
        try:
            from torchvision.models import get_model
        except (ImportError, RuntimeError) as e:  # RuntimeError: it was built for another torch
            raise ImportError(
                f"{e}. Install the torchvision of your torch, from where that came: pip install --no-deps torchvision"
            ) from e
        body = get_model(name, weights=None, num_classes=len(manifest.classes))
        return nn.Sequential(Normalize.from_manifest(manifest), body).to(memory_format=torch.channels_last)
    widths = [manifest.channels, 32, 64, 128, 256]
    layers: list[nn.Module] = [Normalize.from_manifest(manifest)]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], len(manifest.classes)))
    # as in a store's images
    return model.to(memory_format=torch.channels_last)


def recipe(model: nn.Module, lr: float, steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Make SGD with Nesterov momentum, and its schedule."""
    optimizer = torch.optim.SGD(decayed(model, 5e-5), lr, momentum=0.9, nesterov=True)
    return optimizer, warmup_and_cosine(optimizer, steps)


def decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the parameters in two groups: weights, with decay, and biases, norms and scales, without."""
    weights, others = ([p for p in model.parameters() if (p.ndim > 1) is is_weight] for is_weight in (True, False))
    return [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]


def warmup_and_cosine(optimizer: torch.optim.Optimizer, steps: int) -> LambdaLR:
    """Make a learning rate that rises over the first 5 % of the steps, then falls to 0 along a cosine."""
    warmup = max(1, steps // 20)
    return LambdaLR(
        optimizer, lambda step: min((step + 1) / warmup, 0.5 + 0.5 * math.cos(math.pi * min(1, step / max(1, steps))))
    )


@torch.no_grad()
def accuracy(model: nn.Module, batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the share of images whose class has the highest score; 0 without images."""
    model.eval()
    right, count = torch.zeros(()), 0
    for images, targets in batches:
        # no read of the value here: that would wait for the device
        right = right + (model(images).argmax(1) == targets).sum()
        count += len(targets)
    return right.item() / max(1, count)
