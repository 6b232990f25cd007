"""How many images/s does a training loop get from ImageFolder and a DataLoader at its best, and how many from a store?

    python -m scripts.benchmarks.reading.bench_imagefolder
    python -m scripts.benchmarks.reading.bench_imagefolder --publish

Both give the same batches of uint8[B, 3, 224, 224] on this machine's CPUs: training batches of RandomResizedCrop and
RandomHorizontalFlip, shuffled, by torchvision from the JPEGs and by `reader` from a store of `--fit none --max-size 512`; and
validation batches of Resize(256) and CenterCrop(224), in order, from the JPEGs and from a store of `--size 224 --crop-fraction
0.875`. The DataLoader has persistent workers, pin_memory where there is a GPU, the installed Pillow (Pillow-SIMD where
scripts/setup.sh ran), and the number of workers that was fastest here. All files are in the page cache, and the JPEGs take
less of it. Each round times both in turn; ratios are taken within a round. Checked: every image comes once, targets are the
same, and so are the validation pixels, on average within one level.

--publish writes the figures, the charts, and the lines of the README and of the benchmark's page. The last line is JSON.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

import packer
from reader import Compose, MemmapDataset, MemmapLoader, RandomHorizontalFlip, RandomResizedCrop
from reader.system import available_cpus
from scripts.benchmarks.reading._imagefolder_page import markdown, write
from scripts.common.arguments import bench_parser
from scripts.common.figures import BenchmarkError, machine, photographs, ratios, repeat_files, spread
from scripts.common.program import reported
from scripts.common.timing import in_turns
from scripts.common.torchvision_part import torchvision_v2

# A store is read many times as fast: so many epochs in a turn, so that its start and end do not decide.
_EPOCHS_OF_STORE = 4
# Decoders of two libjpeg versions, and the rounding of a resize, differ by less on average.
_LEVELS = 1.0


@dataclass(frozen=True)
class Comparison:
    """Batches of one kind from both sides, and what must be in an epoch of them."""

    name: str
    folder: Callable[[int], DataLoader]  # of so many workers
    store: MemmapLoader
    targets: list[int]

    def rate(self, batches: Iterable[Any], epochs: int = 1) -> float:
        """Return the images/s of some epochs; raises BenchmarkError where one of them lacks an image or has one twice."""
        targets: list[int] = []
        started = time.perf_counter()
        for _ in range(epochs):
            found = [labels for images, labels in batches if images.dtype == torch.uint8]
            targets += torch.cat(found).tolist()
        seconds = time.perf_counter() - started
        if sorted(targets) != sorted(self.targets * epochs):
            raise BenchmarkError(f"{self.name}: {len(targets)} targets are not those of {epochs} epochs.")
        return len(targets) / seconds


def main() -> int:
    """Measure both kinds of batches, and print or publish what was found."""
    parser = bench_parser(__doc__, images=None, count=1_500, size=224, batch_size=128, rounds=5, work=None)
    parser.add_argument(
        "--publish", action="store_true", help="write figures, charts, and the lines of README and page"
    )
    options = parser.parse_args()
    torchvision_v2()  # not after minutes of packing
    # it is the point of the sweep to try more workers than CPUs, too
    warnings.filterwarnings("ignore", message="This DataLoader will create")

    def measured(work: Path) -> dict[str, Any]:
        report = measure(work, options)
        if options.publish:
            write(report)
        return report

    return reported("bench_imagefolder", measured, text=markdown, work=options.work)


def measure(work: Path, options: Any) -> dict[str, Any]:
    """Pack the photographs and time every task; work is an empty folder."""
    images = work / "images"
    repeat_files(photographs(options.images, work, options.size), images, options.count, link=True)
    packed = packer.pack(images, work / "train", fit="none", max_size=512, max_rejects=0)
    packer.pack(images, work / "val", size=options.size, crop_fraction=0.875, max_rejects=0)
    tasks = tasks_of(images, work, options)
    check_pixels(tasks[1])
    best, sweep = fastest(tasks[0])
    found = {task.name: timed(task, best, options.rounds) for task in tasks}
    train = found["training"]
    seconds = {side: options.count / train[side]["median"] for side in ("folder", "store")}
    gain = seconds["folder"] - seconds["store"]
    return {
        "benchmark": "imagefolder",
        "machine": machine(work),
        "images": options.count,
        "size": options.size,
        "batch_size": options.batch_size,
        "rounds": options.rounds,
        "workers": best,
        "workers_tried": sweep,
        "tasks": found,
        "pack_seconds": round(packed.seconds, 2),
        "store_bytes": packed.store_bytes,
        "source_bytes": packed.source_bytes,
        "epochs_to_break_even": round(packed.seconds / gain, 2) if gain > 0 else None,
    }


def tasks_of(images: Path, work: Path, options: Any) -> tuple[Comparison, Comparison]:
    """Return training and validation batches, of both sides."""
    v2 = torchvision_v2()
    from torchvision.datasets import ImageFolder

    size, batch = options.size, options.batch_size
    random = v2.Compose([v2.RandomResizedCrop(size), v2.RandomHorizontalFlip(), v2.PILToTensor()])
    central = v2.Compose([v2.Resize(int(size / 0.875)), v2.CenterCrop(size), v2.PILToTensor()])

    def of_folder(transform: Any, shuffle: bool) -> Callable[[int], DataLoader]:
        data = ImageFolder(str(images), transform)
        common = {"shuffle": shuffle, "pin_memory": torch.cuda.is_available()}
        return lambda workers: DataLoader(data, batch, num_workers=workers, persistent_workers=workers > 0, **common)

    train, val = MemmapDataset(work / "train"), MemmapDataset(work / "val")
    crops = Compose([RandomResizedCrop(size), RandomHorizontalFlip()])
    shuffled = MemmapLoader(train, batch, shuffle="full", transform=crops)
    targets = train.targets if isinstance(train.targets, list) else torch.as_tensor(train.targets).tolist()
    return (
        Comparison("training", of_folder(random, True), shuffled, targets),
        Comparison("validation", of_folder(central, False), MemmapLoader(val, batch), targets),
    )


def check_pixels(task: Comparison) -> None:
    """Compare the first batch of both sides; raises BenchmarkError where it is not the same pictures."""
    ours, targets = next(iter(task.store))
    theirs, expected = next(iter(task.folder(0)))
    if not torch.equal(torch.as_tensor(targets), expected):
        raise BenchmarkError(f"{task.name}: the targets of the first batch differ.")
    # of most images: those that their EXIF data turn are turned here, and not by ImageFolder
    levels = (ours.int() - theirs.int()).abs().float().mean(dim=(1, 2, 3)).median().item()
    if levels > _LEVELS:
        raise BenchmarkError(
            f"{task.name}: images of the first batch differ by {levels:.2f} levels in the median, expected {_LEVELS}."
        )


def fastest(task: Comparison) -> tuple[int, dict[str, float]]:
    """Return the number of workers with which the DataLoader is fastest, and the images/s of each that was tried."""
    cpus = available_cpus()
    rates = {}
    for workers in sorted({max(1, cpus - 1), cpus, cpus + 1, 2 * cpus}):
        loader = task.folder(workers)
        task.rate(loader)  # starts the workers, and reads the files
        rates[workers] = round(task.rate(loader), 1)
        del loader
    return max(rates, key=lambda workers: rates[workers]), {str(workers): rate for workers, rate in rates.items()}


def timed(task: Comparison, workers: int, rounds: int) -> dict[str, Any]:
    """Time both sides in turns; returns images/s, and ours over theirs."""
    loader = task.folder(workers)
    turns = {"folder": lambda: task.rate(loader), "store": lambda: task.rate(task.store, _EPOCHS_OF_STORE)}
    found = in_turns(turns, rounds, untimed=1)
    rates = {side: spread(values, 1) for side, values in found.items()}
    return {**rates, "ratio": ratios(found["store"], found["folder"])}


if __name__ == "__main__":
    sys.exit(main())
