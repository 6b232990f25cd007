"""Benchmark of accuracy: does a network learn the same from a store as from the folder that it was packed from?"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import DataLoader, Dataset

import pixpack
from pixpack.transforms import Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop
from scripts.bench.data import made_once, photographs, torchvision
from scripts.bench.device import IMAGENET, network
from scripts.bench.harness import Lab, Way, bench, require, say

# Student's t for a 95 % interval of the difference of two means of ten seeds: 18 degrees of freedom.
T_95 = 2.101

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


class FolderBatches(Dataset):
    """Images of a folder, decoded by Pillow at each request, in the order of a MemmapLoader."""

    def __init__(
        self, root: Path, loader: pixpack.MemmapLoader, data: pixpack.MemmapDataset, view: Any, seed: int
    ) -> None:
        self.root, self.loader, self.samples, self.view = root, loader, data.samples, view
        self.seed, self.to_tensor = seed, torchvision().transforms.v2.PILToTensor()

    def __getitem__(self, item: tuple[int, int]) -> tuple[torch.Tensor, int]:
        row, number = item
        path, target = self.samples[row]
        with Image.open(self.root / path) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        # separate random numbers for each image and epoch, in any worker
        torch.manual_seed(1_000_003 * self.seed + number)
        return self.to_tensor(self.view(upright)), target

    def epoch(self, number: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        steps = [self.loader.rows(number, step) for step in range(len(self.loader))]
        batches = [[(int(row), number * len(self.samples) + int(row)) for row in rows] for rows in steps]
        loader = DataLoader(self, batch_sampler=batches, num_workers=2)
        # the memory format of a store's images: other kernels would round differently
        return ((images.contiguous(memory_format=torch.channels_last), targets) for images, targets in loader)


@dataclass(frozen=True)
class Trial:
    """The settings of every training run: epochs, held-out images, and their classes."""

    epochs: int
    held_out: pixpack.MemmapDataset

    def learn(self, batches_of: Callable[[int], Batches], steps: int, seed: int) -> tuple[list[float], float]:
        """Train a new network; returns the loss of each step, and the accuracy on the images held out."""
        model = network(3, (16, 32, 64, 96), Normalize(*IMAGENET), classes=len(self.held_out.classes), seed=seed)
        model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=self.epochs * steps)
        losses = []
        for epoch in range(self.epochs):
            for pixels, targets in batches_of(epoch):
                loss = nn.functional.cross_entropy(model(pixels), targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
        model.eval()
        with torch.inference_mode(), pixpack.MemmapLoader(self.held_out, 256) as loader:
            right = sum(int((model(pixels).argmax(1) == targets).sum()) for pixels, targets in loader)
        return losses, right / len(self.held_out)


@bench("Does a network learn the same from a store as from the folder that it was packed from?")
def parity(lab: Lab) -> Iterator[Way]:
    v2 = torchvision().transforms.v2
    seeds, epochs, crop, size = lab.pick((10, 6, 24 if lab.images else 64, 64), (2, 1, 16, 8))
    images = lab.images or photographs(lab, lab.pick(240, 48))

    def opened(name: str, **options: Any) -> tuple[pixpack.MemmapDataset, ...]:
        pack = partial(pixpack.pack, images, max_rejects="100%", **options)
        return pixpack.MemmapDataset(made_once(lab.work / f"parity-{name}-{crop}", pack)).split(0.8, stratify=True)

    def loader_of(data: pixpack.MemmapDataset, seed: int, transform: Any = None) -> pixpack.MemmapLoader:
        kept: dict[str, Any] = {"shuffle": "full", "seed": seed, "drop_last": True, "transform": transform}
        return lab.stack.enter_context(pixpack.MemmapLoader(data, size, **kept))

    # exact: a JPEG decoded at half its size differs slightly from Pillow's resize of the whole
    central, held_out = opened("central", size=crop, exact=True)
    whole, _ = opened("whole", fit="none", max_size=round(crop * 512 / 224))
    trial, loader = Trial(epochs, held_out), loader_of(central, 0)
    folder = FolderBatches(images, loader, central, v2.Compose([v2.Resize(crop), v2.CenterCrop(crop)]), 0)
    for (mine, _), (theirs, _) in zip(loader, folder.epoch(0), strict=True):
        require(torch.equal(mine, theirs), "with central crops the store's pixels are not the folder's.")
    loader.set_epoch(0)
    losses, right = trial.learn(folder.epoch, len(loader), 0)
    of_store, right_of_store = trial.learn(lambda _: loader, len(loader), 0)
    apart = max(abs(a - b) for a, b in zip(losses, of_store, strict=True))
    yield Way(
        f"central crops: largest difference of a loss, {len(losses)} steps", columns={"folder": "", "store": apart}
    )
    yield Way("central crops: accuracy on images held out", columns={"folder": right, "store": right_of_store})

    found: dict[str, list[float]] = {"folder": [], "store": []}
    random_view = v2.Compose([v2.RandomResizedCrop(crop), v2.RandomHorizontalFlip()])
    for seed in range(seeds):
        say(f"parity: seed {seed + 1} of {seeds}")
        loader = loader_of(whole, seed, Compose([RandomResizedCrop(crop, seed=seed), RandomHorizontalFlip(seed=seed)]))
        folder = FolderBatches(images, loader, whole, random_view, seed)
        for name, batches_of in {"folder": folder.epoch, "store": lambda _, loader=loader: loader}.items():
            found[name].append(trial.learn(batches_of, len(loader), seed)[1])
    kind = f"random resized crops, {seeds} seeds"
    yield Way(f"{kind}: mean accuracy", columns={name: statistics.fmean(values) for name, values in found.items()})
    yield Way(f"{kind}: standard deviation", columns={name: statistics.stdev(values) for name, values in found.items()})
    noise = T_95 * math.sqrt(sum(statistics.variance(values) / seeds for values in found.values()))
    difference = f"{statistics.fmean(found['store']) - statistics.fmean(found['folder']):.3f} ± {noise:.3f}"
    yield Way(f"{kind}: difference, Welch's 95 % interval", columns={"folder": "", "store": difference})
    lab.notes.append(
        f"{len(central)} images to learn from, {len(held_out)} held out, {epochs} epochs, crops of {crop} x {crop}."
    )
