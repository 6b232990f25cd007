"""FFCV 1.0.2 as its ImageNet recipe has it: a file of which half the images are JPEGs, cropped and flipped by its threads.

    python -m scripts.benchmarks.reading._ffcv_way IMAGES FILE SIDE     writes the file, of sides of at most SIDE

The file is written by a program of its own: the writer forks, and waits for ever for a process that has failed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from reader.system import available_cpus
from scripts.benchmarks.reading._gpu_step import Labeled
from scripts.common.figures import BenchmarkError
from scripts.common.torchvision_part import import_torchvision

# Of sides of 512, 1,000 JPEGs take a core about 10 s.
WRITER_SECONDS = 120


def written(images: Path, file: Path, side: int) -> None:
    """Write a folder of photographs as a file of FFCV.

    Raises:
        BenchmarkError: the writer failed, or took too long.
    """
    words = ["-m", "scripts.benchmarks.reading._ffcv_way", *map(str, (images, file, side))]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise BenchmarkError(f"FFCV's writer: {done.stderr[-400:]}")


def epochs(file: Path, batch_size: int, side: int, device: torch.device) -> Callable[[], Iterator[Labeled]]:
    """Return what begins an epoch of shuffled batches on the device, random crops of side x side."""
    threads = torch.get_num_threads()
    try:
        loader = _loader(file, batch_size, side, device)
    finally:
        # once it is imported, torch has one thread, later as many as its loaders: the other ways keep theirs
        torch.set_num_threads(threads)

    def epoch() -> Iterator[Labeled]:
        try:
            for images, targets in loader:
                # later batches are written over them, and a step keeps its targets
                yield images, targets.clone()
        finally:
            torch.set_num_threads(threads)

    return epoch


def _loader(file: Path, batch_size: int, side: int, device: torch.device) -> Any:
    from ffcv.fields.basics import IntDecoder
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToDevice, ToTensor, ToTorchImage

    def sent() -> Any:
        return ToDevice(device, non_blocking=True)

    image = [RandomResizedCropRGBImageDecoder((side, side)), RandomHorizontalFlip(), ToTensor(), sent(), ToTorchImage()]
    pipelines = {"image": image, "label": [IntDecoder(), ToTensor(), Squeeze(), sent()]}
    order = {"order": OrderOption.RANDOM, "os_cache": True, "drop_last": True}
    return Loader(str(file), batch_size, num_workers=available_cpus(), pipelines=pipelines, **order)


def main() -> int:
    images, file, side = sys.argv[1:]
    signal.signal(signal.SIGALRM, _stop)
    signal.alarm(WRITER_SECONDS)
    _write(images, file, int(side))
    return 0


def _write(images: str, file: str, side: int) -> None:
    from ffcv.fields import IntField, RGBImageField
    from ffcv.writer import DatasetWriter

    Path(file).parent.mkdir(parents=True, exist_ok=True)
    # the recipe's own, but for its sides of at most 500
    image = RGBImageField(write_mode="proportion", max_resolution=side, compress_probability=0.5, jpeg_quality=90)
    writer = DatasetWriter(file, {"image": image, "label": IntField()}, num_workers=available_cpus())
    writer.from_indexed_dataset(import_torchvision().datasets.ImageFolder(images))


def _stop(*_: Any) -> None:
    for process in multiprocessing.active_children():
        process.kill()
    print(f"it had not ended after {WRITER_SECONDS} s", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
