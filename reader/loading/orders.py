"""The orders that a loader knows, behind one interface: which position of a dataset stands where in an epoch, and what is read
together.

Arithmetic alone: nothing here reads a store.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from reader.dataset.dataset import MemmapDataset
from reader.dataset.groups import Mixture
from reader.format.errors import OrderError
from reader.format.manifest import Manifest
from reader.loading.validation import Weights, checked_weights
from reader.order import BlockOrder, CanonicalNodes, drawn, passes, permuted, wrap
from reader.rows import Rows
from reader.tuning import tuning

# Positions of the order computed at a time: 40 % faster for 65,536 than for 4,096, and 512 kB.
_CHUNK = 1 << 16
_NO_WINDOW = 1 << 62


class Window(NamedTuple):
    """Positions [start, stop) of an epoch whose rows are read together.

    node: which canonical node reads them, beside the windows of others; 0 where there is one. spans: their positions in the
    dataset, [start, stop) each.
    """

    start: int
    stop: int
    node: int
    spans: list[tuple[int, int]]

    def positions(self) -> Rows:
        """Return the positions in the dataset."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.spans])


class Order(abc.ABC):
    """The order of one epoch of `count` rows, of all ranks together. For one thread."""

    # whether rows of a window stand in few blocks of the store
    is_in_blocks = False

    def __init__(self, count: int) -> None:
        self.count = count
        self._held_start, self._held = 0, np.zeros(0, dtype=np.int64)

    @abc.abstractmethod
    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop), of which both are in [0, count]."""

    def rows(self, start: int, stop: int) -> Rows:
        """Return what stands at [start, stop); the order is computed a chunk at a time."""
        if not self._held_start <= start <= stop <= self._held_start + len(self._held):
            self._held_start, self._held = start, self.compute(start, min(self.count, max(stop, start + _CHUNK)))
        return self._held[start - self._held_start : stop - self._held_start]

    def of_step(self, position: int, size: int, start: int, stop: int) -> Rows:
        """Return what stands at [start, stop) of the step of all ranks at a position; behind the last row the first ones follow.

        size: rows of the step, those that come twice included.
        """
        return wrap(self.rows, self.count, start, stop)

    def window_end(self, position: int) -> int:
        """Return where the window that holds a position ends, behind which rows are elsewhere; where there is none, far away."""
        lap = position // self.count * self.count
        return lap + self._window_end(position - lap)

    def windows(self, ranks: range, world_size: int) -> list[Window] | None:
        """Return the windows that some ranks read, by their starts; None: rows of no two positions are read together."""
        return None

    def windows_at_once(self, ranks: range, world_size: int) -> int:
        """Return how many windows these ranks read beside each other."""
        return 1

    def _window_end(self, position: int) -> int:
        return _NO_WINDOW


class Sequential(Order):
    """The dataset's order."""

    def __init__(self, count: int, block_rows: int) -> None:
        super().__init__(count)
        self._block_rows = block_rows

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return np.arange(start, stop, dtype=np.int64)

    def windows(self, ranks: range, world_size: int) -> list[Window]:
        """Return blocks one after the other."""
        starts = range(0, self.count, self._block_rows)
        stops = [min(start + self._block_rows, self.count) for start in starts]
        return [Window(start, stop, 0, [(start, stop)]) for start, stop in zip(starts, stops, strict=True)]


class Permutation(Order):
    """A permutation of all rows."""

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        super().__init__(count)
        self._seed, self._epoch = seed, epoch

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return permuted(self.count, start, stop, seed=self._seed, epoch=self._epoch)


class Blocks(Order):
    """Blocks in random order, rows mixed within windows of them."""

    is_in_blocks = True

    def __init__(self, blocks: BlockOrder) -> None:
        super().__init__(blocks.count)
        self._blocks = blocks

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return self._blocks.rows(start, stop)

    def windows(self, ranks: range, world_size: int) -> list[Window]:
        """Return the windows, each with its blocks."""
        found, start = list[Window](), 0
        while start < self.count:
            stop = self._blocks.window_end(start)
            found.append(Window(start, stop, 0, self._blocks.slices(start)))
            start = stop
        return found

    def _window_end(self, position: int) -> int:
        return self._blocks.window_end(position)


class NodeBlocks(Order):
    """Canonical nodes that share the rows, each in `Blocks` of its own."""

    is_in_blocks = True

    def __init__(self, nodes: CanonicalNodes, of_node: Callable[[int], Blocks]) -> None:
        super().__init__(nodes.count)
        self._nodes, self._of_node = nodes, functools.cache(of_node)

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return self.of_step(start, stop - start, start, stop)

    def of_step(self, position: int, size: int, start: int, stop: int) -> Rows:
        """Return what stands at [start, stop) of a step, in which the rows of a node stand together."""
        # repeated rows come last in the step, where frameworks drop them when they gather
        once = min(size, self.count - position)
        pieces = self._nodes.pieces(position, once, start - position, stop - position)
        if once < size:
            pieces += self._nodes.pieces(self.count, size - once, start - position - once, stop - position - once)
        return np.concatenate([self._of_node(node).of_step(0, 0, *span) for node, *span in pieces])

    def windows(self, ranks: range, world_size: int) -> list[Window]:
        """Return the windows of the nodes that ranks read, by their starts."""
        count = self._nodes.nodes
        return sorted(
            # row 6 of the order of node 1 of 4 is position 25
            Window(window.start * count + node, window.stop * count, node, window.spans)
            for node in self._of_ranks(ranks, world_size)
            for window in self._of_node(node).windows(ranks, world_size)
        )

    def windows_at_once(self, ranks: range, world_size: int) -> int:
        """Return how many nodes the ranks read."""
        return len(self._of_ranks(ranks, world_size))

    def _of_ranks(self, ranks: range, world_size: int) -> range:
        return self._nodes.of_ranks(ranks.start, ranks.stop, world_size)


class Unknown(Order):
    """What a sampler gives: nothing of it is known before it gives it."""

    def compute(self, start: int, stop: int) -> Rows:
        """Raise NotImplementedError."""
        raise NotImplementedError


class Draws(Order):
    """Rows with replacement, in proportion to weights."""

    def __init__(self, count: int, cumulative: npt.NDArray[np.float64], seed: int, epoch: int) -> None:
        super().__init__(count)
        self._cumulative, self._seed, self._epoch = cumulative, seed, epoch

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return drawn(self._cumulative, start, stop, seed=self._seed, epoch=self._epoch)


class Slice(Order):
    """A part of an order without an end, which continues from one epoch to the next.

    rows_at: gives [start, stop) of it. first: where the epoch begins in it.
    """

    def __init__(self, count: int, rows_at: Callable[[int, int], Rows], first: int) -> None:
        super().__init__(count)
        self._rows_at, self._first = rows_at, first

    def compute(self, start: int, stop: int) -> Rows:
        """Compute what stands at [start, stop)."""
        return self._rows_at(self._first + start, self._first + stop)


class PassesSlice(Slice):
    """A part of passes over `pass_rows` rows that follow each other; one_pass: gives the order of each."""

    def __init__(self, count: int, one_pass: Callable[[int], Order], pass_rows: int, first: int) -> None:
        self._one_pass, self._pass_rows = functools.lru_cache(maxsize=2)(one_pass), pass_rows
        super().__init__(count, lambda start, stop: passes(self._rows_of_pass, pass_rows, start, stop), first)
        self.is_in_blocks = self._one_pass(first // pass_rows).is_in_blocks

    def windows(self, ranks: range, world_size: int) -> list[Window] | None:
        """Return the windows of the passes that the epoch has a part of; None: they have none."""
        found = list[Window]()
        for number in range(self._first // self._pass_rows, -(-(self._first + self.count) // self._pass_rows)):
            if (each := self._one_pass(number).windows(ranks, world_size)) is None:
                return None
            before = number * self._pass_rows - self._first
            found += [window._replace(start=before + window.start, stop=before + window.stop) for window in each]
        return [window for window in found if window.stop > 0 and window.start < self.count]

    def _rows_of_pass(self, number: int) -> Callable[[int, int], Rows]:
        return self._one_pass(number).compute

    def _window_end(self, position: int) -> int:
        done, inside = divmod(self._first + position, self._pass_rows)
        stop = done * self._pass_rows + self._one_pass(done).window_end(inside) - self._first
        return min(stop, self.count)


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
            return Slice(count, self._mixture.order(seed), first)
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
            return Blocks(BlockOrder(count, rows, tuning().shuffle_window_blocks, seed=seed, epoch=number))
        return Sequential(count, rows)

    def _node(self, nodes: CanonicalNodes, node: int, *, epoch: int, seed: int) -> Blocks:
        rows, window = block_rows(self.dataset.manifest), tuning().shuffle_window_blocks
        count, first = nodes.rows(node), nodes.first(node)
        return Blocks(BlockOrder(count, rows, window, seed=seed, epoch=epoch, first=first, part=node))


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
