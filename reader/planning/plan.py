"""Describes one epoch, as one rank takes it, in one immutable value: its order, ranks, seed and rows a batch.

Reads nothing of the store. A seed is the given one, or that of a loaded state, else
chosen when the first epoch begins.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch.utils.data import get_worker_info

from reader.dataset.dataset import MemmapDataset
from reader.order import Cut, Order
from reader.planning.given_sampler import GivenSampler, Item, sampled_rows
from reader.planning.orders import Orders
from reader.planning.ranks import Ranks
from reader.rows import Rows, Steps

_GIVEN, _OF_STATE, _OF_RANKS = "as given", "of the loaded state", "as on all ranks"
_OF_PROCESS = "torch.initial_seed()"
_MOST = 2**31
# The seed of the process that this one was forked from: a worker of a DataLoader has set its own since.
_before_fork: int | None = None
# The position after the last step of a sampler, which may give any number of rows.
_END = (1 << 62) - 1


@dataclass(frozen=True)
class Seed:
    """Fixes, with the epoch, the order of a loader and what its transforms draw.

    value: None until it is chosen. source: where it is from.
    """

    value: int | None
    source: str = ""

    @classmethod
    def given(cls, value: int | None) -> Seed:
        """Return the seed of an argument; None: it is chosen later."""
        return cls(value, "" if value is None else _GIVEN)

    def __str__(self) -> str:
        return f"seed {self.value}"

    @property
    def described(self) -> str:
        """The seed and where it is from."""
        return f"{self} ({self.source})"

    def chosen(self, world_size: int) -> Seed:
        """Return the seed of an epoch that begins: of several ranks 0 where none was given, since theirs must agree."""
        if self.value is not None and (self.source != _OF_PROCESS or world_size == 1):
            return self
        return Seed(0, _OF_RANKS) if world_size > 1 else Seed(_process_seed(), _OF_PROCESS)

    def takes(self, value: int | None) -> bool:
        """Say whether a loader with this seed continues a state with that one; None: that of a loop before its first epoch."""
        return value is None or self.source != _GIVEN or value == self.value

    def resumed(self, value: int | None) -> Seed:
        """Return the seed after a state with that one was loaded."""
        return self if value is None or self.source == _GIVEN else Seed(value, _OF_STATE)


def _process_seed() -> int:
    """Return the seed of torch's generator; in a worker of a DataLoader what the process that started it would return."""
    worker = get_worker_info()
    if worker is None:
        seed = torch.initial_seed()
    else:
        # one that was not forked does not know: at least all workers have the same
        seed = worker.seed - worker.id if _before_fork is None else _before_fork
    return seed % _MOST


def _note_seed() -> None:
    global _before_fork
    _before_fork = torch.initial_seed()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_note_seed)


class PlannedBatch(NamedTuple):
    """A batch's positions in the dataset, the global position of the first of them, and that after the step."""

    positions: Rows
    start: int
    after: int


@dataclass(frozen=True)
class EpochPlan:
    """Describes an epoch of one of our orders, as one rank takes it.

    orders: what decides the orders of all epochs, with `seed`, which has no value before the first epoch begins.
    cut: rank, world size and rows a batch, and where each step is.
    number: of the epoch. position: where a pass over it begins, of all ranks.
    """

    orders: Orders
    cut: Cut
    seed: Seed
    number: int = 0
    position: int = 0

    # of a group: a tiny batch costs as much Python as a large one, and the caller waits for all of a group
    _most_batches: ClassVar[int] = 64

    @property
    def dataset(self) -> MemmapDataset:
        """The dataset whose rows the epoch takes."""
        return self.orders.dataset

    @property
    def seed_value(self) -> int:
        """The seed, once it is chosen."""
        assert self.seed.value is not None
        return self.seed.value

    @property
    def ranks(self) -> Ranks:
        """The rank and the world size."""
        return Ranks(self.cut.rank, self.cut.world_size)

    @functools.cached_property
    def first_cut(self) -> Cut:
        """The cut of rank 0, which has the last step even where only some ranks do."""
        return replace(self.cut, rank=0)

    @property
    def length(self) -> int | str:
        """The steps of the whole epoch; "some" where a sampler has no length."""
        return self.steps_left(0)

    def at(self, position: int) -> EpochPlan:
        """Return the plan of a pass over this epoch from another position on."""
        return replace(self, position=position)

    def next(self) -> EpochPlan:
        """Return the epoch after this one, all else alike."""
        return replace(self, number=self.number + 1, position=0)

    def order(self) -> Order:
        """Return the order of the epoch; each thread takes one of its own."""
        return self.orders.of(self.number, self.seed_value if self.orders.has_seed else 0)

    def items(self) -> Iterator[Item]:
        """Begin an epoch of the sampler, if there is one: torch's draw their seed at the first item, here and not later."""
        return iter(())

    def batches(self, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Yield the batches from the position on, by positions in the dataset; items: those of `items`."""
        order, position = self.order(), self.position
        for _ in range(self.cut.steps(position)):
            step = self.cut.step(position)
            position = step.after
            yield PlannedBatch(order.of_step(step), step.start, position)

    def steps(self, items: Iterator[Item], group_bytes: int) -> Iterator[Steps]:
        """Yield the batches by rows of the store, in groups of at most so many bytes."""
        dataset, batches = self.dataset, self.batches(items)
        group = max(1, min(self._most_batches, group_bytes // max(1, dataset.manifest.row_bytes * self.cut.batch_size)))
        while taken := list(itertools.islice(batches, group)):
            rows = [dataset.store_rows(batch.positions) for batch in taken]
            yield Steps(rows, [batch.start for batch in taken], [batch.after for batch in taken])

    def steps_left(self, position: int) -> int:
        """Return the steps from a position to the epoch's end (of a sampler: all steps).

        Raises:
            TypeError: the sampler has no length.
        """
        return self.cut.steps(position)

    def is_over(self, position: int) -> bool:
        """Say whether no rank has anything behind a position, so that all ranks have the same state."""
        return not self.first_cut.steps(position)


@dataclass(frozen=True)
class SampledPlan(EpochPlan):
    """Describes an epoch of a torch Sampler, or of what is used as one: it gives this rank its rows."""

    _most_batches: ClassVar[int] = 1

    @property
    def sampler(self) -> GivenSampler:
        """The sampler that decides the order."""
        assert self.orders.sampler is not None
        return self.orders.sampler

    @property
    def length(self) -> int | str:
        """The steps of the whole epoch; "some" where the sampler has no length."""
        return self.steps_left(0) if self.sampler.has_length else "some"

    def items(self) -> Iterator[Item]:
        """Begin an epoch of the sampler: torch's draw their seed at the first item, here and not later."""
        return self.sampler.items()

    def batches(self, items: Iterator[Item]) -> Iterator[PlannedBatch]:
        """Follow the sampler; a resumed epoch skips the rows that were taken, since only the sampler knows its order."""
        size, count = self.cut.batch_size, self.sampler.count() if self.sampler.has_length else math.inf
        # each rank skips its share; where they do not divide, some rows come again, and none is left out
        taken, skipped, rows = 0, self.position // self.cut.world_size, list[int]()
        for number, item in enumerate(items, start=1):
            further, is_batch = sampled_rows(item)
            rows += further[max(0, skipped - taken) :]
            taken += len(further)
            if rows and (is_batch or len(rows) == size):
                least = size if self.orders.drop_last and not is_batch else 1
                yield self._batch(rows, taken, is_last=count - number < least)
                rows = []
        if rows and not self.orders.drop_last:
            yield self._batch(rows, taken, is_last=True)

    def steps_left(self, position: int) -> int:
        """Return all steps.

        Raises:
            TypeError: the sampler has no length.
        """
        count, size = self.sampler.count(), self.cut.batch_size
        if self.sampler.gives_batches():
            return count
        return count // size if self.orders.drop_last else -(-count // size)

    def is_over(self, position: int) -> bool:
        """Say whether a position is behind the sampler's last batch."""
        return position == _END

    def _batch(self, rows: list[int], taken: int, *, is_last: bool) -> PlannedBatch:
        # positions in one order of all ranks, of which each takes as many: two ranks that get one row draw differently for it
        start = (taken - len(rows)) * self.cut.world_size + self.cut.rank * len(rows)
        return PlannedBatch(self.dataset.positions(rows), start, _END if is_last else taken * self.cut.world_size)
