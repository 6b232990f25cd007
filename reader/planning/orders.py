"""Decides the orders of a loader's epochs from its arguments, all but the seed."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from reader import system
from reader.dataset.dataset import MemmapDataset
from reader.format.manifest import Manifest
from reader.order import (
    BlockOrder,
    Cut,
    Draws,
    Order,
    Permutation,
    Sequential,
)
from reader.planning.given_sampler import GivenSampler
from reader.tuning import tuning


class Orders:
    """Gives the order of each epoch for a seed; ranks share it, see `cut`.

    name: "sequential", "full", "block", "weighted" (by weights, float[N]), "mixture" (by weights of joined datasets) or "sampler"
        (as it says).

    Args:
        shuffle, weights, sampler: of which one decides the order, see `MemmapLoader`; weights of rows are their cumulative sums,
            float64[N].
        drop_last, pad: see `Cut`.

    Raises:
        ValueError: arguments ask for two orders at once, contradict each other.
        OrderError: a number is out of its range.
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        shuffle: bool | str = False,
        *,
        weights: npt.NDArray[np.float64] | None = None,
        sampler: GivenSampler | None = None,
        drop_last: bool = False,
        pad: bool = True,
    ) -> None:
        if (weights is not None) + (sampler is not None) + (shuffle is not False) > 1:
            raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
        self.dataset, self.drop_last, self._pad = dataset, drop_last, pad
        self.sampler = sampler
        # rows that any epoch reads
        self.part = dataset
        self._cumulative: npt.NDArray[np.float64] | None = None
        if self.sampler is not None:
            self.name = "sampler"
        elif weights is not None:
            self.name, self._cumulative = "weighted", weights
            is_drawn = np.diff(self._cumulative, prepend=0.0) > 0
            self.part = dataset if is_drawn.all() else dataset.subset(is_drawn)
        else:
            self.name = _shuffled(dataset, shuffle)
        # whether a seed decides it
        self.has_seed = self.name != "sequential"
        # the order, as it is shown
        self.text = self.name
        self.epoch_rows = len(dataset)

    def cut(self, batch_size: int, rank: int, world_size: int) -> Cut:
        """Return how an epoch is cut into steps of these ranks.

        Raises:
            OrderError: there is no such rank, or drop_last leaves it nothing.
        """
        # a sampler may give more rows than there are, or fewer
        drop_last = self.drop_last and self.sampler is None
        return Cut(self.epoch_rows, batch_size, drop_last, rank, world_size, self._pad)

    @functools.cached_property
    def fingerprint(self) -> int:
        """A number that differs if the same positions would be other rows."""
        number = int(self.dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
        for array in self._decides():
            number ^= zlib.crc32(array.tobytes())
        return number

    def _decides(self) -> Iterator[npt.NDArray[Any]]:
        """Yield what decides the order."""
        if not self.dataset.has_all_rows:
            yield self.dataset.store_rows(np.arange(len(self.dataset)))
        if self._cumulative is not None:
            yield self._cumulative

    def of(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch."""
        count = len(self.dataset)
        if self.name == "sampler":
            return Order(count)
        if self._cumulative is not None:
            return Draws(count, self._cumulative, seed, epoch)
        if self.name == "full":
            return Permutation(count, seed, epoch)
        rows = block_rows(self.dataset.manifest)
        if self.name == "block":
            return BlockOrder(count, rows, tuning().shuffle_window_blocks, seed=seed, epoch=epoch)
        return Sequential(count, rows)


def block_rows(manifest: Manifest) -> int:
    """Return the rows of a block of shuffle="block"."""
    return max(1, tuning().shuffle_block_bytes // manifest.row_bytes)


def window_bytes(manifest: Manifest) -> int:
    """Return what a window of blocks takes in memory at most."""
    block = max(tuning().shuffle_block_bytes, manifest.row_bytes) + manifest.kind.shared_bytes(block_rows(manifest))
    return tuning().shuffle_window_blocks * block


def _shuffled(dataset: MemmapDataset, shuffle: bool | str) -> str:
    """Return the name of the order that shuffle= asks for."""
    if shuffle is True:
        is_full = dataset.remote is None and _fits_in_memory(dataset)
        return "full" if is_full else "block"
    return shuffle or "sequential"


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the dataset's pixels fit in this machine's memory, or its cgroup's share; not in what is free just now, since
    every rank of a cluster of equal machines must come to the same answer."""
    size_bytes = min(dataset.manifest.pixel_bytes, len(dataset) * dataset.manifest.row_bytes)
    return size_bytes < 0.7 * system.memory_bytes()
