"""The ways in which bench_pack.py makes rows of a folder of photographs; each returns the seconds it took.

Knows what is fair to each way; no statistics.
"""

from __future__ import annotations

import io
import json
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tensordict import MemoryMappedTensor, tensorclass
from torch.utils.data import DataLoader, Dataset

import packer
from packer.pixels.decode import Decoder
from packer.pixels.formats.jpeg import read_header
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.geometry import Geometry
from scripts import environment
from scripts.common.figures import BenchmarkError
from scripts.common.pictures import picture
from scripts.common.timing import seconds, timed

# A worker draws so many files at a time: a block of pack has as many at 2,000 files.
DRAW = 8
# The tutorial's batch.
TUTORIAL_BATCH = 64

Task = Callable[[int], None]


@dataclass(frozen=True)
class ListedFolder:
    """One folder to be packed, listed once: file i has target i and is decoded by scale i."""

    images: Path
    work: Path
    paths: list[Path]
    names: list[str]
    targets: list[int]
    scales: list[int]
    size: int
    workers: int


# -- the limits: processes that draw files from one counter


def in_processes(job: ListedFolder, start: Callable[[ListedFolder], Task]) -> float:
    """Run start(job)(i) for every file i on forked processes; returns seconds, the processes' start included.

    Raises:
        BenchmarkError: a process failed.
    """
    context = multiprocessing.get_context("fork")
    drawn = context.Value("q", 0)
    processes = [context.Process(target=_serve, args=(job, start, drawn)) for _ in range(job.workers)]

    def run() -> None:
        for process in processes:
            process.start()
        for process in processes:
            process.join()

    taken = seconds(run)
    if any(process.exitcode for process in processes) or drawn.value < len(job.paths):
        raise BenchmarkError(f"{start.__name__}: a process failed before all files were done.")
    return taken


def _serve(job: ListedFolder, start: Callable[[ListedFolder], Task], drawn: Any) -> None:
    task = start(job)
    while True:
        with drawn:
            first = drawn.value
            drawn.value += DRAW
        if first >= len(job.paths):
            return
        for i in range(first, min(first + DRAW, len(job.paths))):
            task(i)


def decode_alone(job: ListedFolder) -> Task:
    """Return what reads and decodes file i, and no more."""
    decoder = JpegDecoder()

    def decode(i: int) -> None:
        data = job.paths[i].read_bytes()
        header, scale = read_header(data), job.scales[i]
        decoder.decode(data, math.ceil(header.width / scale), math.ceil(header.height / scale))

    def decode_by_pillow(i: int) -> None:
        with Image.open(io.BytesIO(job.paths[i].read_bytes())) as image:
            width, height = image.size
            image.draft(None, (math.ceil(width / job.scales[i]), math.ceil(height / job.scales[i])))
            image.load()

    return decode if decoder.is_available else decode_by_pillow


def make_rows(job: ListedFolder) -> Task:
    """Return what makes file i into a row, which is dropped."""
    decoder = Decoder(Geometry(job.size, job.size))
    return lambda i: decoder.row(job.paths[i].read_bytes()) and None


# -- the tutorial's way


@tensorclass
class Pictures:
    images: torch.Tensor
    targets: torch.Tensor


class PictureFolder(Dataset):
    """The pictures of a folder and their targets."""

    def __init__(self, job: ListedFolder) -> None:
        self._paths, self._targets, self._size = job.paths, job.targets, job.size

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(picture(self._paths[index], self._size)), self._targets[index]


def time_tutorial(job: ListedFolder) -> float:
    """Fill a memory-mapped tensorclass from a DataLoader; returns seconds."""
    folder = job.work / "tutorial"
    folder.mkdir()
    begun = time.perf_counter()
    dataset, count = PictureFolder(job), len(job.paths)
    shape, filename = (count, *dataset[0][0].shape), folder / "images"
    # its memmap_() is left out: without a prefix that would move the data to shared memory, away from these files
    data = Pictures(
        images=MemoryMappedTensor.empty(shape, dtype=torch.uint8, filename=filename),
        targets=MemoryMappedTensor.empty((count,), dtype=torch.int64, filename=folder / "targets"),
        batch_size=[count],
    )
    start = 0
    for images, targets in DataLoader(dataset, batch_size=TUTORIAL_BATCH, num_workers=job.workers):
        data[start : start + len(images)] = Pictures(images=images, targets=targets, batch_size=[len(images)])
        start += len(images)
    return time.perf_counter() - begun


# -- ours


def time_call(job: ListedFolder) -> float:
    """Pack from this process; returns seconds."""
    out = job.work / "store"
    return seconds(lambda: packer.pack(job.images, out, size=job.size, workers=job.workers, max_rejects=0))


def time_vanilla(job: ListedFolder, way: str, pillow: Path) -> float:
    """Time a way of _vanilla_ways.py with the Pillow in a folder; returns seconds.

    Raises:
        BenchmarkError: it failed, or took another Pillow.
    """
    known = {"images": str(job.images), "work": str(job.work), "paths": [str(path) for path in job.paths]}
    known |= {"targets": job.targets, "size": job.size, "workers": job.workers}
    done = subprocess.run(
        [sys.executable, "-m", "scripts.benchmarks.packing._vanilla_ways", way],
        input=json.dumps(known),
        capture_output=True,
        text=True,
        env=environment(pillow),
    )
    if done.returncode:
        raise BenchmarkError(f"the {way} with the Pillow in {pillow} failed: {done.stderr.strip().splitlines()[-1]}")
    report = json.loads(done.stdout)
    if not Path(report["from"]).is_relative_to(pillow.resolve()):
        raise BenchmarkError(f"the {way} took {report['from']}, not the Pillow in {pillow}.")
    return float(report["seconds"])


def time_command(job: ListedFolder) -> float:
    """Pack by the command; returns seconds from before its start to after its end.

    Raises:
        BenchmarkError: the command failed.
    """
    return _time_words(command(job, job.work / "store"))


def time_update(job: ListedFolder, packed: Path) -> float:
    """Bring a copy of a store up to date by the command, where nothing has changed; the copy is not timed.

    Raises:
        BenchmarkError: the command failed.
    """
    shutil.copytree(packed, job.work / "store")
    os.sync()
    words = ["update", str(job.images), str(job.work / "store"), "--workers", str(job.workers)]
    return _time_words([sys.executable, "-m", "packer", *words])


def _time_words(words: list[str]) -> float:
    environment = command_environment()
    done, taken = timed(lambda: subprocess.run(words, capture_output=True, text=True, env=environment))
    if done.returncode:
        raise BenchmarkError(f"pack ended with exit code {done.returncode}: {done.stderr.strip()}")
    return taken


def command_environment() -> dict[str, str]:
    """Return this process's environment, in which Python keeps compiled modules: pip compiles what it installs."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def command(job: ListedFolder, out: Path) -> list[str]:
    options = ["--size", str(job.size), "--workers", str(job.workers)]
    return [sys.executable, "-m", "packer", str(job.images), str(out), *options]
