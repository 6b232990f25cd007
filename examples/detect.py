#!/usr/bin/env python3
"""Train a detector of torchvision, with its own loss, on the boxes of a packed store, on the CPU or a CUDA device.

    pack photos/ out/ --size 640 --fit pad --boxes instances.json
    python examples/detect.py out/ --epochs 26 --weights detector.pt

The default is FCOS with a ResNet-50 backbone pretrained on ImageNet. A tenth of the rows is held out for the validation loss.
Needs torchvision.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from pixpack import Compose, MemmapDataset, MemmapLoader, RandomHorizontalFlip, StoreError, ToDetection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack --boxes` wrote it")
    parser.add_argument("--model", default="fcos_resnet50_fpn", help="a detection model of torchvision")
    parser.add_argument("--epochs", type=int, default=26)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=Path, help="write the weights to this file in the end")
    parser.add_argument("--scratch", action="store_true", help="random weights: download no pretrained backbone")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        from torchvision.models import get_model
    except (ImportError, RuntimeError) as e:  # RuntimeError: it was built for another torch
        sys.exit(
            f"detect.py: {e}. Install the torchvision of your torch, from where that came: pip install --no-deps torchvision"
        )
    try:
        store = MemmapDataset(options.store)
        if "boxes" not in store.manifest.extras:
            raise ValueError(f"{options.store} has no boxes. Pack it with --boxes.")
        train, held_out = store.split(0.9)
        size, sides = options.batch_size, (store.manifest.height, store.manifest.width)
        # boxes are flipped with their images; the models take lists, and images in 0..1
        augment = Compose([RandomHorizontalFlip(), ToDetection()])
        loader = MemmapLoader(train, size, shuffle=True, device=options.device, transform=augment)
        val_loader = MemmapLoader(held_out, size, device=options.device, transform=ToDetection())
        backbone = {"weights_backbone": None} if options.scratch else {}
        model = get_model(
            options.model,
            weights=None,
            num_classes=len(store.classes) + 1,  # 0 is the background
            min_size=min(sides),
            max_size=max(sides),
            **backbone,
        ).to(loader.device)
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"detect.py: {e}")
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], options.lr, 0.9, weight_decay=1e-4)
    total = options.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.lr, total, pct_start=0.1, cycle_momentum=False)
    for epoch in range(1, options.epochs + 1):
        model.train()
        for images, targets in loader:
            loss = sum(model(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, held out {validation_loss(model, val_loader):.3f}")
    if options.weights:
        torch.save(model.state_dict(), options.weights)


@torch.no_grad()
def validation_loss(model: nn.Module, loader: MemmapLoader) -> float:
    """Return the mean loss, which torchvision computes only in training mode; norms of a pretrained backbone are frozen."""
    losses = [sum(model(images, targets).values()) for images, targets in loader]
    return torch.stack(losses).mean().item()


if __name__ == "__main__":
    main()
