#!/usr/bin/env python3
"""Learn features without labels by SimCLR: two random views of each image, made on the device from one read.

    pack images/ out/ --fit none --max-size 512
    python examples/simclr.py out/ --epochs 100 --batch-size 512 --weights backbone.pt

The views of DINO are `MultiCrop(2, 6, local_size=96)`: the loader then gives eight tensors. Needs torchvision for the ResNet.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from pixpack import (
    ColorJitter,
    Compose,
    GaussianBlur,
    MemmapDataset,
    MemmapLoader,
    MultiCrop,
    Normalize,
    RandomApply,
    RandomGrayscale,
    RandomHorizontalFlip,
    StoreError,
)


def two_views(side: int) -> MultiCrop:
    """Make the augmentation of the paper (Chen et al., 2020, appendix A): crop, flip, colors, gray, blur."""
    changes = [
        RandomHorizontalFlip(),
        RandomApply([ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8),
        RandomGrayscale(0.2),
        RandomApply([GaussianBlur(max(3, side // 10 | 1), (0.1, 2.0))], p=0.5),
    ]
    return MultiCrop(2, 0, global_size=side, global_scale=(0.08, 1.0), global_transform=Compose(changes))


def nt_xent(first: torch.Tensor, second: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return the contrastive loss of float[B, D] twice: each embedding's partner is the same row of the other."""
    both = nn.functional.normalize(torch.cat([first, second]).float(), dim=1)
    scores = (both @ both.T / temperature).fill_diagonal_(-torch.inf)
    partners = torch.arange(len(both), device=both.device).roll(len(first))
    return nn.functional.cross_entropy(scores, partners)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it; its labels are not used")
    parser.add_argument("--model", default="resnet50", help="a ResNet of torchvision")
    parser.add_argument("--side", type=int, default=224, help="of a view, in pixels")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.3, help="for batches of 256; scaled by the batch size")
    parser.add_argument("--temperature", type=float, default=0.1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--weights", type=Path, help="write the backbone's weights to this file in the end")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        from torchvision.models import get_model

        store, size, views = MemmapDataset(options.store), options.batch_size, two_views(options.side)
        loader = MemmapLoader(store, size, shuffle=True, drop_last=True, device=options.device, transform=views)
        backbone = get_model(options.model, weights=None)
    except ImportError as e:
        sys.exit(f"simclr.py: {e}. Install it: pip install --no-deps torchvision")
    except (StoreError, ValueError, OSError) as e:
        sys.exit(f"simclr.py: {e}")
    width = backbone.fc.in_features
    backbone.fc = nn.Identity()
    head = nn.Sequential(nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, 128))
    model = nn.Sequential(Normalize.of(store.manifest), backbone, head)
    model = model.to(loader.device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), options.lr * size / 256, momentum=0.9, weight_decay=1e-6)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    for epoch in range(1, options.epochs + 1):
        for (first, second), _ in loader:
            with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
                loss = nt_xent(model(first), model(second), options.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}")
    if options.weights:
        torch.save(backbone.state_dict(), options.weights)


if __name__ == "__main__":
    main()
