"""What the claims share: a finding, stores and photographs to measure on, other libraries,
timing in turns.

Draws nothing and knows no claim.
"""

from __future__ import annotations

import multiprocessing
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from scripts.common.figures import spread
from scripts.common.timing import collection_paused, in_turns, seconds
from scripts.samples.scenes import SCENES, draw
from scripts.samples.stores import made_once

# Where the claims were made.
LOOPS = "The fast train loops (Nasy, slides, 2024)"
LOADER_NOTES = "Pytorch dataloader (notes)"
SENDING = "How to efficiently send images to GPU (F. S. Zuppichini, slides)"
NOTES = "PyTorch (notes)"

# height x width, and batches: the slides' of sending images
SIZES = ((384, 384), (640, 480), (1280, 960))
BATCHES = (8, 16, 32, 64)
# ImageNet's most frequent size, width x height
PHOTO_SIZE = (500, 375)


class MissingRequirement(Exception):
    """This machine lacks what the measurement needs; the text says what."""


@dataclass(frozen=True)
class ClaimResult:
    """What the figures say: `title` over the picture, `measured` in the table, and whether the claim holds here.

    holds is None where what decides needs something that this machine lacks, while the rest was measured.
    """

    title: str
    measured: str
    holds: bool | None


@dataclass
class Calls:
    """A way that is nothing but calls of a function, `count` of them a turn."""

    call: Callable[[], Any]
    count: int = 1

    def turn(self) -> float:
        """Return the seconds of a call."""

        def calls() -> None:
            for _ in range(self.count):
                self.call()

        return seconds(calls) / self.count


def seconds_in_turns(ways: dict[str, Calls], rounds: int) -> dict[str, list[float]]:
    """Time every way once a round; returns seconds a call, after two rounds that do not count."""
    with collection_paused():
        return in_turns({name: way.turn for name, way in ways.items()}, rounds, untimed=2)


def milliseconds(ways: Mapping[str, Callable[[], Any]], device: torch.device, rounds: int) -> dict[str, Any]:
    """Time the ways in turns, each until the device has ended it, after two rounds that do not count."""
    turns = {name: partial(seconds, way, device) for name, way in ways.items()}
    with collection_paused():
        found = in_turns(turns, rounds, untimed=2)
    return {name: spread([1e3 * value for value in values], 4) for name, values in found.items()}


def medians(found: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the median of each spread."""
    return {name: float(spread["median"]) for name, spread in found.items()}


def lacking(figures: Mapping[str, Any]) -> str:
    """Say what was not measured, behind what was: "; cuda: not measured, no GPU"."""
    return "".join(f"; {name}: not measured, {why}" for name, why in figures["not_measured"].items())


def best_device() -> torch.device:
    """Return a GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compiling_device() -> torch.device:
    """Return the best device, for which torch.compile works here.

    Raises:
        MissingRequirement: there is no compiler.
    """
    if not torch.cuda.is_available() and not (shutil.which("g++") or shutil.which("clang++")):
        raise MissingRequirement("no C++ compiler for torch.compile")
    # this process alone compiles: a pool of compilers would outlive what is measured
    torch._inductor.config.compile_threads = 1
    return best_device()


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


def photo_folder(work: Path, count: int, size: tuple[int, int] = PHOTO_SIZE) -> Path:
    """Make a folder of class folders with `count` JPEGs of width x height; only a few are different, which no reader notices."""

    def make(folder: Path) -> None:
        names, (across, down) = sorted(SCENES), PHOTO_SIZE
        for i in range(count):
            path = folder / names[i % len(names)] / f"{i:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            if i < len(names):
                picture = Image.fromarray(draw(names[i], np.random.default_rng(i), down, across))
                picture.resize(size).save(path, quality=90)
            else:
                shutil.copyfile(folder / names[i % len(names)] / f"{i % len(names):06}.jpg", path)

    width, height = size
    return made_once(work / f"photos-{count}-{width}x{height}", make)


def installed(packages: tuple[str, ...], folder: Path, *, may_install: bool) -> Path:
    """Install packages in a folder of their own, or find them there.

    Raises:
        MissingRequirement: they do not install; the text is pip's.
    """

    def make(target: Path) -> None:
        if not may_install:
            raise MissingRequirement("not installed with --quick")
        words = ["install", "-q", "--no-deps", "--prefer-binary", "--target", str(target), *packages]
        done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["ERROR: no word"]
            raise MissingRequirement(f"pip: {errors[-1].removeprefix('ERROR: ')[:200]}")

    return made_once(folder, make)
