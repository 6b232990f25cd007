"""Describes one rank's epoch in one immutable value: its order, ranks, seed and rows per batch.

Reads nothing of the store.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from reader.dataset.dataset import MemmapDataset
from reader.planning.given_sampler import GivenSampler, Item, sampled_rows
from reader.planning.orders import Orders
from reader.planning.ranks import Ranks
from reader.rows import Rows, Steps
from reader.shuffling import Cut, Order

# The position after the last step of a sampler, which may yield any number of rows.
_END = (1 << 62) - 1


class PlannedBatch(NamedTuple):
    """A batch's positions in the dataset, the global position of the first one, and the position after the step."""

    positions: Rows
    start: int
    after: int


@dataclass(frozen=True)
class EpochPlan:
    """Describes one rank's epoch in one of the loader's own orders.

    orders: the orders of all epochs, with `seed`.
    cut: rank, world size and rows per batch, which divide the order into steps.
    number: number of the epoch. position: the start of a pass over it, counted over all ranks.
    """

    orders: Orders
    cut: Cut
    seed: int
    number: int = 0
    position: int = 0

    # batches of a group: a tiny batch costs as much Python as a large one, and the caller waits for a whole group
    _most_batches: ClassVar[int] = 64

    @property
    def dataset(self) -> MemmapDataset:
        """The dataset of the epoch's rows."""
        return self.orders.dataset

    @property
    def ranks(self) -> Ranks:
        """The rank and the world size."""
        return Ranks(self.cut.rank, self.cut.world_size)

    def order(self) -> Order:
        """Return the order of the epoch; each thread needs its own."""
        return self.orders.order(self.number, self.seed)

    def items(self) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one: torch's draw their seed at the first item, so here and not later."""
        return iter(())

    def batches(self, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Yield the batches from the position on, as positions in the dataset; items: the result of `items`."""
        order, position = self.order(), self.position
        for _ in range(self.cut.steps(position)):
            step = self.cut.step(position)
            position = step.after
            yield PlannedBatch(order.of_step(step), step.start, position)

    def steps(self, items: Iterator[Item], group_bytes: int) -> Iterator[Steps]:
        """Yield the batches as rows of the store, in groups of at most group_bytes."""
        dataset, batches = self.dataset, self.batches(items)
        group = max(1, min(self._most_batches, group_bytes // (dataset.manifest.row_bytes * self.cut.batch_size)))
        while taken := list(itertools.islice(batches, group)):
            rows = [dataset._store_rows(batch.positions) for batch in taken]
            yield Steps(rows, [batch.start for batch in taken], [batch.after for batch in taken])

    def count_steps(self) -> int:
        """Return the number of steps in the epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        return self.cut.steps()

    def is_over(self, position: int) -> bool:
        """Return whether no rank has rows after a position, so that all ranks have the same state."""
        # not by this rank's steps: only the first ranks may have a last step
        return position > self.cut.count - (self.cut.full_step if self.cut.drop_last else 1)


@dataclass(frozen=True)
class SampledPlan(EpochPlan):
    """Describes an epoch of a torch Sampler, or of an object used as one, which yields this rank's rows."""

    _most_batches: ClassVar[int] = 1

    @property
    def sampler(self) -> GivenSampler:
        """The sampler that decides the order."""
        assert self.orders.sampler is not None
        return self.orders.sampler

    def items(self) -> Iterator[Item]:
        """Begin an epoch of the sampler: torch's draw their seed at the first item, so here and not later."""
        return self.sampler.items()

    def batches(self, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Follow the sampler, one batch behind it: the state after the last batch is that of the next epoch."""
        waiting: list[PlannedBatch] = []
        try:
            for rows, taken in self._sampled(items):
                yield from waiting
                waiting.clear()
                # positions in one order of all ranks, with the same number each: two ranks with the same row draw differently
                # for it
                start = (taken - len(rows)) * self.cut.world_size + self.cut.rank * len(rows)
                waiting = [PlannedBatch(self.dataset._positions(rows), start, taken * self.cut.world_size)]
        except Exception:
            # the error is raised after the batches before it
            yield from waiting
            raise
        for batch in waiting:
            yield batch._replace(after=_END)

    def _sampled(self, items: Iterator[Item]) -> Iterator[tuple[list[int], int]]:
        """Yield the rows of each batch, and the number taken so far; skips rows that a resumed epoch has taken."""
        # each rank skips its share; if that does not divide, some rows are repeated, and none is left out
        taken, skipped, rows = 0, self.position // self.cut.world_size, list[int]()
        for item in items:
            further, is_batch = sampled_rows(item)
            rows += further[max(0, skipped - taken) :]
            taken += len(further)
            if rows and (is_batch or len(rows) == self.cut.batch_size):
                yield rows, taken
                rows = []
        if rows and not self.orders.drop_last:
            yield rows, taken

    def count_steps(self) -> int:
        """Return the number of steps in the epoch.

        Raises:
            TypeError: the sampler has no length.
        """
        count, size = len(self.sampler), self.cut.batch_size
        if self.sampler.gives_batches:
            return count
        return count // size if self.orders.drop_last else -(-count // size)

    def is_over(self, position: int) -> bool:
        """Return whether a position is after the sampler's last batch."""
        return position == _END
