"""How much faster is a memory-mapped store read than a folder of JPEGs, over sizes and batches?

The slides' sizes and batches, whole epochs, shuffled, in turns: a folder that a DataLoader's workers decode by libjpeg-turbo; the
tensorclass of the same pixels, mapped, in a DataLoader with as many workers, as the slides have it; MemmapLoader. The files
have the rows' size, so that nothing is resized, and pack has made the store of them: checked is that all bring the same pixels.
On a CUDA device each batch is sent there as well, from pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import packer
from packer.pixels.formats.turbojpeg import JpegDecoder
from reader import ImageBatch, MemmapDataset, MemmapLoader
from scripts.common import plot
from scripts.common.figures import ratios, spread
from scripts.common.timing import drain
from scripts.studies.claims._claim import (
    BATCHES,
    SENDING,
    SIZES,
    Calls,
    ClaimResult,
    lacking,
    photo_folder,
    seconds_in_turns,
)

CLAIM = "A memory-mapped tensorclass is read faster than a folder of images, to the CPU and to the GPU, at every size."
SOURCE = SENDING

ROUNDS, ROWS, WORKERS = 4, 256, 2
FOLDER, MAPPED, OURS = "JPEG folder, DataLoader", "tensorclass, DataLoader", "MemmapLoader"
COLORS = {FOLDER: plot.GRAY, MAPPED: plot.LINES[0], OURS: plot.OURS}

Epoch = Callable[[], Iterable[Any]]


class DecodedFolder(Dataset):
    """uint8[H, W, 3] of each file: by jpeg4py, or by Pillow, which brings the same library, where the system has none."""

    def __init__(self, root: Path) -> None:
        self.files, self._has_turbojpeg = sorted(root.rglob("*.jpg")), JpegDecoder().is_available

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if not self._has_turbojpeg:
            return torch.from_numpy(np.array(Image.open(self.files[index])))
        import jpeg4py

        return torch.from_numpy(jpeg4py.JPEG(np.fromfile(self.files[index], np.uint8)).decode())


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s by device, size, batch and way."""
    sizes, batches, rows, rounds = (((32, 48),), (8,), 16, 1) if quick else (SIZES, BATCHES, ROWS, ROUNDS)
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    found: dict[str, Any] = {device: {} for device in devices}
    for size in sizes:
        images = photo_folder(work, rows, size[::-1])
        store = packed(images, size)
        for device in devices:
            by_batch = {str(batch): measured(images, store, batch, torch.device(device), rounds) for batch in batches}
            found[device]["x".join(map(str, size))] = by_batch
    missing = {} if "cuda" in devices else {"cuda": "no GPU"}
    return {"rows": rows, "workers": WORKERS, "images_per_second": found, "not_measured": missing}


def packed(images: Path, size: tuple[int, int]) -> Path:
    out = images.with_name(images.name + "-packed")
    if not out.exists():
        packer.pack(images, out, size=size, max_rejects=0)
    return out


def measured(images: Path, store: Path, batch: int, device: torch.device, rounds: int) -> dict[str, Any]:
    """Time an epoch of each way in turns; returns images/s, and how many times as fast as the folder."""
    with MemmapLoader(MemmapDataset(store), batch, shuffle="full", device=device, residency="cache") as ours:
        epochs = ways(images, store, batch, device) | {OURS: lambda: (images for images, _ in ours)}
        calls = {name: Calls(lambda epoch=epoch: drain(epoch(), device)) for name, epoch in epochs.items()}
        seconds = seconds_in_turns(calls, rounds)
    rates = {name: [len(DecodedFolder(images)) / s for s in of] for name, of in seconds.items()}
    return {name: spread(of, 1) | {"to_folder": ratios(of, rates[FOLDER])} for name, of in rates.items()}


def ways(images: Path, store: Path, batch: int, device: torch.device) -> dict[str, Epoch]:
    """Return the ways that are not ours, each an epoch of uint8[B, H, W, 3] on the device; raises if the pixels differ."""
    folder, mapped = DecodedFolder(images), ImageBatch.load_memmap(store)
    if not torch.equal(folder[0], mapped.pixels[0]):
        raise RuntimeError("a file of the folder and its row in the store are not the same pixels.")
    kept: dict[str, Any] = {"num_workers": WORKERS, "persistent_workers": True, "pin_memory": device.type == "cuda"}
    loaders = {
        FOLDER: DataLoader(folder, batch, shuffle=True, **kept),
        MAPPED: DataLoader(mapped, batch, shuffle=True, collate_fn=pixels_of, **kept),
    }

    def sent(loader: DataLoader) -> Epoch:
        return lambda: (found.to(device, non_blocking=True) for found in loader)

    return {name: sent(loader) for name, loader in loaders.items()}


def pixels_of(batch: ImageBatch) -> torch.Tensor:
    return batch.pixels


def times(figures: dict[str, Any], device: str, way: str) -> dict[str, float]:
    """Return how many times as fast as the folder a way is: size -> median over its batches."""
    return {
        size: float(np.median([of[way]["to_folder"]["median"] for of in batches.values()]))
        for size, batches in figures["images_per_second"][device].items()
    }


def conclude(figures: dict[str, Any]) -> ClaimResult:
    devices = list(figures["images_per_second"])
    found = {device: {way: times(figures, device, way) for way in (MAPPED, OURS)} for device in devices}
    reported = "; ".join(
        f"{device}: "
        + "; ".join(f"{way} {', '.join(f'{size} {value:.1f}' for size, value in of.items())}" for way, of in by.items())
        for device, by in found.items()
    )
    mapped, ours = found[devices[-1]][MAPPED].values(), found[devices[-1]][OURS].values()
    return ClaimResult(
        f"A mapped tensorclass is read {min(mapped):.1f} to {max(mapped):.1f} times as fast as a folder of JPEGs,"
        f" by MemmapLoader {min(ours):.0f} to {max(ours):.0f} times",
        f"Times as fast as a folder, {figures['workers']} workers, median over the batches; {reported}{lacking(figures)}.",
        all(min(by[MAPPED].values()) > 1 for by in found.values()),
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    device, found = list(figures["images_per_second"].items())[-1]
    figure, panels = make(panels=len(found))
    every = [way["median"] for batches in found.values() for of in batches.values() for way in of.values()]
    for axes, (size, batches) in zip(panels, found.items(), strict=True):
        for way, color in COLORS.items():
            rates = [of[way]["median"] for of in batches.values()]
            axes.plot(range(len(batches)), rates, "o-", color=color, label=way)
        axes.set_xticks(range(len(batches)), list(batches))
        axes.set_yscale("log")
        plot.written_out(axes.yaxis)
        axes.set_ylim(min(every) / 1.6, max(every) * 1.6)
        axes.set_title(size)
        axes.set_xlabel(f"images a batch, {device}")
    panels[0].set_ylabel("images/s, log scale")
    plot.names_below(figure, panels[0])
    return figure
