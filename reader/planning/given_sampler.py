"""Follows the program's sampler: its passes, its epoch, and whether it yields rows or lists of rows."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import BatchSampler, Sampler

# A sampler yields one row, or the rows of a batch.
Item = int | Sequence[int] | torch.Tensor | npt.NDArray[np.integer]


class GivenSampler:
    """Begins the passes over a sampler, and keeps its epoch and the loader's the same."""

    def __init__(self, sampler: Iterable[Item]) -> None:
        is_once = isinstance(sampler, Iterator) and not isinstance(sampler, Sampler)
        if is_once or not isinstance(sampler, Iterable):
            raise ValueError(
                f"sampler is a {type(sampler).__name__}, expected a torch Sampler or BatchSampler, or a list of rows, from"
                " which each epoch starts over."
            )
        self.sampler = sampler
        self._started: Iterator[Item] | None = None
        self._epoch_set = self._epoch

    def items(self) -> Iterator[Item]:
        """Begin a pass and draw its first item: torch's samplers draw their seed then, so it is drawn here and not later."""
        started, self._started = self._started, None
        # another epoch may have been set since a pass was started for a look
        return self._pass()[1] if started is None or self._takes_epochs is not None else started

    def _pass(self) -> tuple[list[Item], Iterator[Item]]:
        """Begin a pass: its first item, and all of them."""
        items = iter(self.sampler)
        first = list(itertools.islice(items, 1))
        return first, itertools.chain(first, items)

    @functools.cached_property
    def gives_batches(self) -> bool:
        """Whether the items are lists of rows: no attribute tells, since a sampler of rows may have a batch_size too.

        The next epoch uses the pass started for this, so that a sampler draws the same as for a DataLoader.
        """
        if type(self.sampler).__module__.startswith("torch."):
            return isinstance(self.sampler, BatchSampler)
        first, self._started = self._pass()
        return any(sampled_rows(item)[1] for item in first)

    def __len__(self) -> int:
        """Return the number of items of a pass; raises TypeError if the sampler has no length."""
        return len(cast(Sized, self.sampler))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a sampler that has set_epoch, such as torch's DistributedSampler, or of the one that it draws from."""
        if (takes := self._takes_epochs) is not None:
            takes.set_epoch(epoch)
            self._epoch_set = self._epoch

    def moved_to(self) -> int | None:
        """Return the epoch that the program has set on the sampler since then, or None."""
        return None if self._epoch == self._epoch_set else self._epoch

    @property
    def _takes_epochs(self) -> Any:
        """The sampler that takes epochs: the given one, or the one that it draws from, which a program may replace."""
        both = (self.sampler, getattr(self.sampler, "sampler", None))
        return next((each for each in both if hasattr(each, "set_epoch")), None)

    @property
    def _epoch(self) -> int | None:
        return getattr(self._takes_epochs, "epoch", None)


def sampled_rows(item: Item) -> tuple[list[int], bool]:
    """Return the rows of a sampler's item, and whether they are a batch: 3 -> [3], False; [3, 1] -> [3, 1], True."""
    # arrays and tensors too; those without a dimension are one row
    rows: Any = item.tolist() if hasattr(item, "tolist") else item
    is_batch = isinstance(rows, list | tuple | range)
    return [operator.index(row) for row in (rows if is_batch else [rows])], is_batch
