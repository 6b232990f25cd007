"""The ways to read rows that bench_read.py times beside those of `pack bench` (reader/bench.py).

Knows what is fair to each; no clock, no statistics.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from reader import MemmapDataset, concat
from reader.bench import SLOWER, FirstRows
from reader.format.manifest import Manifest
from reader.format.row_kinds import PAGE_BYTES


def joined_halves(data: MemmapDataset, folder: Path) -> MemmapDataset:
    """Join one half of a store's rows and the other half of a second store, the same files by hard links in this folder.

    All of its pages are mapped.
    """
    other, half = folder / "other", len(data) // 2
    shutil.copytree(data.path, other, copy_function=os.link)
    second = MemmapDataset(other, as_tuple=data.as_tuple).subset(np.arange(half, len(data)))
    joined = concat({"first": data.subset(np.arange(half)), "second": second})
    for store, _ in joined.opened_store.parts:
        touch(store.pixels)
    return joined


class StoreIndex:
    """Random rows of the store's tensorclass."""

    def __init__(self, part: FirstRows) -> None:
        self._part, self._random = part, np.random.default_rng(0)
        self._batches = max(2, part.batches_a_turn // SLOWER)

    def turn(self) -> float:
        """Take a turn; returns images/s."""
        store = self._part.data.store
        rows = self._random.integers(self._part.count, size=(1 + self._batches, self._part.size))
        untimed, *batches = torch.from_numpy(rows)
        store[untimed]
        started = time.perf_counter()
        for rows in batches:
            store[rows]
        return self._batches * self._part.size / (time.perf_counter() - started)


class RawBatch(NamedTuple):
    """uint8[B, H, W, C] and the targets of these rows."""

    pixels: torch.Tensor
    targets: torch.Tensor


# a batch that is there already is not collated
default_collate_fn_map[RawBatch] = lambda batch, **_: batch[0]


class RawRows(Dataset):
    """What people write by hand: a numpy memmap, a whole batch at a time."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        paths, shape = manifest.tensor_paths(), (manifest.rows, manifest.height, manifest.width, manifest.channels)
        self.pixels = np.memmap(out / paths["pixels"], np.uint8, "r", shape=shape)
        self._targets = np.fromfile(out / paths["targets"], manifest.tensors["targets"].dtype)
        self._targets = self._targets.reshape(manifest.rows, *manifest.tensors["targets"].row_shape)
        self._mapped_in = 0

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitems__(self, rows: Any) -> list[RawBatch]:
        if self._mapped_in != os.getpid():
            touch(self.pixels)
            self._mapped_in = os.getpid()
        return [RawBatch(torch.from_numpy(self.pixels[rows]), torch.from_numpy(self._targets[rows]))]


def touch(pixels: np.ndarray) -> None:
    """Map every page of a file into this process: that first fault is no part of reading it again and again."""
    pixels.reshape(-1)[::PAGE_BYTES].max()
