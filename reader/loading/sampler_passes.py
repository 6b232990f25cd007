"""Passes over a sampler, and whether it gives rows or lists of rows, which the first item of a pass tells."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch

from reader.loading.validation import Item, sampled_rows


class SamplerPasses:
    """Begins the passes over a sampler.

    No attribute tells what a sampler gives: one of rows may have a batch_size too. The next epoch takes the pass that
    was started to look, so that a sampler with random numbers of its own draws as it would for a DataLoader.
    """

    def __init__(self, sampler: Iterable[Item] | None) -> None:
        self._sampler: Iterable[Item] = () if sampler is None else sampler
        self._first: list[Item] | None = None
        self._started: Iterator[Item] | None = None

    def begin(self, *, takes_epochs: bool) -> Iterator[Item]:
        """Return a pass, with its first item drawn: torch's samplers draw their seed at that, here and not later.

        takes_epochs: the sampler takes epochs, and another may have been set since a pass was started to look.
        """
        started, self._started = self._started, None
        return self._new() if started is None or takes_epochs else started

    def gives_batches(self) -> bool:
        """Say whether the items are lists of rows: by the kind of sampler where it is one of torch's, else by the first item."""
        if isinstance(self._sampler, torch.utils.data.BatchSampler):
            return True
        if type(self._sampler).__module__.startswith("torch."):
            return False
        if self._first is None:
            self._started = self._new()
        return any(sampled_rows(item)[1] for item in self._first or ())

    def _new(self) -> Iterator[Item]:
        items = iter(self._sampler)
        self._first = list(itertools.islice(items, 1))
        return itertools.chain(self._first, items)
