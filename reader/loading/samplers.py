"""Gives programs that expect a DataLoader `loader.sampler` and `loader.batch_sampler`; and repeated augmentation.

The first two give positions in the loader's dataset, of its rank, in its order. What makes a DataLoader of a loader's dataset and
batch_sampler, as accelerate's skip_first_batches does, still gets the loader's own batches: a step carries what makes it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Protocol

import torch
from torch.utils.data import BatchSampler, Sampler, SequentialSampler

from reader.dataset.collate import Step
from reader.loading.frameworks import check_skip
from reader.loading.iteration import Iteration
from reader.planning.epochs import Epochs
from reader.planning.given_sampler import Item
from reader.planning.plan import EpochPlan
from reader.planning.ranks import given_ranks, ranks_now
from reader.transforms.random import integer

# As in DeiT, timm and torchvision's references an epoch has a multiple of 256 rows: fewer where there are more.
_MULTIPLE = 256


class Loop(Protocol):
    """Begins the passes that `StepSampler` asks for: a loader."""

    epochs: Epochs

    def begin(self, plan: EpochPlan, items: Iterator[Item] | None = None) -> Iteration:
        """Begin a pass; items: the sampler's items, if they were drawn already."""


class OrderSampler(Sampler[int]):
    """Gives the positions of this rank's rows in a loader's next epoch; for a loader that no sampler was given to.

    `set_epoch` reaches the loader; its state is the loader's.
    """

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self.data_source: Sized = epochs.orders.dataset

    def __len__(self) -> int:
        return self._epochs.plan.rank_rows()

    def __iter__(self) -> Iterator[int]:
        plan = self._epochs.upcoming().at(0)
        for batch in plan.batches(plan.listed()):
            yield from batch.positions.tolist()

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""
        return self._epochs.next[0]

    @property
    def rank(self) -> int:
        """The rank whose positions these are."""
        return self._epochs.plan.cut.rank

    @property
    def num_replicas(self) -> int:
        """The number of ranks."""
        return self._epochs.plan.cut.world_size

    def set_epoch(self, epoch: int) -> None:
        """Make the loader's next pass begin this epoch, as its own set_epoch does; a pass that runs continues."""
        self._epochs.set_epoch(epoch, ends_pass=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state."""
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of the loader."""
        self._epochs.load_state_dict(state)


class StoreOrderSampler(OrderSampler, SequentialSampler):
    """Does the same for a loader that does not shuffle: by this class Lightning knows it."""


class StepSampler(Sampler[list[int]]):
    """Gives the positions of each batch of a loader's next epoch, from its beginning; with the loader's dataset, its batches.

    sampler: what the loader has as its sampler.
    """

    def __init__(self, loop: Loop, sampler: object) -> None:
        self._loop, self.sampler = loop, sampler
        self.drop_last = loop.epochs.orders.drop_last

    @property
    def batch_size(self) -> int:
        """The rows of a batch and rank."""
        return self._loop.epochs.plan.cut.batch_size

    def __len__(self) -> int:
        return self._loop.epochs.steps()

    def __iter__(self) -> Iterator[list[int]]:
        epochs = self._loop.epochs
        if not epochs.knows_epoch:
            check_skip()
        plan, position = epochs.upcoming().at(0), 0
        items = list(plan.listed())
        deferred = _DeferredPass(self._loop, plan, items)
        for batch in plan.batches(iter(items)):
            make = functools.partial(deferred.batch, position, batch.after)
            yield Step(batch.positions.tolist(), plan.dataset, make)
            position = batch.after
        deferred.end()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch as the loader's sampler does."""
        self._loop.epochs.set_epoch(epoch, ends_pass=False)


class RASampler(Sampler[int]):
    """Repeats each row several times in an epoch, augmented otherwise each time (repeated augmentation). See https://arxiv.org/abs/1901.09335.

    As torchvision's references/classification and timm (there RepeatAugSampler): the order is shuffled, each row comes in it
    `repetitions` times, the ranks take its positions in turn, and an epoch ends after as many rows as there are, rounded down
    to a multiple of 256: 1 of `repetitions` rows comes up in it, all ranks together. MemmapLoader sets its epoch.

    Args:
        dataset: whose rows.
        num_replicas, rank: None: as MemmapLoader finds them out.
        shuffle: whether the order is another in each epoch.
        seed: fixes the orders.
        repetitions: how often each row comes.

    Raises:
        ValueError: repetitions is not 1 or more.

    Example:
        >>> from pixpack import MemmapDataset
        >>> rows = list(RASampler(MemmapDataset(store_path), num_replicas=1, rank=0, repetitions=3))
        >>> len(set(rows[:3]))
        1
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        repetitions: int = 3,
    ) -> None:
        seed, repetitions = integer("seed", seed), integer("repetitions", repetitions)
        if repetitions < 1:
            raise ValueError(f"repetitions is {repetitions!r}, expected 1 or more.")
        ranks = ranks_now(given_ranks(rank, num_replicas))
        self.dataset, self.num_replicas, self.rank = dataset, ranks.world_size, ranks.rank
        self.shuffle, self.seed, self.repetitions, self.epoch = shuffle, seed, repetitions, 0

    def __len__(self) -> int:
        count = len(self.dataset)
        return math.floor((count // _MULTIPLE * _MULTIPLE or count) / self.num_replicas)

    def __iter__(self) -> Iterator[int]:
        count = len(self.dataset)
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(count, generator=generator) if self.shuffle else torch.arange(count)
        positions = self.rank + self.num_replicas * torch.arange(len(self))
        # [7, 7, 7, 2, 2, 2, ..] of two ranks -> [7, 7, 2, ..] and [7, 2, 2, ..]
        return iter(order[positions // self.repetitions].tolist())

    def set_epoch(self, epoch: int) -> None:
        """Shuffle the next pass as this epoch."""
        self.epoch = epoch


class _DeferredPass:
    """Begins a pass over a loader at the first step that is taken: those before it are skipped unread."""

    def __init__(self, loop: Loop, plan: EpochPlan, items: list[Item]) -> None:
        self._loop, self._plan, self._items = loop, plan, items
        self._iteration: Iteration | None = None
        self._position = 0

    def batch(self, position: int, after: int) -> object:
        """Return the batch between two positions of the epoch."""
        if self._iteration is None or position != self._position:
            self._iteration = self._loop.begin(self._plan.at(position), iter(self._items))
        batch = next(self._iteration)
        self._position = after
        return batch

    def end(self) -> None:
        """Reach the end, and notify a framework that asked for it."""
        if self._iteration is not None:
            next(self._iteration, None)


def sampler_of(epochs: Epochs) -> object:
    """Return the sampler that represents a loader's order: the caller's own, else one of ours."""
    orders = epochs.orders
    given = None if orders.sampler is None else orders.sampler.sampler
    if isinstance(given, BatchSampler):
        # no sampler of rows, and taken for one by accelerate
        given = getattr(given, "sampler", None)
    if given is not None:
        return given
    return StoreOrderSampler(epochs) if orders.name == "sequential" else OrderSampler(epochs)
