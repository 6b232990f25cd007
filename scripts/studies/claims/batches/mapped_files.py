"""How fast does each way of mapping a file of decoded images give random batches, beside copying memory and decoding JPEGs?

All read the same pixels, all in the page cache, 256 random rows at a time, in turns (reader/bench/ways.py says how MemmapLoader
is timed fairly). "Decoding" is Pillow in one process, JPEGs of 500 x 375 to the store's size. FFCV, which the notes name
too, is not installed here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from tensordict import MemoryMappedTensor

from reader import ImageBatch, MemmapDataset
from reader.bench.ways import FirstRows, Loader, SliceCopies
from reader.format.manifest import PIXELS
from scripts.benchmarks.reading._read_ways import touch
from scripts.common import plot
from scripts.common.figures import ratios, spread
from scripts.common.timing import collection_paused, in_turns, seconds_over
from scripts.samples.stores import random_store
from scripts.studies.claims._claim import LOADER_NOTES, Finding, medians, photo_folder

CLAIM = "For fast reading, decode once and map the file (numpy memmap, torch storage): reading needs no decoding."
SOURCE = LOADER_NOTES

ROUNDS = 15
LIMIT, LOADER, DECODE = "copying memory: the limit", "MemmapLoader, shuffled", "JPEGs, Pillow, 1 process"

Index = Callable[[np.ndarray], Any]


def measure(quick: bool, work: Path) -> dict[str, Any]:
    """Return images/s of each way, and its ratio to the limit, round by round."""
    rows, side, size, photos = (256, 128, 32, 64) if quick else (20_000, 224, 256, 512)
    data = MemmapDataset(random_store(work, rows, side), as_tuple=False)
    touch(data.store.pixels.numpy())
    part = FirstRows(data, size, rows)
    loader = Loader(part, "full", torch.device("cpu"))
    ways: dict[str, Callable[[], float]] = {LIMIT: SliceCopies(part).turn, LOADER: loader.turn}
    for name, index in maps(data).items():
        chosen = np.random.default_rng(0).permutation(rows)[:size]
        if not np.array_equal(index(chosen), data.numpy()[chosen]):
            raise RuntimeError(f"{name}: a batch is not the rows of the store.")
        ways[name] = partial(indexed, index, rows, size)
    ways[DECODE] = partial(decoded, itertools.cycle(sorted(photo_folder(work, photos).rglob("*.jpg"))), side, size)
    with collection_paused():
        rates = in_turns(ways, 2 if quick else ROUNDS, untimed=2)
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
    """Map the store's pixels in each way that the notes name, and in ours; each function takes rows and gives their pixels."""
    path, shape = str(data.path / PIXELS), tuple(data.store.pixels.shape)
    size = int(np.prod(shape))
    array = np.memmap(path, np.uint8, "r", shape=shape)
    tensor = torch.from_file(path, shared=False, size=size, dtype=torch.uint8).view(shape)
    storage = torch.UntypedStorage.from_file(path, False, size)
    stored = torch.empty(0, dtype=torch.uint8).set_(storage).view(shape)
    mapped = MemoryMappedTensor.from_filename(path, torch.uint8, torch.Size(shape))
    store = ImageBatch.load_memmap(str(data.path))
    for pixels in (array, tensor.numpy(), stored.numpy(), mapped.numpy(), store.pixels.numpy()):
        touch(pixels)
    return {
        "MemmapDataset[rows]": lambda rows: data[rows].pixels,
        "numpy.memmap[rows]": lambda rows: array[rows],
        "torch.from_file, index_select": lambda rows: tensor.index_select(0, torch.from_numpy(rows)),
        "torch storage, [rows]": lambda rows: stored[torch.from_numpy(rows)],
        "MemoryMappedTensor[rows]": lambda rows: mapped[torch.from_numpy(rows)],
        "tensordict, store[rows]": lambda rows: store[torch.from_numpy(rows)].pixels,
    }


def indexed(index: Index, count: int, size: int) -> float:
    """Return images/s of a few batches of random rows by one index each."""
    untimed, *batches = np.random.default_rng().permutation(count)[: size * (count // size)].reshape(-1, size)[:5]
    index(untimed)
    return len(batches) * size / seconds_over(index, batches)


def decoded(files: Iterator[Path], side: int, size: int) -> float:
    """Return images/s of as many photographs as a batch has rows, decoded and resized."""

    def row(path: Path) -> np.ndarray:
        return np.asarray(Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BILINEAR))

    return size / seconds_over(row, itertools.islice(files, size))


def conclude(figures: dict[str, Any]) -> Finding:
    rates = medians(figures["images_per_second"])
    shares = medians(figures["of_the_limit"])
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
    plot.bars(
        axes,
        values,
        texts,
        xlabel=f"images/s of {side} x {side} x 3, shuffled, batches of {figures['batch_size']}, median",
    )
    axes.set_xlim(right=max(values.values()) * 1.35)
    axes.patches[list(values).index(LIMIT)].set_color(plot.DARK)
    return figure
