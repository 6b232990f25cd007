"""Follows a sampler that the program gave: its passes, its epoch, and whether it gives rows or lists of rows."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

# A sampler gives a row at a time, or the rows of a batch.
Item = int | Sequence[int] | torch.Tensor | npt.NDArray[np.integer]


class _EpochSampler(Protocol):
    """A sampler that takes epochs, as torch's DistributedSampler."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order comes next."""
        ...


class GivenSampler:
    """Begins the passes over a sampler, and keeps its epoch and the loader's the same.

    No attribute tells what a sampler gives: one of rows may have a batch_size too. The next epoch takes the pass that
    was started to look, so that a sampler with random numbers of its own draws as it would for a DataLoader.
    """

    def __init__(self, sampler: Iterable[Item]) -> None:
        is_once = isinstance(sampler, Iterator) and not isinstance(sampler, torch.utils.data.Sampler)
        if is_once or not hasattr(sampler, "__iter__"):
            raise ValueError(
                f"sampler is a {type(sampler).__name__}, expected a torch Sampler or BatchSampler, or a list of rows, from"
                " which each epoch starts over."
            )
        self.sampler = sampler
        self._first: list[Item] | None = None
        self._started: Iterator[Item] | None = None
        self._epoch_set = self._epoch()

    @property
    def _takes_epochs(self) -> _EpochSampler | None:
        """The sampler that takes epochs: the one that was given, or the one that it draws from, which a program may exchange."""
        both = (self.sampler, getattr(self.sampler, "sampler", None))
        takes = (each for each in both if callable(getattr(each, "set_epoch", None)))
        return cast("_EpochSampler | None", next(takes, None))

    def items(self) -> Iterator[Item]:
        """Begin a pass, with its first item drawn: torch's samplers draw their seed at that, here and not later."""
        started, self._started = self._started, None
        # another epoch may have been set since a pass was started to look
        return self._new_pass() if started is None or self._takes_epochs is not None else started

    def gives_batches(self) -> bool:
        """Say whether the items are lists of rows: by the kind of sampler where it is one of torch's, else by the first item."""
        if isinstance(self.sampler, torch.utils.data.BatchSampler):
            return True
        if type(self.sampler).__module__.startswith("torch."):
            return False
        if self._first is None:
            self._started = self._new_pass()
        return any(sampled_rows(item)[1] for item in self._first or ())

    def check_ranks(self) -> None:
        """Raise ValueError for a sampler of torch that knows no ranks: each would read the same rows."""
        for each in (self.sampler, getattr(self.sampler, "sampler", None)):
            if type(each) in (RandomSampler, SequentialSampler, WeightedRandomSampler):
                raise ValueError(
                    f"sampler is a {type(each).__name__}, which gives all ranks the same rows: give torch's"
                    " DistributedSampler, or weights= or shuffle= in its place."
                )

    @property
    def has_length(self) -> bool:
        """Whether it says how many items a pass has."""
        try:
            self.count()
        except TypeError:
            return False
        return True

    def count(self) -> int:
        """Return how many items a pass has.

        Raises:
            TypeError: it has no length.
        """
        try:
            return len(cast(Sized, self.sampler))
        except TypeError:
            kind = type(self.sampler).__name__
            raise TypeError(f"the sampler, a {kind}, has no length, so the loader has none either.") from None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has set_epoch, as torch's DistributedSampler has; or of the one that it draws from."""
        if self._takes_epochs is not None:
            self._takes_epochs.set_epoch(epoch)
            self._epoch_set = self._epoch()

    def moved_to(self) -> int | None:
        """Return the epoch that the program has set on the sampler itself since; None: none."""
        return None if self._epoch() == self._epoch_set else self._epoch()

    def _epoch(self) -> int | None:
        return getattr(self._takes_epochs, "epoch", None)

    def _new_pass(self) -> Iterator[Item]:
        items = iter(self.sampler)
        self._first = list(itertools.islice(items, 1))
        return itertools.chain(self._first, items)


def sampled_rows(item: Item) -> tuple[list[int], bool]:
    """Return the rows that a sampler gave at once, and whether they are a batch: 3 -> [3], False; [3, 1] -> [3, 1], True.

    Raises:
        ValueError: what it gave are no rows.
    """
    # arrays and tensors too; those without a dimension are one row
    rows: Any = item.tolist() if hasattr(item, "tolist") else item
    is_batch = isinstance(rows, list | tuple | range)
    if any(isinstance(row, bool) for row in (rows if is_batch else [rows])):
        raise ValueError("the sampler gave True or False, expected rows. For a mask of rows give dataset.subset(mask).")
    try:
        return ([operator.index(row) for row in rows] if is_batch else [operator.index(rows)]), is_batch
    except TypeError:
        given = " ".join(repr(item).split())
        raise ValueError(f"the sampler gave {given}, expected a row or a list of rows, integers.") from None
