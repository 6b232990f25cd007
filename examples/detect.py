#!/usr/bin/env python3
"""Train a small detector on the boxes of a packed store, on the CPU or a CUDA device.

    pack photos/ out/ --size 320 --fit pad --boxes instances.json
    python examples/detect.py out/ --epochs 12

For every 8 x 8 pixels the network tells how likely the centre of a box of each class lies there, and where the box is. A
tenth of the rows is held out: found is the share of its boxes that a drawn one meets (IoU 0.5), right that of drawn ones.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch import nn

from reader import MemmapDataset, MemmapLoader, Normalize, RandomHorizontalFlip, StoreError

STRIDE = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("store", help="a store, as `pack --boxes` wrote it")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    try:
        store = MemmapDataset(options.store)
        if "boxes" not in store.manifest.extras:
            raise ValueError(f"{options.store} has no boxes. Pack it with --boxes.")
        train, held_out = store.split(0.9)
        loader = MemmapLoader(train, 8, shuffle=True, device=options.device, transform=RandomHorizontalFlip())
        val_loader = MemmapLoader(held_out, 8, device=options.device)
    except (StoreError, ValueError) as e:
        sys.exit(f"detect.py: {e}")
    layers: list[nn.Module] = [Normalize.of(store.manifest)]
    for before, after, stride in ((store.manifest.channels, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1), (64, 64, 1)):
        layers += [nn.Conv2d(before, after, 3, stride, 1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    head = nn.Conv2d(64, len(store.classes) + 4, 1)
    nn.init.constant_(head.get_parameter("bias"), -3.0)  # boxes are rare
    model = nn.Sequential(*layers, head).to(loader.device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.01, options.epochs * len(loader))
    for epoch in range(1, options.epochs + 1):
        model.train()
        for images, labels in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = detection_loss(model(images), labels)
            loss.backward()
            optimizer.step()
            schedule.step()
        found, right = measure(model.eval(), val_loader)
        print(f"epoch {epoch}: loss {loss.item():.3f}, found {found:.3f}, right {right:.3f}")


def detection_loss(out: torch.Tensor, labels: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compare float[B, classes + 4, h, w] with the boxes, each at the cell of its centre: focal loss, and L1."""
    boxes, targets = labels["boxes"], labels["box_targets"]
    row, k = (targets >= 0).nonzero(as_tuple=True)  # free places have target -1
    centre, size = (
        (boxes[row, k, :2] + boxes[row, k, 2:]) / 2 / STRIDE,
        (boxes[row, k, 2:] - boxes[row, k, :2]) / STRIDE,
    )
    x, y = centre[:, 0].long().clamp(max=out.shape[3] - 1), centre[:, 1].long().clamp(max=out.shape[2] - 1)
    chance = out[:, :-4].sigmoid().clamp(1e-4, 1 - 1e-4)
    is_centre = torch.zeros_like(chance)
    is_centre[row, targets[row, k], y, x] = 1
    focal = is_centre * (1 - chance) ** 2 * chance.log() + (1 - is_centre) * chance**2 * (1 - chance).log()
    wanted = torch.cat([centre - torch.stack([x, y], -1), size.clamp(min=0.1).log()], -1)
    return (nn.functional.l1_loss(out[row, -4:, y, x], wanted, reduction="sum") - focal.sum()) / max(1, len(row))


@torch.inference_mode()
def measure(model: nn.Module, loader: MemmapLoader) -> tuple[float, float]:
    """Return the share of true boxes that are found, and the share of drawn ones that are right."""
    counts = torch.zeros(4)
    for images, labels in loader:
        out = model(images)
        chance = out[:, :-4].sigmoid()
        is_peak = (chance > 0.4) & (chance == nn.functional.max_pool2d(chance, 3, 1, 1))
        row, target, y, x = is_peak.nonzero(as_tuple=True)
        offset, size = out[row, -4:, y, x].split(2, -1)
        centre, half = (torch.stack([x, y], -1) + offset) * STRIDE, size.exp() * STRIDE / 2
        drawn = torch.cat([centre - half, centre + half], -1)
        true_row, k = (labels["box_targets"] >= 0).nonzero(as_tuple=True)
        true, true_target = labels["boxes"][true_row, k], labels["box_targets"][true_row, k]
        sides = torch.minimum(drawn[:, None, 2:], true[:, 2:]) - torch.maximum(drawn[:, None, :2], true[:, :2])
        shared, area, true_area = sides.clamp(0).prod(-1), 4 * half.prod(-1), (true[:, 2:] - true[:, :2]).prod(-1)
        hit = (shared > 0.5 * (area[:, None] + true_area - shared)) & (row[:, None] == true_row)
        hit &= target[:, None] == true_target
        counts += torch.tensor([hit.any(0).sum(), len(true), hit.any(1).sum(), len(drawn)])
    return (counts[0] / counts[1].clamp(min=1)).item(), (counts[2] / counts[3].clamp(min=1)).item()


if __name__ == "__main__":
    main()
