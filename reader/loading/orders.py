"""Decides the orders of a loader's epochs from its arguments, all but the seed."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reader import system
from reader.dataset.dataset import MemmapDataset
from reader.dataset.groups import Mixture
from reader.format.errors import OrderError
from reader.format.manifest import Manifest
from reader.loading.given_sampler import GivenSampler
from reader.loading.validation import Item, Weights, checked_sampler, checked_weights
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
    Slice,
)
from reader.tuning import tuning


class Orders:
    """Gives the order of each epoch for a seed; ranks share it, see `cut`.

    Args:
        name: "sequential", "full", "block", "weighted" (by weights, float[N]), "mixture" (by weights of joined datasets) or
            "sampler" (as it says).
        epoch_rows: of an epoch; None: as many as there are. The order continues from one epoch to the next.
        canonical_nodes: that share the rows of "block", see `CanonicalNodes`; None: ranks share the windows.
        sampler: that decides the order.
        drop_last, pad: see `Cut`.

    Raises:
        ValueError: they contradict each other, or weights are none.
        OrderError: a number is out of its range.
    """

    def __init__(
        self,
        name: str,
        dataset: MemmapDataset,
        *,
        weights: Weights | Mapping[str, float] | None = None,
        epoch_rows: int | None = None,
        canonical_nodes: int | None = None,
        sampler: GivenSampler | None = None,
        drop_last: bool = False,
        pad: bool = True,
    ) -> None:
        if sampler is not None and (epoch_rows is not None or not pad):
            given = "pad=False" if epoch_rows is None else "epoch_rows"
            raise ValueError(f"{given} is for orders of the loader: what an epoch is, the sampler decides.")
        self.name, self.dataset, self.sampler, self.drop_last = name, dataset, sampler, drop_last
        self.epoch_rows = len(dataset) if epoch_rows is None else epoch_rows
        # rows that any epoch reads
        self.part = dataset
        self._pad = pad
        self._mixture = Mixture(dataset.groups, weights) if isinstance(weights, Mapping) else None
        self._cumulative: npt.NDArray[np.float64] | None = None
        if self._mixture is not None:
            self.part = dataset.subset(self._mixture.drawn)
        elif weights is not None and not isinstance(weights, Mapping):
            self._cumulative = checked_weights(weights, len(dataset))
            is_drawn = np.diff(self._cumulative, prepend=0.0) > 0
            self.part = dataset if is_drawn.all() else dataset.subset(is_drawn)
        # an epoch of the order is one pass over all rows
        self._has_full_epochs = self.epoch_rows == len(dataset)
        if canonical_nodes is not None and not (name == "block" and self._has_full_epochs):
            raise ValueError("canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out.")
        self.nodes = None if canonical_nodes is None else CanonicalNodes(len(dataset), canonical_nodes)
        # whether a seed decides it
        self.has_seed = name != "sequential"
        # the order, as it is shown
        self.text = name if self.nodes is None else f"{name} over {self.nodes.nodes} canonical nodes"

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
        if self.nodes is not None and cut.full_step % self.nodes.nodes:
            raise OrderError(
                f"a step has {cut.full_step} rows, batch_size {cut.batch_size} x world_size {cut.world_size}, expected a"
                f" multiple of canonical_nodes, {self.nodes.nodes}. Change batch_size."
            )

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
        if self._mixture is not None:
            yield np.array(self._mixture.quotas)
            yield self._mixture.of
        if not self._has_full_epochs:
            yield np.array([self.epoch_rows])
        if self.nodes is not None:
            yield np.array([0, self.nodes.nodes])

    def of(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch."""
        count, first = self.epoch_rows, epoch * self.epoch_rows
        if self.name == "sampler":
            return Order(count)
        if self._cumulative is not None:
            return Draws(count, self._cumulative, seed, epoch)
        if self._mixture is not None:
            return Slice(count, self._mixture.order(seed), functools.partial(self._mixture.turns_of, seed=seed), first)
        if self.nodes is not None:
            return NodeBlocks(self.nodes, functools.partial(self._node, self.nodes, epoch=epoch, seed=seed))
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

    def _node(self, nodes: CanonicalNodes, node: int, *, epoch: int, seed: int) -> BlockOrder:
        rows, window = block_rows(self.dataset.manifest), tuning().shuffle_window_blocks
        count, first = nodes.rows(node), nodes.first(node)
        return BlockOrder(count, rows, window, seed=seed, epoch=epoch, first=first, part=node)


def orders_of(
    dataset: MemmapDataset,
    shuffle: bool | str,
    *,
    weights: Weights | Mapping[str, float] | None,
    sampler: Iterable[Item] | None,
    canonical_nodes: int | None,
    drop_last: bool,
    epoch_rows: int | None,
    pad: bool,
) -> Orders:
    """Return the orders that a loader's arguments stand for.

    Raises:
        ValueError: they ask for two at once, contradict each other, or shuffle for none that there is.
        OrderError: a number is out of its range.
    """
    if (weights is not None) + (sampler is not None) + (shuffle is not False) > 1:
        raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
    if weights is not None:
        name = "mixture" if isinstance(weights, Mapping) else "weighted"
    elif sampler is not None:
        name = "sampler"
    elif shuffle is True:
        is_full = canonical_nodes is None and dataset.remote is None and _fits_in_memory(dataset)
        name = "full" if is_full else "block"
    elif shuffle is False:
        name = "sequential"
    elif shuffle in ("full", "block"):
        name = shuffle
    else:
        raise ValueError(f"shuffle is {shuffle!r}, expected False, True, 'full' or 'block'.")
    return Orders(
        name,
        dataset,
        weights=weights,
        epoch_rows=epoch_rows,
        canonical_nodes=canonical_nodes,
        sampler=None if sampler is None else GivenSampler(checked_sampler(sampler)),
        drop_last=drop_last,
        pad=pad,
    )


def block_rows(manifest: Manifest) -> int:
    """Return the rows of a block of shuffle="block"."""
    return max(1, tuning().shuffle_block_bytes // manifest.row_bytes)


def window_bytes(manifest: Manifest) -> int:
    """Return what a window of blocks takes in memory at most."""
    block = max(tuning().shuffle_block_bytes, manifest.row_bytes) + manifest.kind.shared_bytes(block_rows(manifest))
    return tuning().shuffle_window_blocks * block


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the dataset's pixels fit in this machine's memory, or its cgroup's share; not in what is free just now, since
    every rank of a cluster of equal machines must come to the same answer."""
    size_bytes = min(dataset.manifest.pixel_bytes, len(dataset) * dataset.manifest.row_bytes)
    return size_bytes < 0.7 * system.memory_bytes()
