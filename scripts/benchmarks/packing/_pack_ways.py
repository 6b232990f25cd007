"""The ways in which bench_pack.py makes rows of a folder of photographs; each returns the seconds it took.

Knows what is fair to each way; no statistics.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

import packer
from packer.pixels.decode import Decoder
from packer.pixels.formats.jpeg import read_header
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.geometry import Geometry
from scripts.common.figures import BenchmarkError
from scripts.common.timing import seconds, timed

# A worker draws so many files at a time: a block of pack has as many at 2,000 files.
DRAW = 8

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


# -- ours


def time_call(job: ListedFolder) -> float:
    """Pack from this process; returns seconds."""
    out = job.work / "store"
    return seconds(lambda: packer.pack(job.images, out, size=job.size, workers=job.workers, max_rejects=0))


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
