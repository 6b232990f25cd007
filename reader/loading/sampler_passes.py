"""Passes over a sampler, and whether it gives rows or lists of rows, which the first item of a pass tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from reader.loading.validation import Item, sampled_rows


class SamplerPasses:
    """Begins the passes over a sampler.

    No attribute tells what a sampler gives: one of rows may have a batch_size too. A pass that was begun to look is the one that
    the next epoch takes, so that a sampler with random numbers of its own draws as it would for a DataLoader.
    """

    def __init__(self, sampler: Iterable[Item] | None) -> None:
        self._sampler: Iterable[Item] = () if sampler is None else sampler
        self._first: list[Item] | None = None
        self._begun: Iterator[Item] | None = None

    def begin(self, *, is_of_epoch: bool) -> Iterator[Item]:
        """Begin a pass, with its first item drawn: torch's samplers draw their seed at that, here and not later.

        is_of_epoch: the sampler takes epochs, and another may have been set since a pass was begun to look.
        """
        begun, self._begun = self._begun, None
        return self._new() if begun is None or is_of_epoch else begun

    def gives_batches(self) -> bool:
        """Say whether the items are lists of rows: by the kind of sampler where it is one of torch's, else by the first item."""
        if isinstance(self._sampler, torch.utils.data.BatchSampler):
            return True
        if type(self._sampler).__module__.startswith("torch."):
            return False
        if self._first is None:
            self._begun = self._new()
        return any(sampled_rows(item)[1] for item in self._first or ())

    def _new(self) -> Iterator[Item]:
        items = iter(self._sampler)
        self._first = list(itertools.islice(items, 1))
        return itertools.chain(self._first, items)
