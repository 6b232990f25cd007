#!/usr/bin/env python3
"""Train a segmentation network of torchvision on the masks of a packed store, on the CPU or a CUDA device.

    pack photos/ out/ --size 520 --fit pad --masks annotations/
    python examples/segment.py out/ --epochs 30 --model deeplabv3_resnet50

A pixel of a mask is the number of its class, or 255 to be ignored, as in Pascal VOC. A tenth of the rows is held out:
IoU is the mean over the classes of intersection over union there. Rows of their own sizes (--fit none) are cropped to --crop
pixels. Needs torchvision.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

from pixpack import (
    Compose,
    Manifest,
    MemmapDataset,
    MemmapLoader,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    StoreError,
)

IGNORED = 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack --masks` wrote it")
    parser.add_argument("--model", default="deeplabv3_resnet50", help="a segmentation model of torchvision")
    parser.add_argument("--classes", type=int, default=21, help="with the background; Pascal VOC has 21")
    parser.add_argument("--crop", type=int, help="pixels a side  [default: those of a row, of their own sizes 520]")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--scratch", action="store_true", help="random weights: download no pretrained backbone")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        from torchvision.models import get_model
    except (ImportError, RuntimeError) as e:  # RuntimeError: it was built for another torch
        sys.exit(
            f"segment.py: {e}. Install the torchvision of your torch, from where that came: pip install --no-deps torchvision"
        )
    try:
        store = MemmapDataset(options.store)
        check_masks(options.store, store.manifest, options.classes)
        train, held_out = store.split(0.9)
        has_own_sizes = store.manifest.has_own_sizes
        side = options.crop or (520 if has_own_sizes else min(store.manifest.height, store.manifest.width))
        whole = ResizeCenterCrop(side) if has_own_sizes else None
        # a mask is cropped and flipped with its image
        augment = Compose([RandomResizedCrop(side, scale=(0.25, 1)), RandomHorizontalFlip()])
        size = options.batch_size
        loader = MemmapLoader(train, size, shuffle=True, drop_last=True, device=options.device, transform=augment)
        val_loader = MemmapLoader(held_out, size, device=options.device, transform=whole)
        backbone = {"weights_backbone": None} if options.scratch else {}
        model = get_model(options.model, weights=None, num_classes=options.classes, **backbone)
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"segment.py: {e}")
    # the mean and std of ImageNet, with which the backbone was trained
    normalize = Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    model = nn.Sequential(normalize, model).to(loader.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, options.epochs * len(loader), power=0.9)
    is_half = loader.device.type == "cuda"
    for epoch in range(1, options.epochs + 1):
        model.train()
        for images, labels in loader:
            with torch.autocast(loader.device.type, torch.bfloat16, enabled=is_half):
                scores = model(images)["out"]
                loss = nn.functional.cross_entropy(scores, labels["masks"].long(), ignore_index=IGNORED)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, IoU {mean_iou(model, val_loader, options.classes):.3f}")


def check_masks(path: str, manifest: Manifest, classes: int) -> None:
    """Raise ValueError if a store has no masks, or masks with values outside the classes."""
    if not manifest.has_masks:
        raise ValueError(f"{path} has no masks. Pack it with --masks.")
    found = [value for value in manifest.mask_values if value != IGNORED]
    if manifest.mask_values and (len(found) < 2 or found[-1] >= classes):
        raise ValueError(
            f"the masks of {path} have the values {list(manifest.mask_values)}, expected two or more of 0 to {classes - 1}, and"
            f" {IGNORED} where they count for nothing. Pack with --mask-values, or give --classes."
        )


@torch.inference_mode()
def mean_iou(model: nn.Module, loader: MemmapLoader, classes: int) -> float:
    """Return intersection over union, averaged over the classes that occur."""
    model.eval()
    confusion = torch.zeros(classes, classes, dtype=torch.int64, device=loader.device)
    for images, labels in loader:
        found, true = model(images)["out"].argmax(1), labels["masks"].long()
        pairs = (true * classes + found)[true != IGNORED]
        confusion += torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    shared, union = confusion.diag(), confusion.sum(0) + confusion.sum(1) - confusion.diag()
    return (shared[union > 0] / union[union > 0]).mean().item()


if __name__ == "__main__":
    main()
