"""The datasets of bench_workers.py beside MemmapDataset, in a module of their own: a spawned worker imports no more.

It imports the reader, so that every worker has the same imports, whichever dataset it gets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

import reader.dataset.dataset  # noqa: F401


class EmptyBatches(Dataset):
    """Holds nothing, and gives next to nothing a batch at a time, as a MemmapDataset gives its rows."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.zeros(1)] * len(indices)


class ListedSamples(Dataset):
    """(path, target) of each sample in a list, as ImageFolder has them."""

    def __init__(self, count: int) -> None:
        self.samples = [(f"train/n{i % 1000:08}/n{i % 1000:08}_{i}.JPEG", i % 1000) for i in range(count)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return self.samples[index][1]


class Mapped(Dataset):
    """A numpy memmap, which pickles by value."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.pixels = np.memmap(path, np.uint8, "r", shape=shape)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> np.ndarray:
        return np.array(self.pixels[index])
