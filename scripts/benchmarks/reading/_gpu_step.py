"""A training step to time: ResNet-50, bfloat16, channels_last, SGD; compiled on a GPU. What it learns is of no interest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import nn

from reader import ImageBatch, Manifest, Normalize
from scripts.common.timing import seconds_over

# Blocks of each of its four stages, and the channels inside of them; of what only shows that it runs.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
QUICK_STAGES = ((1, 8), (1, 16))
# Channels that leave a block, times those inside of it.
_WIDER = 4

# uint8[B, 3, H, W] and int64[B], on the device of the step.
Labeled = tuple[torch.Tensor, torch.Tensor]


class _Bottleneck(nn.Module):
    def __init__(self, before: int, inside: int, stride: int) -> None:
        super().__init__()
        after = _WIDER * inside
        self.body = nn.Sequential(
            *_normed(before, inside, 1),
            nn.ReLU(inplace=True),
            *_normed(inside, inside, 3, stride),
            nn.ReLU(inplace=True),
            *_normed(inside, after, 1),
        )
        self.short = nn.Identity() if before == after else nn.Sequential(*_normed(before, after, 1, stride))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.body(images) + self.short(images))


def _normed(before: int, after: int, side: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(before, after, side, stride, side // 2, bias=False), nn.BatchNorm2d(after)]


def network(manifest: Manifest, stages: tuple[tuple[int, int], ...]) -> nn.Module:
    """uint8[B, 3, H, W] -> float[B, classes]: the layers of ResNet-50, the first normalizes."""
    layers: list[nn.Module] = [Normalize.of(manifest), *_normed(3, 64, 7, 2), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    before = 64
    for number, (blocks, inside) in enumerate(stages):
        for block in range(blocks):
            layers.append(_Bottleneck(before, inside, 2 if number and not block else 1))
            before = _WIDER * inside
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, len(manifest.classes))]
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
    """A step on a device; is_quick: of a network as small as shows that it runs."""

    def __init__(self, manifest: Manifest, device: torch.device, *, is_quick: bool) -> None:
        torch.manual_seed(0)
        self._device = device
        model = network(manifest, QUICK_STAGES if is_quick else STAGES).to(device)
        self._optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        # on the CPU, where it shows that the code runs, to compile would take most of the time
        self._model = torch.compile(model) if device.type == "cuda" else model

    def rate(self, next_batch: Callable[[], ImageBatch], steps: int) -> float:
        """Return images/s of so many steps, until the device has ended them."""
        first = next_batch()
        self(first.images, first.targets)
        counts: list[int] = []

        def step(_: int) -> None:
            batch = next_batch()
            self(batch.images, batch.targets)
            counts.append(len(batch))

        taken = seconds_over(step, range(steps), self._device)
        return sum(counts) / taken

    def epoch(self, batches: Iterable[Labeled]) -> tuple[float, torch.Tensor]:
        """Train on batches; returns the seconds until the device has ended, and their targets, int64[N] of the CPU."""
        seen: list[torch.Tensor] = []

        def step(batch: Labeled) -> None:
            self(*batch)
            seen.append(batch[1])

        taken = seconds_over(step, batches, self._device)
        return taken, torch.cat(seen).cpu()

    def __call__(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        """Launch a step."""
        with torch.autocast(self._device.type, torch.bfloat16):
            # the same strides from every loader, so that it is compiled once
            scores = self._model(images.contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, targets)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
