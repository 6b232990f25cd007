"""What the modules beside this one share: a finding, stores and photographs to measure on, other libraries,
timing in turns.

Draws nothing and knows no claim.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reader.format.manifest import PIXELS
from scripts.benchmarks.bench_open import sparse_store
from scripts.benchmarks.bench_read import in_turns
from scripts.samples.scenes import SCENES, draw

# Where the claims were made.
LOOPS = "The fast train loops (Nasy, slides, 2024)"
LOADER_NOTES = "Pytorch dataloader (notes)"
SENDING = "How to efficiently send images to GPU (F. S. Zuppichini, slides)"
NOTES = "PyTorch (notes)"
OURS = "pixpack's own aim"

CLASSES = 100
# ImageNet's most frequent size, width x height
PHOTO_SIZE = (500, 375)


class NotMeasured(Exception):
    """This machine lacks what the measurement needs; the text says what."""


@dataclass(frozen=True)
class Finding:
    """What the figures say: `title` over the picture, `measured` in the table, and whether the claim holds here.

    holds is None where what decides needs something that this machine lacks, while the rest was measured.
    """

    title: str
    measured: str
    holds: bool | None


@dataclass
class Calls:
    """A way for bench_read.in_turns that is nothing but calls of a function, `batches` of them a turn."""

    call: Callable[[], Any]
    batches: int = 1

    def begin(self) -> None:
        pass

    def batch(self) -> None:
        self.call()

    def end(self) -> None:
        pass


def seconds_in_turns(ways: dict[str, Calls], rounds: int) -> dict[str, list[float]]:
    """Time every way once a round; returns seconds a call, after two rounds that do not count."""
    return {name: [1 / rate for rate in rates] for name, rates in in_turns(ways, 1, rounds).items()}


def medians(found: dict[str, Sequence[float]]) -> dict[str, float]:
    return {name: float(np.median(values)) for name, values in found.items()}


def in_child(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a forked process, whose memory nothing else has touched.

    The forking process must never have used torch's threads, or the call would wait for them.
    """
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    process = context.Process(target=lambda: answer.put(call(*arguments)))
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"a measuring process ended with {process.exitcode}.")
    return answer.get()


def random_store(work: Path, rows: int, side: int) -> Path:
    """Make a store of random pixels, sorted by class; one that an earlier run has left in work is used again.

    It was never packed, so its checksums are blank: it opens, but would not pass `pack verify`.
    """
    out = work / f"random-{rows}x{side}"
    if not out.exists():
        part = out.with_name(out.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        sparse_store(part, rows, side)
        fill(part / PIXELS, rows * side * side * 3)
        (np.arange(rows) * CLASSES // rows).astype(np.int64).tofile(part / "_tensordict" / "targets.memmap")
        part.rename(out)
    return out


def fill(path: Path, size_bytes: int) -> None:
    """Write random bytes, the same 64 MiB again and again."""
    noise = np.random.default_rng(0).integers(0, 256, min(size_bytes, 64 << 20), np.uint8)
    with open(path, "r+b") as file:
        for start in range(0, size_bytes, len(noise)):
            file.write(noise[: size_bytes - start])


def photo_folder(work: Path, count: int) -> Path:
    """Make a folder of class folders with `count` JPEGs of 500 x 375; only eight are different, which no reader notices."""
    dest = work / f"photos-{count}"
    if not dest.exists():
        part = dest.with_name(dest.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        first: dict[str, Path] = {}
        for i in range(count):
            name = sorted(SCENES)[i % len(SCENES)]
            path = part / name / f"{i:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            if name in first:
                shutil.copyfile(first[name], path)
            else:
                width, height = PHOTO_SIZE
                Image.fromarray(draw(name, np.random.default_rng(i), height, width)).save(path, quality=90)
                first[name] = path
        part.rename(dest)
    return dest


def installed(packages: tuple[str, ...], folder: Path, *, may_install: bool) -> Path:
    """Install packages in a folder of their own, or find them there.

    Raises:
        NotMeasured: they do not install; the text is pip's.
    """
    if folder.exists():
        return folder
    if not may_install:
        raise NotMeasured("not installed with --quick")
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    words = ["install", "-q", "--no-deps", "--prefer-binary", "--target", str(part), *packages]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    if done.returncode:
        told = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: no word"]
        raise NotMeasured(f"pip: {told[-1].removeprefix('ERROR: ')[:200]}")
    part.rename(folder)
    return folder
