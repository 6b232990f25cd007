"""Which rows the batches of an epoch take, step after step, from any position on, in every order that a loader knows.

Reads targets at most, for a look at how the rows are; never a pixel.
"""

from __future__ import annotations

import copy
import functools
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from reader.dataset.dataset import MemmapDataset
from reader.dataset.groups import Mixture
from reader.format.errors import OrderError
from reader.format.manifest import Manifest
from reader.loading.sampler_passes import SamplerPasses
from reader.loading.seeds import Seed
from reader.loading.validation import Item, Weights, check_epoch, checked_weights, sampled_rows
from reader.order import BlockOrder, CanonicalNodes, Cut, drawn, passes, permuted, wrap
from reader.rows import Rows, Steps
from reader.tuning import tuning

# Of tiny batches: each costs as much Python as a large one, and the caller waits for all of a group.
_MOST_BATCHES = 64
# Of a sampler: the position after its last step. What it gives may be any number of rows.
_END = (1 << 62) - 1
# Positions of the order computed at a time: 40 % faster for 65,536 than for 4,096, and 512 kB.
_ORDER_CHUNK = 1 << 16

# (global position of a step, start and stop of this rank's part) -> rows
_RowsOf = Callable[[int, int, int], Rows]


class _EpochSampler(Protocol):
    """A sampler that takes epochs, as torch's DistributedSampler."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order comes next."""
        ...


class PlannedBatch(NamedTuple):
    """Positions in the dataset, the global position of the first of them, and that after the step."""

    positions: Rows
    start: int
    after: int


class Schedule:
    """The steps of every epoch of a dataset, for one rank.

    Args:
        order: "sequential", "full", "block", "weighted" (by weights, float[N]), "mixture" (by weights of joined datasets) or
            "sampler" (as it says).
        seed: None: it is chosen when the first epoch begins, see `Seed`.
        ranks: rank and world size.
        epoch_rows: of an epoch; None: as many as there are. The order continues from one epoch to the next.
        pad: see `Cut`.
        canonical_nodes: that share the rows of order "block", see `CanonicalNodes`; None: ranks share the windows.

    Raises:
        ValueError: canonical_nodes does not fit the order.
        OrderError: a number is out of its range.
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        batch_size: int,
        *,
        order: str,
        seed: int | None,
        drop_last: bool,
        ranks: tuple[int, int],
        weights: Weights | Mapping[str, float] | None,
        sampler: Iterable[Item] | None,
        epoch_rows: int | None = None,
        pad: bool = True,
        canonical_nodes: int | None = None,
    ) -> None:
        self.dataset, self.batch_size, self.order, self.chosen_seed = dataset, batch_size, order, Seed.given(seed)
        self.cut: Cut
        self.drop_last, self.sampler, self.pad = drop_last, sampler, pad
        self._passes = SamplerPasses(sampler)
        check_epoch(epoch_rows, is_sampled=sampler is not None, pad=pad)
        self.epoch_rows = len(dataset) if epoch_rows is None else epoch_rows
        self._epoch_set = getattr(self._asks_epoch(), "epoch", None)
        self._cumulative = self._mixture = None
        # rows that any epoch reads: a sampler may draw other rows in another epoch, so all it may draw
        self.part = dataset
        if isinstance(weights, Mapping):
            self._mixture = Mixture(dataset.groups, weights)
            self.part = dataset.subset(self._mixture.drawn)
        elif weights is not None:
            self._cumulative = checked_weights(weights, len(dataset))
            self.part = _drawn_part(dataset, self._cumulative)
        by = self._cumulative if self._mixture is None else np.array(self._mixture.quotas)
        epochs = None if self.has_full_epochs else np.array([self.epoch_rows])
        if canonical_nodes is not None and not (order == "block" and self.has_full_epochs):
            raise ValueError("canonical_nodes is for shuffle='block', in epochs of all rows. Leave it out.")
        self.nodes = None if canonical_nodes is None else CanonicalNodes(len(dataset), canonical_nodes)
        nodes = None if canonical_nodes is None else np.array([0, canonical_nodes])
        self.rows_id = _rows_id(dataset, by, epochs, None if self._mixture is None else self._mixture.of, nodes)
        self.cut_for(*ranks)

    @property
    def seed(self) -> int:
        """The seed, once it is chosen."""
        assert self.chosen_seed.value is not None
        return self.chosen_seed.value

    @property
    def order_text(self) -> str:
        """The order, as it is shown."""
        return self.order if self.nodes is None else f"{self.order} over {self.nodes.nodes} canonical nodes"

    @property
    def has_full_epochs(self) -> bool:
        """Whether an epoch of the order is one pass over all rows."""
        return self.epoch_rows == len(self.dataset)

    def with_batch_size(self, batch_size: int) -> Schedule:
        """Return an independent copy with this batch size; raises OrderError as `cut_for`."""
        made = copy.copy(self)
        made.set_batch_size(batch_size)
        return made

    def set_batch_size(self, batch_size: int) -> None:
        """Set the batch size of every later epoch; raises OrderError as `cut_for`."""
        self.batch_size = batch_size
        self.cut_for(self.cut.rank, self.cut.world_size)

    def cut_for(self, rank: int, world_size: int) -> None:
        """Cut every epoch from now on for this rank.

        Raises:
            OrderError: there is no such rank, or drop_last leaves it nothing.
        """
        # a sampler may give more rows than there are, or fewer
        drop_last = self.drop_last and self.sampler is None
        self.cut = Cut(self.epoch_rows, self.batch_size, drop_last, rank, world_size, self.pad)

    def choose_seed(self) -> None:
        """Choose the seed where an epoch begins, if none was given."""
        self.chosen_seed = self.chosen_seed.chosen(self.cut.world_size)

    def check_step(self) -> None:
        """Check a step of all ranks; for when their number is known.

        Raises:
            OrderError: canonical nodes do not share it evenly.
        """
        world_size = self.cut.world_size
        if self.nodes is not None and (rows := self.batch_size * world_size) % self.nodes.nodes:
            raise OrderError(
                f"a step has {rows} rows, batch_size {self.batch_size} x world_size {world_size}, expected a multiple of"
                f" canonical_nodes, {self.nodes.nodes}. Change batch_size."
            )

    def steps_left(self, position: int) -> int:
        """Return the steps from a position to the epoch's end (of a sampler: all steps).

        Raises:
            TypeError: the sampler has no length.
        """
        if self.sampler is None:
            return self.cut.steps(position)
        try:
            count = len(cast(Sized, self.sampler))
        except TypeError:
            kind = type(self.sampler).__name__
            raise TypeError(f"the sampler, a {kind}, has no length, so the loader has none either.") from None
        if self._passes.gives_batches():
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def is_over(self, position: int) -> bool:
        """Say whether an epoch has nothing behind a position; of a sampler without a length, only its end shows."""
        return position == _END if self.sampler is not None else not self.cut.steps(position)

    def shared_rows(self, position: int) -> int:
        """Return how many rows of all ranks' step at this position count, where some come twice; else 0."""
        left = self.cut.count - position
        step_rows = self.batch_size * self.cut.world_size
        comes_twice = self.pad and left < step_rows and left % self.cut.world_size
        return left if self.sampler is None and comes_twice else 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has set_epoch, as torch's DistributedSampler has; or of the one that it draws from."""
        if (asks := self._asks_epoch()) is not None:
            asks.set_epoch(epoch)
            self._epoch_set = getattr(asks, "epoch", None)

    def begin_epoch(self, epoch: int) -> None:
        """Set the epoch that begins on a sampler that shows its epoch, unless another caller has set it since."""
        if (asks := self._asks_epoch()) is not None and hasattr(asks, "epoch") and asks.epoch == self._epoch_set:
            self.set_epoch(epoch)

    def outside_epoch(self) -> int | None:
        """Return the epoch that another caller has set on the sampler since, or None."""
        epoch = getattr(self._asks_epoch(), "epoch", None)
        return epoch if isinstance(epoch, int) and epoch != self._epoch_set else None

    def _asks_epoch(self) -> _EpochSampler | None:
        found = (self.sampler, getattr(self.sampler, "sampler", None))
        asks = next((sampler for sampler in found if callable(getattr(sampler, "set_epoch", None))), None)
        return cast("_EpochSampler | None", asks)

    def sampled(self) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one: torch's draw their seed at the first item, here and not later."""
        if self.sampler is None:
            return iter(())
        return self._passes.begin(takes_epochs=self._asks_epoch() is not None)

    def listed(self, epoch: int) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one, to be read without a pass over it.

        Raises:
            TypeError: it has no length, so that its items may not end.
        """
        self.steps_left(0)
        self.begin_epoch(epoch)
        return self.sampled()

    def rank_rows(self) -> int:
        """Return how many rows this rank is given in an epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        if self.sampler is not None:
            return len(cast(Sized, self.sampler)) * (self.batch_size if self._passes.gives_batches() else 1)
        steps = self.cut.steps()
        step_rows = self.batch_size * self.cut.world_size
        start, stop = self.cut.span((steps - 1) * step_rows) if steps else (0, 0)
        return max(0, steps - 1) * self.batch_size + stop - start

    def steps(self, epoch: int, position: int, items: Iterator[Item], group_bytes: int) -> Iterator[Steps]:
        """Yield the steps from a global position on, in groups; items are those of `sampled`, each batch of which is one."""
        batches = self.batches(epoch, position, items)
        fitting = group_bytes // max(1, self.dataset.manifest.row_bytes * self.batch_size)
        group = max(1, min(_MOST_BATCHES, fitting)) if self.sampler is None else 1
        while taken := list(itertools.islice(batches, group)):
            rows = [self.dataset.store_rows(batch.positions) for batch in taken]
            yield Steps(rows, [batch.start for batch in taken], [batch.after for batch in taken])

    def batches(self, epoch: int, position: int, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Yield the batches of `steps`, by positions in the dataset."""
        if self.sampler is not None:
            yield from self._sampled_batches(items, position)
            return
        rows_of = self._by_positions(epoch) if self.nodes is None else self._by_nodes(self.nodes, epoch)
        for _ in range(self.cut.steps(position)):
            start, stop = self.cut.span(position)
            rows = rows_of(position, start, stop)
            position = self.cut.next_position(position)
            yield PlannedBatch(rows, start, position)

    def blocks(self, done: int) -> BlockOrder:
        """Return the order of shuffle="block" of one pass over all rows; where epochs are whole, of that epoch."""
        rows = block_rows(self.dataset.manifest)
        return BlockOrder(len(self.dataset), rows, tuning().shuffle_window_blocks, seed=self.seed, epoch=done)

    def node_blocks(self, node: int, epoch: int) -> BlockOrder:
        """Return the order of a canonical node's rows."""
        assert self.nodes is not None
        first, count, rows = self.nodes.first(node), self.nodes.rows(node), block_rows(self.dataset.manifest)
        return BlockOrder(
            count, rows, tuning().shuffle_window_blocks, seed=self.seed, epoch=epoch, first=first, part=node
        )

    def window_end(self, epoch: int) -> Callable[[int], int]:
        """Return what says, of a position of an epoch of shuffle="block", where the window that holds it ends."""
        count, base = len(self.dataset), epoch * self.epoch_rows
        blocks = functools.lru_cache(maxsize=2)(self.blocks)

        def end(position: int) -> int:
            # behind the epoch stand its first rows again, which ranks share
            done, inside = divmod(base + position % self.cut.count, count)
            stop = done * count + blocks(done).window_end(inside) - base
            return position - position % self.cut.count + min(stop, self.cut.count)

        return end

    def _by_positions(self, epoch: int) -> _RowsOf:
        rows_at = _chunked(self._rows_at(epoch), self.cut.count)
        return lambda position, start, stop: wrap(rows_at, self.cut.count, start, stop)

    def _by_nodes(self, nodes: CanonicalNodes, epoch: int) -> _RowsOf:
        @functools.cache
        def rows_at(node: int) -> Callable[[int, int], Rows]:
            return _chunked(self.node_blocks(node, epoch).rows, nodes.rows(node))

        def rows_of(position: int, start: int, stop: int) -> Rows:
            size = self.cut.step_rows(position)
            # repeated rows come last in the step, where frameworks drop them when they gather
            once = min(size, self.cut.count - position)
            pieces = nodes.pieces(position, once, start - position, stop - position)
            if once < size:
                pieces += nodes.pieces(self.cut.count, size - once, start - position - once, stop - position - once)
            return np.concatenate([wrap(rows_at(node), nodes.rows(node), *span) for node, *span in pieces])

        return rows_of

    def _rows_at(self, epoch: int) -> Callable[[int, int], Rows]:
        base = epoch * self.epoch_rows
        if self._cumulative is not None:
            cumulative = self._cumulative
            return lambda start, stop: drawn(cumulative, start, stop, seed=self.seed, epoch=epoch)
        if self._mixture is not None:
            mixture = self._mixture
            rows_at = mixture.order(self.seed)
            return lambda start, stop: rows_at(base + start, base + stop)
        order = functools.lru_cache(maxsize=2)(self._pass)
        return lambda start, stop: passes(order, len(self.dataset), base + start, base + stop)

    def _pass(self, done: int) -> Callable[[int, int], Rows]:
        """Return the order of one pass over all rows."""
        count = len(self.dataset)
        if self.order == "full":
            return lambda start, stop: permuted(count, start, stop, seed=self.seed, epoch=done)
        if self.order == "block":
            return self.blocks(done).rows
        return lambda start, stop: np.arange(start, stop, dtype=np.int64)

    def _sampled_batches(self, items: Iterator[Item], position: int) -> Iterator[PlannedBatch]:
        """Follow a torch Sampler; a resumed epoch skips what was taken, since only the sampler knows its order."""
        taken, rows, steps, last = 0, list[int](), 0, self._sampled_count()
        for item in items:
            found, is_batch = sampled_rows(item)
            rows += found
            if rows and (is_batch or len(rows) == self.batch_size):
                taken, steps = taken + len(rows), steps + 1
                if taken > position:
                    yield self._sampled_batch(rows, taken, is_last=steps == last)
                rows = []
        if rows and not self.drop_last and taken + len(rows) > position:
            yield self._sampled_batch(rows, taken + len(rows), is_last=True)

    def _sampled_batch(self, rows: list[int], taken: int, *, is_last: bool) -> PlannedBatch:
        # where the batch would stand in one order of all ranks: two ranks that are given one row draw differently for it
        start = (taken - len(rows)) * self.cut.world_size + self.cut.rank * len(rows)
        return PlannedBatch(self.dataset.positions(rows), start, _END if is_last else taken)

    def _sampled_count(self) -> int | None:
        """Return the steps of a sampler's epoch; None: it does not know them."""
        try:
            return self.steps_left(0)
        except TypeError:
            return None


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


def _chunked(rows_at: Callable[[int, int], Rows], count: int) -> Callable[[int, int], Rows]:
    """Compute an order a chunk at a time and cut batches from it."""
    held_start, held = 0, np.zeros(0, dtype=np.int64)

    def cut(start: int, stop: int) -> Rows:
        nonlocal held_start, held
        if not held_start <= start <= stop <= held_start + len(held):
            held_start, held = start, rows_at(start, min(count, max(stop, start + _ORDER_CHUNK)))
        return held[start - held_start : stop - held_start]

    return cut


def _rows_id(dataset: MemmapDataset, *others: npt.NDArray[Any] | None) -> int:
    """Return a fingerprint that differs if the same positions would be other rows; others: further things that decide it."""
    known = int(dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
    rows = None if dataset.has_all_rows else dataset.store_rows(np.arange(len(dataset)))
    for array in (rows, *others):
        known = known if array is None else known ^ zlib.crc32(array.tobytes())
    return known
