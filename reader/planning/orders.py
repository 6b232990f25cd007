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
    CanonicalNodes,
    Cut,
    Draws,
    NodeBlocks,
    Order,
    Passes,
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
        epoch_rows: of an epoch; None: as many as there are. The order continues from one epoch to the next.
        canonical_nodes: that share the rows of "block", see `CanonicalNodes`; None: ranks share the windows.
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
        canonical_nodes: int | None = None,
        drop_last: bool = False,
        epoch_rows: int | None = None,
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
            if epoch_rows is not None or not pad:
                given = "pad=False" if epoch_rows is None else "epoch_rows"
                raise ValueError(f"{given} is for orders of the loader: what an epoch is, the sampler decides.")
        elif weights is not None:
            self.name, self._cumulative = "weighted", weights
            is_drawn = np.diff(self._cumulative, prepend=0.0) > 0
            self.part = dataset if is_drawn.all() else dataset.subset(is_drawn)
        else:
            self.name = _shuffled(dataset, shuffle, has_nodes=canonical_nodes is not None)
        # whether a seed decides it
        self.has_seed = self.name != "sequential"
        # the order, as it is shown
        self.text = self.name
        self.epoch_rows = len(dataset) if epoch_rows is None else epoch_rows
        # an epoch of the order is one pass over all rows
        self._has_full_epochs = self.epoch_rows == len(dataset)
        self.nodes: CanonicalNodes | None = None
        if canonical_nodes is not None:
            if self.name != "block" or not self._has_full_epochs:
                raise ValueError("canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out.")
            self.nodes = CanonicalNodes(len(dataset), canonical_nodes)
            self.text = f"{self.name} over {self.nodes}"

    def cut(self, batch_size: int, rank: int, world_size: int) -> Cut:
        """Return how an epoch is cut into steps of these ranks.

        Raises:
            OrderError: there is no such rank, or drop_last leaves it nothing.
        """
        # a sampler may give more rows than there are, or fewer
        drop_last = self.drop_last and self.sampler is None
        return Cut(self.epoch_rows, batch_size, drop_last, rank, world_size, self._pad)

    def check_step(self, cut: Cut) -> None:
        """Raise OrderError where canonical nodes do not share a step of all ranks evenly."""
        if self.nodes is not None:
            self.nodes.check_step(cut)

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
        if not self._has_full_epochs:
            yield np.array([self.epoch_rows])
        if self.nodes is not None:
            yield self.nodes.identity

    def of(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch."""
        count, first = self.epoch_rows, epoch * self.epoch_rows
        if self.name == "sampler":
            return Order(count)
        if self._cumulative is not None:
            return Draws(count, self._cumulative, seed, epoch)
        if self.nodes is not None:
            block, window = block_rows(self.dataset.manifest), tuning().shuffle_window_blocks
            return NodeBlocks(self.nodes, block, window, seed=seed, epoch=epoch)
        if self._has_full_epochs:
            return self._pass(epoch, seed)
        return Passes(count, functools.partial(self._pass, seed=seed), len(self.dataset), first)

    def _pass(self, number: int, seed: int) -> Order:
        """Return the order of one pass over all rows."""
        count = len(self.dataset)
        if self.name == "full":
            return Permutation(count, seed, number)
        rows = block_rows(self.dataset.manifest)
        if self.name == "block":
            return BlockOrder(count, rows, tuning().shuffle_window_blocks, seed=seed, epoch=number)
        return Sequential(count, rows)


def block_rows(manifest: Manifest) -> int:
    """Return the rows of a block of shuffle="block"."""
    return max(1, tuning().shuffle_block_bytes // manifest.row_bytes)


def window_bytes(manifest: Manifest) -> int:
    """Return what a window of blocks takes in memory at most."""
    block = max(tuning().shuffle_block_bytes, manifest.row_bytes) + manifest.kind.shared_bytes(block_rows(manifest))
    return tuning().shuffle_window_blocks * block


def _shuffled(dataset: MemmapDataset, shuffle: bool | str, *, has_nodes: bool) -> str:
    """Return the name of the order that shuffle= asks for."""
    if shuffle is True:
        is_full = not has_nodes and dataset.remote is None and _fits_in_memory(dataset)
        return "full" if is_full else "block"
    return shuffle or "sequential"


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the dataset's pixels fit in this machine's memory, or its cgroup's share; not in what is free just now, since
    every rank of a cluster of equal machines must come to the same answer."""
    size_bytes = min(dataset.manifest.pixel_bytes, len(dataset) * dataset.manifest.row_bytes)
    return size_bytes < 0.7 * system.memory_bytes()
