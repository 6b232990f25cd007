"""How many files does a batch open, and how many pages does it fault in: a folder of JPEGs, a DataLoader, ours?

One epoch after a first, untimed one, warm page cache. Page faults are those of getrusage, the workers' included. Files are
counted by an audit hook, which sees every open() that Python code makes, in forked workers too (what C code opens, such
as the shared memory by which a worker sends its batch, is not seen).
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from reader import MemmapDataset, MemmapLoader
from scripts.benchmarks.reading._read_ways import touch
from scripts.common import plot
from scripts.common.timing import drain
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import SENDING, ClaimResult, photo_folder

CLAIM = "A folder opens too many files and faults in memory all the time; one mapped, contiguous file does neither."
SOURCE = SENDING

FOLDER, FOLDER_WORKERS = "JPEG folder, DataLoader", "JPEG folder, 2 workers"
STORE, STORE_WORKERS, LOADER = "MemmapDataset, DataLoader", "MemmapDataset, 2 workers", "MemmapLoader"
WORKERS = 2


class ResizedFolder(Dataset):
    def __init__(self, root: Path, side: int) -> None:
        self.files, self.side = sorted(root.rglob("*.jpg")), side

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> np.ndarray:
        with Image.open(self.files[index]) as image:
            return np.array(image.convert("RGB").resize((self.side, self.side), Image.Resampling.BILINEAR))


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return page faults and opened files a batch."""
    photos, rows, side, size = (32, 256, 128, 16) if quick else (2_560, 20_000, 224, 256)
    opened = count_opens()
    folder = ResizedFolder(photo_folder(work, photos), side)
    data = MemmapDataset(random_store(work, rows, side)).subset(slice(len(folder) * 4))
    touch(data.store.pixels[: len(data)].numpy())
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        FOLDER: lambda: DataLoader(folder, size, shuffle=True),
        FOLDER_WORKERS: lambda: DataLoader(folder, size, shuffle=True, num_workers=WORKERS),
        STORE: lambda: DataLoader(data, size, shuffle=True),
        STORE_WORKERS: lambda: DataLoader(data, size, shuffle=True, num_workers=WORKERS),
    }
    loader = MemmapLoader(data, size, shuffle="full")
    ways[LOADER] = lambda: loader
    found = {name: one_epoch(way, opened) for name, way in ways.items()}
    loader.close()
    return {"batch_size": size, "batch_mib": size * side * side * 3 / 2**20, "a_batch": found}


def count_opens() -> Any:
    """Count the files that this process and its forks open from now on."""
    opened = multiprocessing.get_context("fork").Value("q", 0)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            with opened.get_lock():
                opened.value += 1

    sys.addaudithook(hook)
    return opened


def one_epoch(way: Callable[[], Iterable[Any]], opened: Any) -> dict[str, float]:
    """Return faults and opened files a batch of the second epoch, start and end of its workers included."""
    drain(way())
    faults, files, batches = page_faults(), opened.value, 0
    for batch in way():
        del batch
        batches += 1
    found = {"page_faults": page_faults() - faults, "opened_files": opened.value - files}
    return {name: round(value / batches, 1) for name, value in found.items()}


def page_faults() -> int:
    """Page faults of this process and of those of its workers that have ended."""
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_minflt + usage.ru_majflt for usage in found)


def conclude(figures: dict[str, Any]) -> ClaimResult:
    found, size = figures["a_batch"], figures["batch_size"]
    folder, ours, copied = found[FOLDER], found[LOADER], found[FOLDER_WORKERS]["page_faults"]
    return ClaimResult(
        f"A batch of {size} images of a folder opens {folder['opened_files']:.0f} files and faults in {copied:,.0f} pages;"
        f" one of MemmapLoader {ours['opened_files']:.0f} and {ours['page_faults']:,.0f}",
        f"Page faults a batch of {size}: folder {folder['page_faults']:,.0f} (2 workers"
        f" {found[FOLDER_WORKERS]['page_faults']:,.0f}), DataLoader on a store {found[STORE]['page_faults']:,.0f} (2 workers"
        f" {found[STORE_WORKERS]['page_faults']:,.0f}), MemmapLoader {ours['page_faults']:,.0f}. Files opened a batch:"
        f" {folder['opened_files']:.0f} from the folder, {ours['opened_files']:.0f} from the store.",
        folder["opened_files"] >= size and ours["opened_files"] < 1 and ours["page_faults"] < folder["page_faults"] / 2,
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    figure, panels = make(panels=2)
    figure.subplots_adjust(wspace=0.12)
    for axes, key, label in zip(panels, ("page_faults", "opened_files"), ("page faults", "files opened"), strict=True):
        values = {name: found[key] for name, found in figures["a_batch"].items()}
        plot.bars(
            axes,
            values,
            [f"{value:,.0f}" for value in values.values()],
            xlabel=f"{label} a batch of {figures['batch_size']}",
        )
    panels[1].set_yticklabels([])
    return figure
