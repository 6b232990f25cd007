"""Makes the input of benchmarks: photographs and stores. Times nothing."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

import pixpack
from scripts import ROOT
from scripts.bench.harness import Lab, Skip, require
from scripts.samples.scenes import CLASSES, draw
from scripts.samples.stores import random_store

# The most frequent size of ImageNet's photographs, width x height.
PHOTO_SIZE = (500, 375)
# Photographs that are drawn; further ones are copies, which makes no difference to a reader.
DRAWN = 240


def photographs(lab: Lab, count: int, size: tuple[int, int] | None = None) -> Path:
    """Return a folder of class folders with `count` JPEGs: drawn ones of a size, else those of --images, repeated."""
    root = None if size else lab.images
    given = root and sorted(path for path in root.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if given is not None and not given:
        raise ValueError(f"{root} holds no JPEG. Expected {root}/<class>/<name>.jpg.")
    width, height = size or PHOTO_SIZE
    source = f"of-{root.name}" if root else f"{width}x{height}"

    def make(folder: Path) -> None:
        drawn: list[Path] = []
        for number in range(count):
            name = CLASSES[number % len(CLASSES)]
            # evenly over the list, so that even a few photographs have all classes
            picked = given[number * len(given) // count] if given else None
            path = folder / (picked.parent.name if picked else name) / f"{number:06}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            if picked or number >= DRAWN:
                shutil.copyfile(picked or drawn[number % DRAWN], path)
            else:
                picture = Image.fromarray(draw(name, np.random.default_rng(number), *PHOTO_SIZE[::-1]))
                picture.resize((width, height)).save(path, quality=90)
                drawn.append(path)

    return made_once(lab.work / f"photographs-{count}-{source}", make)


def random_data(lab: Lab, rows: int, side: int) -> pixpack.MemmapDataset:
    """Open a store of random pixels, sorted by class; all of its pages are mapped."""
    made = made_once(lab.work / f"random-{rows}x{side}", lambda out: random_store(out, rows, side))
    data = pixpack.MemmapDataset(made)
    data.numpy().reshape(-1)[:: os.sysconf("SC_PAGE_SIZE")].max()
    return data


def made_once(dest: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder or file that `make` makes, unless an earlier run with the same --work has."""
    if not dest.exists():
        part = dest.with_name(dest.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        part.rename(dest)
    return dest


def drain(batches: Iterable[object]) -> None:
    """Take all batches, and drop each before the next."""
    for batch in batches:
        del batch


def require_epoch(batches: Iterable[Any], data: pixpack.MemmapDataset, way: str) -> None:
    """Check that an epoch of (images, targets) has each target as often as the store."""
    targets = torch.cat([torch.as_tensor(targets) for _, targets in batches])
    require(torch.equal(targets.sort().values, torch.as_tensor(data.targets).sort().values), f"{way} is not the epoch.")


def in_processes(workers: int, task: Callable[[Path], object], files: list[Path]) -> None:
    """Call a task for every file on forked processes; their start is timed too."""
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for _ in pool.imap_unordered(task, files, chunksize=8):
            pass


def in_child(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a forked process, which has its own peak of memory; the result must pickle."""
    context = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()

    def answered() -> None:
        # the threads of the parent's pool do not exist here
        torch.set_num_threads(1)
        answer.put(call(*arguments))

    process = context.Process(target=answered)
    process.start()
    process.join()
    require(process.exitcode == 0, f"a measuring process ended with {process.exitcode}.")
    return answer.get()


def imported(name: str, package: str) -> Any:
    """Import a module, or raise Skip with the package to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skip(f"pip install {package}") from None


def torchvision() -> ModuleType:
    """Import torchvision with its datasets and transforms v2: of .venv/torchvision or the environment.

    Its Python part imports even with a torch of another build, although its compiled part does not.
    """
    before = [*sys.path]
    sys.path.insert(0, str(ROOT / ".venv" / "torchvision"))
    try:
        return _imported_torchvision()
    except RuntimeError as e:
        if "torchvision::nms does not exist" not in str(e):
            raise
        _declare_operators()
        return _imported_torchvision()
    except ImportError as e:
        raise Skip(f"pip install --no-deps torchvision ({e})") from e
    finally:
        # an imported module may have added its own folders at the front
        sys.path[:] = before


def _imported_torchvision() -> ModuleType:
    import torchvision.datasets
    import torchvision.transforms.v2

    found: ModuleType = torchvision
    return found


def _declare_operators() -> None:
    """Declare the operators that torchvision names during its import; they are never called."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        del sys.modules[name]


# A library is removed with its last reference.
_declared: list[torch.library.Library] = []
