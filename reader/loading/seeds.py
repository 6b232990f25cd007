"""Chooses the seed of a loader: the given one, or that of a loaded state, else one when the first epoch begins."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from torch.utils.data import get_worker_info

_GIVEN, _OF_STATE, _OF_RANKS = "as given", "of the loaded state", "as on all ranks"
_OF_PROCESS = "torch.initial_seed()"
_MOST = 2**31

# That of the process that this one was forked from: a worker of a DataLoader has set its own since.
_before_fork: int | None = None


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
        """Say whether a loader with this seed continues a state with that one; None: of a loop that has not begun."""
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
