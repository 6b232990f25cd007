"""What programs that expect a DataLoader find as `loader.sampler` and `loader.batch_sampler`.

Both give positions in the loader's dataset, of its rank, in its order. What makes a DataLoader of a loader's dataset and
batch_sampler, as accelerate's skip_first_batches does, still gets the loader's own batches: a step carries what makes it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sized
from typing import Any, Protocol

from torch.utils.data import BatchSampler, Sampler, SequentialSampler

from reader.dataset.collate import Step
from reader.dataset.dataset import MemmapDataset
from reader.loading.iteration import Iteration
from reader.loading.schedule import Schedule
from reader.loading.state import LoopState
from reader.loading.validation import Item


class Loop(Protocol):
    """What its samplers ask of a loader."""

    dataset: MemmapDataset
    schedule: Schedule
    state: LoopState

    def upcoming(self) -> tuple[int, int]:
        """Return epoch and position of the next pass, for the ranks that there are now."""

    def begin(self, epoch: int, position: int, items: Iterator[Item] | None = None) -> Iteration:
        """Begin a pass; items: what the sampler gives in it, if it was asked already."""


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

    def state_dict(self) -> dict[str, int]:
        """Return the loader's."""
        return self._loop.state.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Load the loader's."""
        self._loop.state.load_state_dict(state)


class StoreOrderSampler(OrderSampler, SequentialSampler):
    """The same of a loader that does not shuffle, by which Lightning knows it."""


class StepSampler(Sampler[list[int]]):
    """The positions of each batch of a loader's next epoch, from its beginning; with the loader's dataset, its batches.

    sampler: what the loader has as its sampler.
    """

    def __init__(self, loop: Loop, sampler: Any) -> None:
        self._loop, self.sampler = loop, sampler
        self.batch_size, self.drop_last = loop.schedule.batch_size, loop.schedule.drop_last

    def __len__(self) -> int:
        return self._loop.schedule.steps_left(0)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, _ = self._loop.upcoming()
        schedule, position = self._loop.schedule, 0
        items = list(schedule.listed(epoch))
        made = _Pass(self._loop, epoch, items)
        for batch in schedule.batches(epoch, 0, iter(items)):
            make = functools.partial(made.batch, position, batch.after)
            yield Step(batch.positions.tolist(), self._loop.dataset, make)
            position = batch.after
        made.end()

    def set_epoch(self, epoch: int) -> None:
        """As that of the loader's sampler."""
        self._loop.state.set_epoch(epoch, ends_pass=False)


class _Pass:
    """A pass over a loader that begins at the first step that is taken: those before it are skipped unread."""

    def __init__(self, loop: Loop, epoch: int, items: list[Item]) -> None:
        self._loop, self._epoch, self._items = loop, epoch, items
        self._iteration: Iteration | None = None
        self._position = 0

    def batch(self, position: int, after: int) -> Any:
        """Return the batch between two positions of the epoch."""
        if self._iteration is None or position != self._position:
            self._iteration = self._loop.begin(self._epoch, position, iter(self._items))
        made = next(self._iteration)
        self._position = after
        return made

    def end(self) -> None:
        """Reach the end, of which a framework may want notice."""
        if self._iteration is not None:
            next(self._iteration, None)


def sampler_of(loop: Loop) -> Any:
    """Return what stands for a loader's order: the caller's own sampler of rows, else one of ours."""
    given = loop.schedule.sampler
    if isinstance(given, BatchSampler):
        # no sampler of rows, and taken for one by accelerate
        given = getattr(given, "sampler", None)
    if given is not None:
        return given
    return StoreOrderSampler(loop) if loop.schedule.order == "sequential" else OrderSampler(loop)
