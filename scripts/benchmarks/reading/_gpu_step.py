"""A training step to time: a network like ResNet-18, bfloat16, channels_last, SGD. What it learns is of no interest."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from reader import ImageBatch, Manifest, Normalize, RandomCrop, RandomHorizontalFlip
from scripts.common.timing import seconds_over


class _ResidualBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.short = nn.Identity()
        if stride > 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(images) + self.short(images))


def network(manifest: Manifest) -> nn.Module:
    """uint8[B, 3, H, W] -> float[B, classes]: the layers of ResNet-18, the first normalizes."""
    layers: list[nn.Module] = [Normalize.of(manifest), nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for after, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [_ResidualBlock(before, after, stride), _ResidualBlock(after, after, 1)]
        before = after
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, len(manifest.classes))]
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


def spin(milliseconds: float, device: torch.device) -> Callable[[], None]:
    """Return what keeps a device busy for so long; the CPU sleeps."""
    if device.type != "cuda":
        return lambda: time.sleep(milliseconds / 1e3)
    cycles, (started, ended) = 100_000_000, (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(cycles)  # clocks rise
    started.record()
    torch.cuda._sleep(cycles)
    ended.record()
    torch.cuda.synchronize(device)
    needed = round(cycles * milliseconds / started.elapsed_time(ended))
    return lambda: torch.cuda._sleep(needed)


class TrainingStep:
    """A step on a device, and the augmentation that goes before it."""

    def __init__(self, manifest: Manifest, crop: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self._device = device
        self._model = network(manifest).to(device)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3, momentum=0.9)
        self._flip, self._crop = RandomHorizontalFlip(), RandomCrop(crop)

    def augment(self, batch: ImageBatch) -> ImageBatch:
        """Crop and flip at random, each image by itself; the crop first, which leaves less to flip."""
        return self._flip(self._crop(batch))

    def rate(self, next_batch: Callable[[], ImageBatch], steps: int) -> float:
        """Return images/s of so many steps, until the device has ended them."""
        self._step(next_batch())
        counts: list[int] = []

        def step(_: int) -> None:
            batch = next_batch()
            self._step(batch)
            counts.append(len(batch))

        taken = seconds_over(step, range(steps), self._device)
        return sum(counts) / taken

    def _step(self, batch: ImageBatch) -> None:
        with torch.autocast(self._device.type, torch.bfloat16):
            scores = self._model(batch.images)
            loss = nn.functional.cross_entropy(scores, batch.targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
