"""What programs that expect a DataLoader find as `loader.sampler` and `loader.batch_sampler`; and repeated augmentation.

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
from reader.dataset.dataset import MemmapDataset
from reader.loading.frameworks import check_skip
from reader.loading.iteration import Iteration
from reader.loading.ranks import given_ranks, ranks_now
from reader.loading.schedule import Schedule
from reader.loading.state import LoopState
from reader.loading.validation import Item, integer

# As in DeiT, timm and torchvision's references an epoch has a multiple of 256 rows: fewer where there are more.
_MULTIPLE = 256


class Loop(Protocol):
    """What its samplers ask of a loader."""

    dataset: MemmapDataset
    schedule: Schedule
    state: LoopState

    def __len__(self) -> int: ...

    def upcoming(self) -> tuple[int, int]:
        """Return epoch and position of the next pass, for the ranks that there are now."""

    def begin(self, epoch: int, position: int, items: Iterator[Item] | None = None) -> Iteration:
        """Begin a pass; items: the sampler's items, if they were drawn already."""


class OrderSampler(Sampler[int]):
    """The positions of this rank's rows in a loader's next epoch; of a loader that no sampler was given to.

    `set_epoch` reaches the loader; its state is the loader's.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.data_source: Sized = loop.dataset

    def __len__(self) -> int:
        return self._loop.schedule.rank_rows()

    def __iter__(self) -> Iterator[int]:
        epoch, _ = self._loop.upcoming()
        for batch in self._loop.schedule.batches(epoch, 0, self._loop.schedule.listed(epoch)):
            yield from batch.positions.tolist()

    @property
    def epoch(self) -> int:
        """The epoch that comes next."""
        return self._loop.state.next[0]

    @property
    def rank(self) -> int:
        """The rank whose positions these are."""
        return self._loop.schedule.cut.rank

    @property
    def num_replicas(self) -> int:
        """The number of ranks."""
        return self._loop.schedule.cut.world_size

    def set_epoch(self, epoch: int) -> None:
        """Make the loader's next pass begin this epoch, as its own set_epoch does; a pass that runs continues."""
        self._loop.state.set_epoch(epoch, ends_pass=False)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's."""
        return self._loop.state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the loader's."""
        self._loop.state.load_state_dict(state)


class StoreOrderSampler(OrderSampler, SequentialSampler):
    """The same of a loader that does not shuffle, by which Lightning knows it."""


class StepSampler(Sampler[list[int]]):
    """The positions of each batch of a loader's next epoch, from its beginning; with the loader's dataset, its batches.

    sampler: what the loader has as its sampler.
    """

    def __init__(self, loop: Loop, sampler: object) -> None:
        self._loop, self.sampler = loop, sampler
        self.drop_last = loop.schedule.drop_last

    @property
    def batch_size(self) -> int:
        """Rows a batch and rank."""
        return self._loop.schedule.batch_size

    def __len__(self) -> int:
        return len(self._loop)

    def __iter__(self) -> Iterator[list[int]]:
        if not self._loop.state.knows_epoch:
            check_skip()
        epoch, _ = self._loop.upcoming()
        schedule, position = self._loop.schedule, 0
        items = list(schedule.listed(epoch))
        made = _DeferredPass(self._loop, epoch, items)
        for batch in schedule.batches(epoch, 0, iter(items)):
            make = functools.partial(made.batch, position, batch.after)
            yield Step(batch.positions.tolist(), self._loop.dataset, make)
            position = batch.after
        made.end()

    def set_epoch(self, epoch: int) -> None:
        """As that of the loader's sampler."""
        self._loop.state.set_epoch(epoch, ends_pass=False)


class RASampler(Sampler[int]):
    """Repeated augmentation: each row several times in an epoch, augmented otherwise each time. See https://arxiv.org/abs/1901.09335.

    As torchvision's references/classification and timm (there RepeatAugSampler): the order is shuffled, each row stands in it
    `repetitions` times, the ranks take its positions in turn, and an epoch ends after as many rows as there are: 1 of
    `repetitions` rows comes up in it, all ranks together. MemmapLoader sets its epoch.

    Args:
        dataset: whose rows.
        num_replicas, rank: None: as MemmapLoader finds them out.
        shuffle: whether the order is another in each epoch.
        seed: fixes the orders.
        repetitions: how often each row comes.

    Raises:
        ValueError: repetitions is not 1 or more.

    Example:
        >>> from reader import MemmapDataset
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
    """A pass over a loader that begins at the first step that is taken: those before it are skipped unread."""

    def __init__(self, loop: Loop, epoch: int, items: list[Item]) -> None:
        self._loop, self._epoch, self._items = loop, epoch, items
        self._iteration: Iteration | None = None
        self._position = 0

    def batch(self, position: int, after: int) -> object:
        """Return the batch between two positions of the epoch."""
        if self._iteration is None or position != self._position:
            self._iteration = self._loop.begin(self._epoch, position, iter(self._items))
        made = next(self._iteration)
        self._position = after
        return made

    def end(self) -> None:
        """Reach the end, and notify a framework that asked for it."""
        if self._iteration is not None:
            next(self._iteration, None)


def sampler_of(loop: Loop) -> object:
    """Return the sampler that represents a loader's order: the caller's own, else one of ours."""
    given = loop.schedule.sampler
    if isinstance(given, BatchSampler):
        # no sampler of rows, and taken for one by accelerate
        given = getattr(given, "sampler", None)
    if given is not None:
        return given
    return StoreOrderSampler(loop) if loop.schedule.order == "sequential" else OrderSampler(loop)
