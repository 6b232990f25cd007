"""Which order the epochs of a loader have: what its arguments decide, but for the seed."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from reader.dataset.dataset import MemmapDataset
from reader.dataset.groups import Mixture
from reader.format.errors import OrderError
from reader.format.manifest import Manifest
from reader.loading.validation import Weights, checked_weights
from reader.order import (
    BlockOrder,
    CanonicalNodes,
    Draws,
    NodeBlocks,
    Order,
    PassesSlice,
    Permutation,
    Sequential,
    Slice,
    Unknown,
)
from reader.tuning import tuning


class Orders:
    """The orders of all epochs of a loader: what decides them, but for the seed.

    Args:
        name: "sequential", "full", "block", "weighted" (by weights, float[N]), "mixture" (by weights of joined datasets) or
            "sampler" (as it says).
        epoch_rows: of an epoch; None: as many as there are. The order continues from one epoch to the next.
        canonical_nodes: that share the rows of "block", see `CanonicalNodes`; None: ranks share the windows.

    Raises:
        ValueError: weights are none, or canonical_nodes do not go with the order.
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
    ) -> None:
        self.name, self.dataset = name, dataset
        self.epoch_rows = len(dataset) if epoch_rows is None else epoch_rows
        # rows that any epoch reads
        self.part = dataset
        self._mixture = Mixture(dataset.groups, weights) if isinstance(weights, Mapping) else None
        self._cumulative: npt.NDArray[np.float64] | None = None
        if self._mixture is not None:
            self.part = dataset.subset(self._mixture.drawn)
        elif weights is not None and not isinstance(weights, Mapping):
            self._cumulative = checked_weights(weights, len(dataset))
            self.part = _drawn_part(dataset, self._cumulative)
        if canonical_nodes is not None and not (name == "block" and self.has_full_epochs):
            raise ValueError("canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out.")
        self.nodes = None if canonical_nodes is None else CanonicalNodes(len(dataset), canonical_nodes)

    @property
    def has_full_epochs(self) -> bool:
        """Whether an epoch of the order is one pass over all rows."""
        return self.epoch_rows == len(self.dataset)

    @property
    def text(self) -> str:
        """The order, as it is shown."""
        return self.name if self.nodes is None else f"{self.name} over {self.nodes.nodes} canonical nodes"

    def check_step(self, batch_size: int, world_size: int) -> None:
        """Raise OrderError where canonical nodes do not share a step of all ranks evenly."""
        if self.nodes is not None and (rows := batch_size * world_size) % self.nodes.nodes:
            raise OrderError(
                f"a step has {rows} rows, batch_size {batch_size} x world_size {world_size}, expected a multiple of"
                f" canonical_nodes, {self.nodes.nodes}. Change batch_size."
            )

    def decides(self) -> Iterator[npt.NDArray[Any]]:
        """Yield what decides the order beside the rows, for a fingerprint."""
        if self._cumulative is not None:
            yield self._cumulative
        if self._mixture is not None:
            yield np.array(self._mixture.quotas)
        if not self.has_full_epochs:
            yield np.array([self.epoch_rows])
        if self._mixture is not None:
            yield self._mixture.of
        if self.nodes is not None:
            yield np.array([0, self.nodes.nodes])

    def of(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch."""
        count, first = self.epoch_rows, epoch * self.epoch_rows
        if self.name == "sampler":
            return Unknown(count)
        if self._cumulative is not None:
            return Draws(count, self._cumulative, seed, epoch)
        if self._mixture is not None:
            places_in = functools.partial(self._mixture.turns_of, seed=seed)
            return Slice(count, self._mixture.order(seed), places_in, first)
        if self.nodes is not None:
            return NodeBlocks(self.nodes, functools.partial(self._node, self.nodes, epoch=epoch, seed=seed))
        if self.has_full_epochs:
            return self._pass(epoch, seed)
        return PassesSlice(count, functools.partial(self._pass, seed=seed), len(self.dataset), first)

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


def block_rows(manifest: Manifest) -> int:
    """Return the rows of a block of shuffle="block"."""
    return max(1, tuning().shuffle_block_bytes // manifest.row_bytes)


def window_bytes(manifest: Manifest) -> int:
    """Return what a window of blocks takes in memory at most."""
    block = max(tuning().shuffle_block_bytes, manifest.row_bytes) + manifest.kind.shared_bytes(block_rows(manifest))
    return tuning().shuffle_window_blocks * block


def _drawn_part(dataset: MemmapDataset, cumulative: npt.NDArray[np.float64]) -> MemmapDataset:
    """Return the rows of a dataset that weights do not exclude."""
    is_drawn = np.diff(cumulative, prepend=0.0) > 0
    return dataset if is_drawn.all() else dataset.subset(is_drawn)
