"""Does a network learn the same from a store as from the folder that it was packed from, only sooner?

    python -m scripts.benchmarks.accuracy.parity                        draws its own photographs; about four minutes on 2 cores
    python -m scripts.benchmarks.accuracy.parity IMAGES --epochs 20     with a folder of class folders, or of MNIST's files

Debian's package dataset-fashion-mnist has such files, of real photographs: /usr/share/datasets/fashion-mnist.

A small network is trained from the same seeds on the same 4/5 of the images: from the folder, which Pillow decodes again in each
epoch in two DataLoader workers, and from the store, by MemmapLoader. Twice:

    central    central crops, one seed. The tensors of the first epoch must be the same to the byte, in the same order; then the
               losses must be the same too, at every step.
    random     random resized crops and flips (torchvision's definition and defaults), --seeds of them. The folder's are cut from
               the originals; the store's from rows of `--fit none` whose longer side is at most as much larger than the crop as
               the README says (512 for 224), other boxes of the same distribution. Accuracy on the other fifth, seen in central
               crops, must agree within what the seeds scatter: Welch's 95 % interval of the difference holds 0.

The picture has the losses over steps. Seconds are reported too; a store's begin with those of packing it. The last line is JSON;
exit code 1: not the same.
"""

from __future__ import annotations

import argparse
import gzip
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import packer
from reader import Compose, MemmapDataset, MemmapLoader, Normalize, RandomHorizontalFlip, RandomResizedCrop
from scripts.benchmarks.accuracy._folder_batches import RATIO, SCALE, FolderBatches, RandomView, View
from scripts.common.figures import machine, publish
from scripts.common.pictures import central_crop
from scripts.common.svg import DARK, DPI, GRAY, OTHER, OURS, WIDTH_INCHES, svg_bytes
from scripts.samples.make_sample import SIZES
from scripts.samples.scenes import SCENES, draw

# Steps that the picture averages over.
SMOOTH = 15
# Seeds -> Student's t for a 95 % interval of the difference of two means of so many: 2 (seeds - 1) degrees of freedom.
T_95 = {3: 2.776, 5: 2.306, 10: 2.101, 20: 2.024}

# The images and the labels of MNIST and those that follow it.
IDX = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz")

Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Curve:
    """A training run: the loss of each step, the seconds from its start to each, and the accuracy at its end."""

    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    accuracy: float = 0.0


def main() -> int:
    options = parse()
    work = Path(tempfile.mkdtemp(prefix="pixpack-parity-", dir=options.work))
    try:
        images = options.images or drawn(work / "images", options.count)
        if (images / IDX[0]).exists():
            images = unpacked(images, work / "images", options.count)
        trial = ParityTrial(images, work, options)
        central, random = trial.central(), trial.random()
    except (packer.PackError, packer.ScanError) as e:
        print(f"parity: {e}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(work)
    verdict = judged(central, random, trial)
    plot(central, random, verdict, options.out)
    print("\n".join(f"{name}: {value}" for name, value in verdict.items()))
    curves = {"central": {k: vars(v) for k, v in central.items()}}
    curves["random"] = {k: [vars(c) for c in v] for k, v in random.items()}
    about = {"images": len(trial.train) + len(trial.val), "epochs": options.epochs, "crop": options.crop}
    report = {
        "benchmark": "parity",
        "machine": machine(options.out.parent),
        **about,
        "verdict": verdict,
        "curves": curves,
    }
    publish(report, options.out.with_suffix(".json"))
    return 0 if verdict["central_losses_are_equal"] and verdict["random_agrees_within_noise"] else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "images", nargs="?", type=Path, help="a folder of class folders, or of MNIST's files; default: drawn ones"
    )
    parser.add_argument("--count", type=int, default=900, help="photographs to draw, or the first of MNIST's to take")
    parser.add_argument("--seeds", type=int, choices=T_95, default=3, help="with random crops")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--crop", type=int, default=64, help="side of what the network sees")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("parity.svg"), help="the picture; the figures go beside it")
    parser.add_argument(
        "--work", type=Path, help="where images and stores are while it runs; default: the temporary folder"
    )
    return parser.parse_args()


def drawn(folder: Path, count: int) -> Path:
    """Draw photograph-like JPEGs of six classes."""
    for n in range(count):
        name, rng = sorted(SCENES)[n % len(SCENES)], np.random.default_rng([7, n])
        width, height = SIZES[n % len(SIZES)]
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(name, rng, height, width)).save(folder / name / f"{n:05}.jpg", quality=90)
    return folder


def unpacked(source: Path, folder: Path, count: int) -> Path:
    """Write the first images of MNIST's files as JPEGs of ten classes."""
    pixels, labels = (np.frombuffer(gzip.decompress((source / name).read_bytes()), np.uint8) for name in IDX)
    # heads of 16 and of 8 bytes: yann.lecun.com/exdb/mnist
    for n, (image, label) in enumerate(zip(pixels[16:].reshape(-1, 28, 28)[:count], labels[8:], strict=False)):
        path = folder / str(label) / f"{n:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, quality=95)
    return folder


class ParityTrial:
    """The images and the two stores of them, and the four ways to train."""

    def __init__(self, images: Path, work: Path, options: argparse.Namespace) -> None:
        self.images, self.options = images, options
        # exact: a JPEG decoded at half its size differs a little from what Pillow makes of the whole
        packed = {"size": options.crop, "exact": True}
        full = {"fit": "none", "max_size": round(options.crop * 512 / 224)}
        self.pack_seconds = {}
        for name, shape in ("central", packed), ("random", full):
            self.pack_seconds[name] = packer.pack(images, work / name, **shape, max_rejects="100%").seconds
        self.train, self.val = MemmapDataset(work / "central").split(0.8, stratify=True)
        # the same images are the same rows of both stores
        self.full, _ = MemmapDataset(work / "random").split(0.8, stratify=True)

    def central(self) -> dict[str, Curve]:
        loader = MemmapLoader(self.train, self.options.batch_size, shuffle="full", seed=0, drop_last=True)
        folder = self.folder(0, lambda image, _: central_crop(image, self.options.crop))
        for mine, theirs in zip(loader, folder.epoch(0), strict=True):
            assert torch.equal(mine[0], theirs[0]), "the store's pixels are not the folder's"
            assert torch.equal(mine[1], theirs[1]), "the store's targets are not the folder's"
        loader.set_epoch(0)
        return {
            "folder": self.learn(folder.epoch, 0),
            "store": self.learn(lambda _: loader, 0, self.pack_seconds["central"]),
        }

    def random(self) -> dict[str, list[Curve]]:
        curves: dict[str, list[Curve]] = {"folder": [], "store": []}
        for seed in range(self.options.seeds):
            folder = self.folder(seed, RandomView(self.options.crop, seed))
            curves["folder"].append(self.learn(folder.epoch, seed))
            crop, flip = RandomResizedCrop(self.options.crop, SCALE, RATIO, seed=seed), RandomHorizontalFlip(seed=seed)
            loader = MemmapLoader(
                self.full,
                self.options.batch_size,
                shuffle="full",
                seed=seed,
                drop_last=True,
                transform=Compose([crop, flip]),
            )
            curves["store"].append(self.learn(lambda _, loader=loader: loader, seed, self.pack_seconds["random"]))
        return curves

    def folder(self, seed: int, view: View) -> FolderBatches:
        return FolderBatches(self.images, self.train.samples, self.options.batch_size, seed=seed, view=view)

    def learn(self, batches_of: Callable[[int], Batches], seed: int, begun_seconds: float = 0.0) -> Curve:
        """Train a new network; batches_of gives those of an epoch."""
        torch.manual_seed(seed)
        model = network(self.train)
        steps = self.options.epochs * (len(self.train) // self.options.batch_size)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
        curve, start = Curve(), time.perf_counter() - begun_seconds
        for epoch in range(self.options.epochs):
            for images, targets in batches_of(epoch):
                loss = nn.functional.cross_entropy(model(images), targets)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                schedule.step()
                curve.losses.append(round(loss.item(), 6))
                curve.seconds.append(round(time.perf_counter() - start, 3))
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(i).argmax(1) == t).sum()) for i, t in MemmapLoader(self.val, 256))
        curve.accuracy = right / len(self.val)
        return curve


def network(data: MemmapDataset) -> nn.Module:
    layers: list[nn.Module] = [Normalize.of(data.manifest)]
    for before, after in ((3, 16), (16, 32), (32, 64), (64, 96)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, len(data.classes)))
    return model.to(memory_format=torch.channels_last)


# -- what it comes to


def judged(central: dict[str, Curve], random: dict[str, list[Curve]], trial: ParityTrial) -> dict[str, object]:
    apart = max(abs(a - b) for a, b in zip(central["folder"].losses, central["store"].losses, strict=True))
    accuracy = {name: [round(curve.accuracy, 4) for curve in curves] for name, curves in random.items()}
    difference = float(np.mean(accuracy["store"]) - np.mean(accuracy["folder"]))
    variances = [float(np.var(values, ddof=1)) / len(values) for values in accuracy.values()]
    noise = T_95[len(accuracy["store"])] * math.sqrt(sum(variances))
    seconds = {name: sum(curve.seconds[-1] for curve in curves) / len(curves) for name, curves in random.items()}
    return {
        "central_losses_are_equal": apart == 0,
        "central_largest_difference": apart,
        "central_seconds": {name: curve.seconds[-1] for name, curve in central.items()},
        "random_accuracy": accuracy,
        "random_difference": round(difference, 4),
        "random_noise": round(noise, 4),
        "random_agrees_within_noise": abs(difference) <= noise,
        "random_seconds": {name: round(value, 2) for name, value in seconds.items()},
        "pack_seconds": {name: round(value, 2) for name, value in trial.pack_seconds.items()},
    }


def plot(central: dict[str, Curve], random: dict[str, list[Curve]], verdict: dict[str, object], out: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH_INCHES, 3.6), dpi=DPI, layout="constrained", facecolor="white")
    axes = figure.subplots(1, 2, sharey=True, subplot_kw={"facecolor": "white"})
    means = f"random resized crops, mean of {len(random['store'])} seeds"
    for panel, of, runs in (
        (axes[0], "central crops, one seed", {name: [curve] for name, curve in central.items()}),
        (axes[1], means, random),
    ):
        for name, color, ink, width, height in (("folder", OTHER, GRAY, 5.0, 0.9), ("store", OURS, OURS, 1.8, 0.82)):
            losses = smoothed(np.mean([curve.losses for curve in runs[name]], axis=0))
            accuracy = np.mean([curve.accuracy for curve in runs[name]])
            panel.plot(losses, color=color, linewidth=width)
            text = f"{name}, accuracy {accuracy:.3f}"
            panel.text(0.98, height, text, color=ink, weight="bold", ha="right", transform=panel.transAxes)
        panel.set_title(of, loc="left", size=10, color=DARK)
        panel.set_xlabel("steps")
        panel.spines[["top", "right"]].set_visible(False)
        panel.spines[["left", "bottom"]].set_color(GRAY)
        panel.tick_params(color=GRAY, labelcolor=DARK)
    axes[0].set_ylabel(f"loss, mean of {SMOOTH} steps")
    figure.suptitle(finding(verdict), weight="bold", color=DARK)
    if out.suffix == ".svg":
        out.write_bytes(svg_bytes(figure))
    else:
        figure.savefig(out)


def finding(verdict: dict[str, object]) -> str:
    """Say in one line whether the same was learned."""
    if not (verdict["central_losses_are_equal"] and verdict.get("random_agrees_within_noise", True)):
        return "What is learned from the store is not what is learned from the folder"
    return "The network learns the same from the store as from the folder"


def smoothed(values: np.ndarray) -> np.ndarray:
    """Average each SMOOTH steps; shorter by SMOOTH - 1."""
    return np.convolve(values, np.ones(SMOOTH) / SMOOTH, "valid") if len(values) >= SMOOTH else values


if __name__ == "__main__":
    sys.exit(main())
