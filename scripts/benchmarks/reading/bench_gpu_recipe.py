"""Does a whole recipe of training take longer from a store than on a batch that stays on the GPU, and does it learn?

    python -m scripts.benchmarks.reading.bench_gpu_recipe --images DIR
    python -m scripts.benchmarks.reading.bench_gpu_recipe --device cpu --quick     shows that the code runs; measures nothing

The recipe is FFCV's for ResNet-50 in 16 epochs: rn50_configs/rn50_16_epochs.yaml and train_imagenet.py of
https://github.com/libffcv/ffcv-imagenet. `Recipe` has its values. Training images are links to a few photographs, in a store of

    own       own sizes, at most 512 pixels a side, as FFCV's rows have at most 500; crops are made on the device
    levels    the same with levels of a half and a quarter, as docs/how-to/progressive-resizing.md packs them; crops are made on
              the CPU
    square    256 x 256; crops are made on the device

Each epoch is timed twice, one right after the other: from the loader, from iter() to the end of its last step; and as many steps
on one batch of the same resolution that stays on the device, by a second copy of the model with an optimizer of its own. Which
comes first alternates. Both resolutions are compiled and run once before. An epoch here has a few thousand images, so the wait
for its first batch weighs far more than in an epoch of ImageNet: the report has ratios with it, and without it.

Checked: an epoch from the loader has each target as often as the folder, at the recipe's resolution, and its loss is finite.

Top-1 accuracy is that of a fifth of the photographs, which are never trained on. With a few hundred photographs it says nothing
about ImageNet, and nothing about the recipe: it shows that the loop learns. Its standard error is that of a binomial share; there
is one seed. Different from the recipe: one GPU and batches of 256, for which the learning rate is scaled; bfloat16, where the
recipe uses float16 with a GradScaler; torch.compile; mean and standard deviation of the store. The last line is JSON.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import packer
from reader import (
    Compose,
    Manifest,
    MemmapDataset,
    MemmapLoader,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
)
from scripts.benchmarks.reading._gpu_step import QUICK_STAGES, STAGES, Labeled, network
from scripts.benchmarks.reading.bench_gpu import gpu
from scripts.common.arguments import bench_parser
from scripts.common.figures import (
    BenchmarkError,
    Photograph,
    machine,
    photographs,
    publish,
    ratios,
    repeat_files,
    spread,
    table,
)
from scripts.common.timing import collection_paused, synchronize
from scripts.samples.stores import made_once

KINDS = ("own", "levels", "square")
SIDE, QUICK_SIDE = 256, 48
# The claim: an epoch from the store takes at most so many times one on a batch that stays on the device.
MOST = 1.05
# Of each class, every fifth photograph is held out.
HELD_OUT = 5
SEED = 0
# Convolutions of fewer channels are not blurred: the first, of RGB.
BLUR_CHANNELS = 16


@dataclass(frozen=True)
class Recipe:
    """The values of rn50_16_epochs.yaml; sides are pixels of square crops, epochs count from 0.

    lr: the highest, of steps of lr_batch images: the file's 512 for each of 8 GPUs
    (https://github.com/libffcv/ffcv-imagenet/issues/4). It is scaled to other batch sizes in proportion.
    """

    epochs: int = 16
    lr: float = 1.7
    lr_batch: int = 4096
    peak_epoch: int = 2
    momentum: float = 0.9
    weight_decay: float = 1e-4
    label_smoothing: float = 0.1
    first_side: int = 160
    last_side: int = 192
    ramp_start: int = 11
    ramp_stop: int = 13
    side_multiple: int = 32
    validation_side: int = 256
    validation_fraction: float = 224 / 256

    def side(self, epoch: int) -> int:
        """Return the resolution of an epoch: 160 up to epoch 11, 192 from epoch 12, where 176 is rounded to it."""
        between = np.interp(epoch, [self.ramp_start, self.ramp_stop], [self.first_side, self.last_side])
        return round(float(between) / self.side_multiple) * self.side_multiple

    def lr_at(self, epoch: float, batch_size: int) -> float:
        """Return the learning rate: in a line from almost nothing to the peak, and in another one to 0."""
        share = float(np.interp(epoch, [0, self.peak_epoch, self.epochs], [1e-4, 1, 0]))
        return self.lr * batch_size / self.lr_batch * share


@dataclass(frozen=True)
class EpochRun:
    """What an epoch took, and what it was given.

    seconds: until the device has ended. first_batch_seconds: of these, those that the host waits for the first batch.
    targets: int64[N] on the CPU. sides: of its images. loss: mean.
    """

    seconds: float
    first_batch_seconds: float
    targets: torch.Tensor
    sides: frozenset[int]
    loss: float


class BlurredConv(nn.Module):
    """A convolution of images that are blurred by [1, 2, 1] in both directions first."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        line = torch.tensor([0.25, 0.5, 0.25])
        self.conv = conv
        self.blur: torch.Tensor
        self.register_buffer("blur", torch.outer(line, line).expand(conv.in_channels, 1, 3, 3).clone())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.conv(nn.functional.conv2d(images, self.blur, padding=1, groups=self.conv.in_channels))


class Learner:
    """A model that is trained by the recipe, with an optimizer of its own."""

    def __init__(self, model: nn.Module, recipe: Recipe, device: torch.device) -> None:
        self.model, self._recipe, self._device = model.to(device), recipe, device
        self._start = {name: value.clone() for name, value in self.model.state_dict().items()}
        # on the CPU, where it shows that the code runs, to compile would take most of the time
        self._compiled = torch.compile(self.model, dynamic=False) if device.type == "cuda" else self.model
        self.restart()

    def restart(self) -> None:
        """Forget all that was learned. What is compiled stays."""
        self.model.load_state_dict(self._start)
        self._optimizer = torch.optim.SGD(weight_groups(self.model, self._recipe), lr=1, momentum=self._recipe.momentum)

    def epoch(self, number: int, batches: Iterable[Labeled], steps: int) -> EpochRun:
        """Train on as many batches as an epoch has steps."""
        self.model.train()
        targets: list[torch.Tensor] = []
        losses: list[torch.Tensor] = []
        sides: set[int] = set()
        first_batch_seconds = 0.0
        synchronize(self._device)
        started = time.perf_counter()
        for step, (images, labels) in enumerate(batches):
            if not step:
                first_batch_seconds = time.perf_counter() - started
            lr = self._recipe.lr_at(number + step / steps, len(labels))
            losses.append(self._step(images, labels, lr))
            targets.append(labels)
            sides |= {*images.shape[2:]}
        synchronize(self._device)
        seconds = time.perf_counter() - started
        loss = torch.stack(losses).mean().item()
        return EpochRun(seconds, first_batch_seconds, torch.cat(targets).cpu(), frozenset(sides), loss)

    def correct(self, batches: Iterable[Labeled]) -> int:
        """Count images whose class has the highest score, which is added to that of the mirrored image."""
        self.model.eval()
        found = 0
        with torch.no_grad(), torch.autocast(self._device.type, torch.bfloat16):
            for images, labels in batches:
                scores = self.model(images) + self.model(images.flip(3))
                found += int((scores.argmax(1) == labels).sum())
        return found

    def _step(self, images: torch.Tensor, labels: torch.Tensor, lr: float) -> torch.Tensor:
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device.type, torch.bfloat16):
            # the same strides from every source, so that a resolution is compiled once
            scores = self._compiled(images.contiguous(memory_format=torch.channels_last))
            loss = nn.functional.cross_entropy(scores, labels, label_smoothing=self._recipe.label_smoothing)
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def main() -> int:
    options = parse()
    device = torch.device(options.device)
    torch.backends.cudnn.benchmark = True
    recipe = Recipe(first_side=32, last_side=64, validation_side=64) if options.quick else Recipe()
    name = f"recipe-{options.kind}-{options.count}-{options.side}"
    folder = made_once(options.work / name, lambda made: pack(made, options))
    report: dict[str, Any] = {"benchmark": "bench_gpu_recipe", "device": options.device, "quick": options.quick}
    report |= {"kind": options.kind, "images": options.count, "batch_size": options.batch_size}
    report |= {"recipe": asdict(recipe), "machine": machine(options.work), "gpu": gpu(options.device)}
    report |= measure(folder, recipe, device, options)
    print(text(report))
    publish(report, options.output)
    return 0


def parse() -> argparse.Namespace:
    work = Path(tempfile.gettempdir()) / "pixpack-gpu-recipe"
    about = {"count": "training images: links to the photographs"}
    parser = bench_parser(__doc__, about=about, images=None, count=4_096, batch_size=256, work=work)
    parser.add_argument("--kind", choices=KINDS, default=KINDS[0], help=f"of rows (default: {KINDS[0]})")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    options.side = SIDE
    if options.quick:
        options.count, options.batch_size, options.side = 16, 8, QUICK_SIDE
    options.count -= options.count % options.batch_size  # an epoch of whole batches has every image
    if not options.count:
        parser.error(f"--count is below --batch-size {options.batch_size}, expected some batches.")
    options.work.mkdir(parents=True, exist_ok=True)
    return options


# -- data


def pack(folder: Path, options: argparse.Namespace) -> None:
    """Fill a folder with links to photographs and the stores of them: those to train on, repeated, and those held out."""
    train, held_out = split(photographs(options.images, options.work, options.side))
    repeat_files(train, folder / "train-images", options.count, link=True)
    repeat_files(held_out, folder / "held-out-images", len(held_out), link=True)
    shapes: dict[str, dict[str, Any]] = {
        "own": {"fit": "none", "max_size": 2 * options.side},
        "levels": {"fit": "none", "max_size": 2 * options.side, "levels": 3},
        "square": {"size": options.side},
    }
    shape = shapes[options.kind]
    packer.pack(folder / "train-images", folder / "train", max_rejects=0, **shape)
    classes = str(folder / "train")
    packer.pack(folder / "held-out-images", folder / "held-out", max_rejects=0, classes=classes, **shape)


def split(found: Sequence[Photograph]) -> tuple[list[Photograph], list[Photograph]]:
    """Return photographs to train on, and every fifth of each class, held out; of a class of fewer than five, none.

    Raises:
        BenchmarkError: nothing is held out.
    """
    by_class: defaultdict[str, list[Photograph]] = defaultdict(list)
    for photo in found:
        by_class[photo.folder].append(photo)
    held_out = [photo for photos in by_class.values() for photo in photos[HELD_OUT - 1 :: HELD_OUT]]
    if not held_out:
        raise BenchmarkError(
            f"no folder holds {HELD_OUT} photographs, so that none can be held out. Give more of them."
        )
    paths = {photo.path for photo in held_out}
    return [photo for photo in found if photo.path not in paths], held_out


# -- model


def resnet50(manifest: Manifest, *, is_quick: bool) -> nn.Module:
    """uint8[B, 3, H, W] -> float[B, classes]: ResNet-50, with torchvision's initial weights and the recipe's blur."""
    model = network(manifest, QUICK_STAGES if is_quick else STAGES)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    blur(model)
    return model


def blur(module: nn.Module) -> None:
    """Put a blur before each convolution that leaves out pixels."""
    for name, child in module.named_children():
        if isinstance(child, nn.Conv2d) and max(child.stride) > 1 and child.in_channels >= BLUR_CHANNELS:
            setattr(module, name, BlurredConv(child))
        else:
            blur(child)


def weight_groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Return an optimizer's groups: parameters of batch norms do not decay.

    The recipe finds them by "bn" in their names, and so lets those of the four shortcuts decay.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    kept = [parameter for norm in norms for parameter in norm.parameters()]
    numbers = {id(parameter) for parameter in kept}
    others = [parameter for parameter in model.parameters() if id(parameter) not in numbers]
    return [{"params": kept, "weight_decay": 0.0}, {"params": others, "weight_decay": recipe.weight_decay}]


# -- timing


def measure(folder: Path, recipe: Recipe, device: torch.device, options: argparse.Namespace) -> dict[str, Any]:
    """Train by the recipe, each epoch beside one on a resident batch; returns the figures of the report."""
    data, steps = MemmapDataset(folder / "train"), options.count // options.batch_size
    expected = folder_targets(data, folder / "train-images")
    torch.manual_seed(SEED)
    model = resnet50(data.manifest, is_quick=options.quick)
    trained, other = Learner(model, recipe, device), Learner(copy.deepcopy(model), recipe, device)
    loader = MemmapLoader(
        data,
        options.batch_size,
        shuffle="full",
        seed=SEED,
        drop_last=True,
        device=device,
        residency="cache",
        transform=Compose([RandomResizedCrop(recipe.last_side), RandomHorizontalFlip()]),
        size=recipe.side,
    )
    with loader:
        started = time.perf_counter()
        resident = warm_up(loader, recipe, trained, other, steps)
        warm_up_seconds = time.perf_counter() - started
        ours: list[EpochRun] = []
        limit: list[EpochRun] = []
        with collection_paused():
            for number in range(recipe.epochs):
                side = recipe.side(number)
                loader.set_epoch(number)
                for is_ours in (True, False) if number % 2 == 0 else (False, True):
                    if is_ours:
                        ours.append(trained.epoch(number, loader, steps))
                        check(ours[-1], number, side, expected)
                    else:
                        limit.append(other.epoch(number, itertools.repeat(resident[side], steps), steps))
    figures = times(ours, limit, recipe, options)
    return figures | {
        "warm_up_seconds": round(warm_up_seconds, 1),
        "held_out": accuracy(folder, trained, recipe, device),
    }


def folder_targets(data: MemmapDataset, images: Path) -> list[int]:
    """Return what the store calls the classes of the files in class folders, in ascending order."""
    numbers = {name: number for number, name in enumerate(data.manifest.classes)}
    return sorted(numbers[path.parent.name] for path in images.glob("*/*"))


def warm_up(loader: MemmapLoader, recipe: Recipe, trained: Learner, other: Learner, steps: int) -> dict[int, Labeled]:
    """Run an epoch of each resolution, which compiles it, and forget what was learned; returns a batch of each."""
    resident: dict[int, Labeled] = {}
    first_epochs = {recipe.side(number): number for number in reversed(range(recipe.epochs))}
    for side, number in sorted(first_epochs.items()):
        print(f"bench_gpu_recipe: warming up at {side} x {side}", file=sys.stderr, flush=True)
        loader.set_epoch(number)
        images, targets = next(iter(loader))
        resident[side] = images.clone(memory_format=torch.preserve_format), targets.clone()
        loader.set_epoch(number)
        other.epoch(number, loader, steps)
        trained.epoch(number, itertools.repeat(resident[side], 2), steps)
    trained.restart()
    other.restart()
    return resident


def check(run: EpochRun, number: int, side: int, expected: list[int]) -> None:
    """Raise BenchmarkError if an epoch was not what the recipe says, of all images of the folder."""
    if sorted(run.targets.tolist()) != expected:
        raise BenchmarkError(f"epoch {number}: its {len(run.targets)} targets are not those of {len(expected)} files.")
    if run.sides != {side}:
        raise BenchmarkError(f"epoch {number}: images have sides of {sorted(run.sides)}, expected {side}.")
    if not math.isfinite(run.loss):
        raise BenchmarkError(f"epoch {number}: the loss is {run.loss}.")


def times(ours: list[EpochRun], limit: list[EpochRun], recipe: Recipe, options: argparse.Namespace) -> dict[str, Any]:
    """Compare epochs from the loader with those on a resident batch; ratios are of the same epoch."""
    epochs = [
        {
            "side": recipe.side(number),
            "seconds": round(run.seconds, 4),
            "resident_seconds": round(other.seconds, 4),
            "ratio": round(run.seconds / other.seconds, 4),
            "first_batch_seconds": round(run.first_batch_seconds, 4),
            "loss": round(run.loss, 4),
        }
        for number, (run, other) in enumerate(zip(ours, limit, strict=True))
    ]
    taken, at_best = [run.seconds for run in ours], [run.seconds for run in limit]
    later = [run.seconds - run.first_batch_seconds for run in ours]
    later_at_best = [run.seconds - run.first_batch_seconds for run in limit]
    total = {"seconds": round(sum(taken), 3), "resident_seconds": round(sum(at_best), 3)}
    return {
        "epochs": epochs,
        "images_per_second": {
            "loader": spread([options.count / seconds for seconds in taken], 0),
            "resident": spread([options.count / seconds for seconds in at_best], 0),
        },
        "of_resident": ratios(taken, at_best),
        "of_resident_without_first_wait": ratios(later, later_at_best),
        "total": total | {"ratio": round(sum(taken) / sum(at_best), 4), "expected_at_most": MOST},
    }


def accuracy(folder: Path, trained: Learner, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Return top-1 accuracy of held-out photographs, its standard error, and what naming the most frequent class gives."""
    data = MemmapDataset(folder / "held-out")
    look = ResizeCenterCrop(recipe.validation_side, recipe.validation_fraction)
    with MemmapLoader(data, 64, device=device, transform=look) as loader:
        correct = trained.correct(loader)
    count = len(data)
    share = correct / count
    targets = Counter(folder_targets(data, folder / "held-out-images"))
    return {
        "images": count,
        "correct": correct,
        "top_1": round(share, 4),
        "standard_error": round(math.sqrt(share * (1 - share) / count), 4),
        "largest_class": round(max(targets.values()) / count, 4),
        "seed": SEED,
    }


def text(report: dict[str, Any]) -> str:
    """Draw the report for a person."""
    lines = [["epoch", "side", "s", "s, resident batch", "ratio", "first batch ms", "loss"]]
    for number, epoch in enumerate(report["epochs"]):
        seconds = [f"{epoch[name]:.3f}" for name in ("seconds", "resident_seconds", "ratio")]
        first, loss = f"{1e3 * epoch['first_batch_seconds']:.0f}", f"{epoch['loss']:.3f}"
        lines.append([str(number), str(epoch["side"]), *seconds, first, loss])
    total, ratio, later = report["total"], report["of_resident"], report["of_resident_without_first_wait"]
    found = report["held_out"]
    return "\n".join(
        [
            table(lines),
            f"all epochs: {total['seconds']:.1f} s, on a resident batch {total['resident_seconds']:.1f} s, ratio"
            f" {total['ratio']:.3f} (expected: at most {MOST})",
            f"ratio of an epoch: median {ratio['median']:.3f}, p10..p90 {ratio['p10']:.3f}..{ratio['p90']:.3f}; without the wait"
            f" for the first batch {later['median']:.3f}, {later['p10']:.3f}..{later['p90']:.3f}",
            f"top-1 of {found['images']} photographs held out: {found['top_1']:.3f}, standard error"
            f" {found['standard_error']:.3f}; the most frequent class alone: {found['largest_class']:.3f}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
