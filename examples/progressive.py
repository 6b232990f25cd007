#!/usr/bin/env python3
"""Train with images that grow over the epochs, and beside it at one size: accuracy and time of both, for several seeds.

    pack images/ out/ --size 256
    python examples/progressive.py out/ --size 224 --first 128 --epochs 16 --seeds 3

In the first half of the epochs crops grow from --first to --size pixels in a straight line. Batches have as many rows all the time, so that both ways take as many steps.
"""

from __future__ import annotations

import argparse
import math
import sys
import time

import torch
from network import accuracy, datasets, network
from torch import nn

from pixpack import (
    Compose,
    MemmapDataset,
    MemmapLoader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    StoreError,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store")
    parser.add_argument("--val", help="a store to measure on; default: 1 row of 10 of the first")
    parser.add_argument("--size", type=int, default=224, help="pixels of crops in the end")
    parser.add_argument("--first", type=int, default=128, help="pixels of crops in the first epoch")
    parser.add_argument("--multiple", type=int, default=32, help="sizes grow by multiples of this")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=64, help="rows a batch")
    parser.add_argument("--lr", type=float, default=0.5, help="for batches of 256; scaled by the batch size")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each way")
    parser.add_argument("--model", default="small", help="resnet50 or another of torchvision; default: a small one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    try:
        train, held_out = datasets(options.store, options.val)
        for seed in range(options.seeds):
            # each way first in turn
            for is_ramp in (True, False) if seed % 2 == 0 else (False, True):
                found, seconds = trained(train, held_out, options, seed, is_ramp)
                way = f"{options.first} to {options.size}" if is_ramp else f"{options.size}"
                print(f"seed {seed}, crops of {way}: held out {found:.3f}, trained in {seconds:.1f} s", flush=True)
    except (StoreError, ValueError, OSError, ImportError) as e:
        print(f"progressive.py: {e}", file=sys.stderr)
        return 1
    return 0


def grown(options: argparse.Namespace, epoch: int) -> int:
    """Return the size of an epoch: in a straight line in the first half, in multiples of --multiple below the last."""
    left = max(0, 1 - epoch / max(1, options.epochs // 2))
    return options.size - int((options.size - options.first) * left) // options.multiple * options.multiple


def trained(
    train: MemmapDataset, held_out: MemmapDataset, options: argparse.Namespace, seed: int, is_ramp: bool
) -> tuple[float, float]:
    """Train one model; returns its accuracy on held-out rows, and the seconds that its epochs took."""
    torch.manual_seed(seed)
    given = {"shuffle": True, "drop_last": True, "seed": seed, "device": options.device}
    with MemmapLoader(train, options.batch_size, **given) as loader:
        model = network(train.manifest, options.model).to(loader.device)
        optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9, weight_decay=5e-5, nesterov=True)
        start = time.perf_counter()
        for epoch in range(options.epochs):
            model.train()
            size = grown(options, epoch) if is_ramp else options.size
            loader.transform = Compose([RandomResizedCrop(size, scale=(0.25, 1)), RandomHorizontalFlip()])
            for step, (images, targets) in enumerate(loader):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(images), targets, label_smoothing=0.1).backward()
                # 5 % warmup, then a cosine
                at = (epoch + (step + 1) / len(loader)) / options.epochs
                share = min(at / 0.05, 0.5 + 0.5 * math.cos(math.pi * at))
                optimizer.param_groups[0]["lr"] = options.lr * share * len(targets) / 256
                optimizer.step()
        seconds = time.perf_counter() - start
    look = ResizeCenterCrop(options.size)
    return accuracy(model, MemmapLoader(held_out, 64, device=options.device, transform=look)), seconds


if __name__ == "__main__":
    sys.exit(main())
