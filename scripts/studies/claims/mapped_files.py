"""How fast does each way of mapping a file of decoded images give random batches, beside copying memory and decoding JPEGs?

All read the same pixels, all in the page cache, 256 random rows at a time, in turns (bench_read.py tells how MemmapLoader
is timed fairly). "Decoding" is Pillow in one process, JPEGs of 500 x 375 to the store's size. FFCV, which the notes name
too, is not installed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensordict import MemoryMappedTensor

from reader import MemmapDataset
from reader.format.manifest import PIXELS
from scripts.benchmarks._bench import ratios, spread
from scripts.benchmarks._read_ways import Limit, Loader, RandomBatches, StoreIndex, touch
from scripts.benchmarks.bench_read import check_batch, rates_in_turns
from scripts.samples.stores import random_store
from scripts.studies.claims import _plot
from scripts.studies.claims._claim import LOADER_NOTES, Finding, photo_folder

CLAIM = "For fast reading, decode once and map the file (numpy memmap, torch storage): reading needs no decoding."
SOURCE = LOADER_NOTES

ROUNDS = 15
LIMIT, LOADER, DECODE = "copying memory: the limit", "MemmapLoader, shuffled", "JPEGs, Pillow, 1 process"

Index = Callable[[np.ndarray], Any]


class Indexed:
    """Random rows by one index."""

    batches = 4

    def __init__(self, index: Index, order: RandomBatches) -> None:
        self._index, self._order = index, order

    def begin(self) -> None:
        self.batch()

    def batch(self) -> tuple[np.ndarray, Any]:
        rows = self._order.next()
        return rows, self._index(rows)

    def end(self) -> None:
        pass


class Decoded:
    """As many photographs as a batch has rows, decoded and resized."""

    batches = 1

    def __init__(self, folder: Path, side: int, batch_size: int) -> None:
        self._files, self._count = itertools.cycle(sorted(folder.rglob("*.jpg"))), batch_size
        self._size = (side, side)

    def begin(self) -> None:
        pass

    def batch(self) -> None:
        for path in itertools.islice(self._files, self._count):
            np.asarray(Image.open(path).convert("RGB").resize(self._size, Image.Resampling.BILINEAR))

    def end(self) -> None:
        pass


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s of each way, and its ratio to the limit, round by round."""
    rows, side, size, photos = (256, 128, 32, 64) if quick else (20_000, 224, 256, 512)
    data = MemmapDataset(random_store(work, rows, side), as_tuple=False)
    touch(data.store.pixels.numpy())
    order = RandomBatches(rows, size)
    loader = Loader(data, size, "full")
    loader.begin()
    ways: dict[str, Any] = {LIMIT: Limit(data, size, len(loader.buffers)), LOADER: loader}
    ways["MemmapDataset[rows]"] = Indexed(lambda rows: data[rows].pixels, order)
    for name, index in maps(data).items():
        ways[name] = Indexed(index, order)
    ways["tensordict, store[rows]"] = StoreIndex(data, size)
    for name, way in ways.items():
        check_batch(name, way, data.numpy())
    ways[DECODE] = Decoded(photo_folder(work, photos), side, size)
    rates = rates_in_turns(ways, size, 2 if quick else ROUNDS)
    loader.close()
    return {
        "rows": rows,
        "side": side,
        "batch_size": size,
        "threads": torch.get_num_threads(),
        "images_per_second": {name: spread(found, 1) for name, found in rates.items()},
        "of_the_limit": {name: ratios(found, rates[LIMIT]) for name, found in rates.items()},
    }


def maps(data: MemmapDataset) -> dict[str, Index]:
    """Map the store's pixels in each way that the notes name; each function takes rows and gives their pixels."""
    path, shape = str(data.path / PIXELS), tuple(data.store.pixels.shape)
    size = int(np.prod(shape))
    array = np.memmap(path, np.uint8, "r", shape=shape)
    tensor = torch.from_file(path, shared=False, size=size, dtype=torch.uint8).view(shape)
    storage = torch.UntypedStorage.from_file(path, False, size)
    stored = torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
    mapped = MemoryMappedTensor.from_filename(path, torch.uint8, torch.Size(shape))
    for pixels in (array, tensor.numpy(), stored.numpy(), mapped.numpy()):
        touch(pixels)
    return {
        "numpy.memmap[rows]": lambda rows: array[rows],
        "torch.from_file, index_select": lambda rows: tensor.index_select(0, torch.from_numpy(rows)),
        "torch storage, [rows]": lambda rows: stored[torch.from_numpy(rows)],
        "MemoryMappedTensor[rows]": lambda rows: mapped[torch.from_numpy(rows)],
    }


def conclude(figures: dict[str, Any]) -> Finding:
    rates = {name: found["median"] for name, found in figures["images_per_second"].items()}
    shares = {name: found["median"] for name, found in figures["of_the_limit"].items()}
    theirs = {name: rate for name, rate in rates.items() if name not in (LIMIT, LOADER, DECODE, "MemmapDataset[rows]")}
    slow, fast = min(theirs, key=lambda name: theirs[name]), max(theirs, key=lambda name: theirs[name])
    return Finding(
        f"Mapped pixels are read {theirs[slow] / rates[DECODE]:.0f} to {rates[LOADER] / rates[DECODE]:.0f} times as fast as"
        f" JPEGs are decoded; MemmapLoader reaches {shares[LOADER]:.2f} of copying memory",
        f"{rates[DECODE]:,.0f} images/s decoded; {theirs[slow]:,.0f} by {slow}, {theirs[fast]:,.0f} by {fast},"
        f" {rates[LOADER]:,.0f} by MemmapLoader, {shares[LOADER]:.2f} of the limit (copying consecutive slices).",
        theirs[slow] > 2 * rates[DECODE],
    )


def draw(make: Any, figures: dict[str, Any]) -> Any:
    found = figures["images_per_second"]
    values = {name: found[name]["median"] for name in sorted(found, key=lambda name: -found[name]["median"])}
    shares = figures["of_the_limit"]
    texts = [f"{rate:,.0f}   {shares[name]['median']:.2g} of the limit" for name, rate in values.items()]
    texts[list(values).index(LIMIT)] = f"{values[LIMIT]:,.0f}"
    figure, (axes,) = make()
    side = figures["side"]
    _plot.bars(
        axes,
        values,
        texts,
        xlabel=f"images/s of {side} x {side} x 3, shuffled, batches of {figures['batch_size']}, median",
    )
    axes.set_xlim(right=max(values.values()) * 1.35)
    axes.patches[list(values).index(LIMIT)].set_color(_plot.DARK)
    return figure
