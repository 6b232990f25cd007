#!/usr/bin/env python3
"""Pack CIFAR-10 from torchvision's dataset, once, and train a ResNet on it, on the CPU or a CUDA device.

    python examples/cifar.py data/ --epochs 30

`pack_dataset` takes any map-style dataset of images and labels. The stores are in data/cifar10-train and data/cifar10-test; what
is there already is used again. Needs torchvision.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from pixpack import MemmapDataset, MemmapLoader, PackError, StoreError, pack_dataset
from pixpack.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where CIFAR-10 is downloaded to, and the stores go")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--lr", type=float, default=0.4, help="for batches of 512; scaled by the batch size")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        from torchvision.models import resnet18

        size, device = options.batch_size, options.device
        train, test = (MemmapDataset(packed(options.folder, is_train)) for is_train in (True, False))
        augment = Compose([RandomCrop(32, padding=4, padding_mode="reflect"), RandomHorizontalFlip()])
        loader = MemmapLoader(train, size, shuffle=True, drop_last=True, device=device, transform=augment)
        test_loader = MemmapLoader(test, size, device=device)
    except ImportError as e:
        sys.exit(f"cifar.py: {e}. Install it: pip install --no-deps torchvision")
    except (StoreError, PackError, ValueError, OSError) as e:
        sys.exit(f"cifar.py: {e}")
    network = resnet18(weights=None, num_classes=len(train.classes))
    # for images of 32 pixels: a first layer that keeps them, as in the paper's ResNets for CIFAR
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    model = nn.Sequential(Normalize.of(train.manifest), network).to(loader.device, memory_format=torch.channels_last)
    lr, steps = options.lr * size / 512, options.epochs * len(loader)
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.2, cycle_momentum=False)
    for epoch in range(1, options.epochs + 1):
        model.train()
        for images, targets in loader:
            with torch.autocast(loader.device.type, torch.bfloat16, enabled=loader.device.type == "cuda"):
                loss = nn.functional.cross_entropy(model(images), targets, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {accuracy(model, test_loader):.3f}")


def packed(folder: Path, is_train: bool) -> Path:
    """Return the store of a half of CIFAR-10, packed if it is not there."""
    from torchvision.datasets import CIFAR10

    out = folder / f"cifar10-{'train' if is_train else 'test'}"
    if not (out / "manifest.json").exists():
        dataset = CIFAR10(folder, train=is_train, download=True)
        report = pack_dataset(dataset, out, resume=True)
        print(f"{out}: {report.rows:,} rows packed in {report.seconds:.1f} s")
    return out


@torch.inference_mode()
def accuracy(model: nn.Module, loader: MemmapLoader) -> float:
    """Return the share of images whose class has the highest score."""
    model.eval()
    right = torch.stack([(model(images).argmax(1) == targets).sum() for images, targets in loader])
    return right.sum().item() / len(loader.dataset)


if __name__ == "__main__":
    main()
