#!/usr/bin/env python3
"""Train a small convolutional network on a packed store, on the CPU or a CUDA device.

    pack images/ out/ --size 224
    python examples/train.py out/ --epochs 2

The store must have classes: the network learns to tell them apart. Without --val, a tenth of each class is held out. On
CUDA the weights are channels_last, as the images of a store are, and bfloat16 does the arithmetic.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time

import torch
from torch import nn

from reader import Manifest, MemmapDataset, MemmapLoader, Normalize, StoreError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack` wrote it")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    parser.add_argument("--val", metavar="STORE", help="measure accuracy on this one")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        train, held_out = datasets(options.store, options.val)
        loader = MemmapLoader(train, options.batch_size, shuffle=True, device=options.device, as_tuple=True)
        val_loader = MemmapLoader(held_out, options.batch_size, device=options.device, as_tuple=True)
    except (StoreError, ValueError) as e:
        print(f"train.py: {e}", file=sys.stderr)
        return 1
    fit(network(train.manifest).to(loader.device), loader, val_loader, options.epochs)
    return 0


def datasets(store: str, val: str | None) -> tuple[MemmapDataset, MemmapDataset]:
    """Open what to learn from and what to measure on."""
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


def network(manifest: Manifest) -> nn.Module:
    """uint8[B, C, H, W] -> float[B, classes]; the first layer normalises by the store's own mean and std."""
    widths = [manifest.channels, 32, 64, 128, 256]
    layers: list[nn.Module] = [Normalize.of(manifest)]
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], len(manifest.classes)))
    return model.to(memory_format=torch.channels_last)


def fit(model: nn.Module, train: MemmapLoader, val: MemmapLoader, epochs: int) -> None:
    """Train and print a line an epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        loss, accuracy = run(model.train(), train, optimizer)
        rate = len(train.dataset) / (time.perf_counter() - start)
        with torch.inference_mode():
            _, held_out = run(model.eval(), val)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.3f}, held out {held_out:.3f}, {rate:,.0f} images/s")


def run(model: nn.Module, loader: MemmapLoader, optimizer: torch.optim.Optimizer | None = None) -> tuple[float, float]:
    """Go through one epoch, learning if there is an optimizer; returns mean loss and accuracy."""
    # the sums stay on the device until the end: reading them waits for it
    totals = torch.zeros(2, device=loader.device)
    for images, targets in loader:
        with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
            scores = model(images)
        loss = nn.functional.cross_entropy(scores.float(), targets)
        if optimizer is not None:
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        totals += torch.stack([loss.detach() * len(targets), (scores.argmax(1) == targets).sum()])
    mean_loss, accuracy = (totals / max(1, len(loader.dataset))).tolist()
    return mean_loss, accuracy


if __name__ == "__main__":
    sys.exit(main())
