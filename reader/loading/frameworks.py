"""What training frameworks want to know of a loop beside its batches: accelerate, whether a batch is the last of its epoch.

Imports none of them: one that the program has not imported is not asked.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

# Lightning's packages, by either of its names.
_LIGHTNING = ("lightning", "pytorch_lightning", "lightning_fabric")


# What of accelerate asks a loader for its sampler makes a DataLoader of it.
_ACCELERATE = "accelerate"


def batch_sampler_for(caller: str, loader: Any) -> Any:
    """Give Lightning what it reads of a loader's batch_sampler, and makes no DataLoader of: the sampler and the batch size.

    Args:
        caller: name of the module that asks.

    Raises:
        AttributeError: another asks, which would make a DataLoader of the loader, without transform, device or ranks.
    """
    if _package(caller) in _LIGHTNING:
        return SimpleNamespace(sampler=loader.sampler, batch_size=loader.batch_size)
    raise AttributeError(_refusal("has no batch_sampler"))


def check_sampler_for(caller: str) -> None:
    """Refuse accelerate the sampler of a loader: of one that gives batches it would make a DataLoader.

    Args:
        caller: name of the module that asks.

    Raises:
        AttributeError: it is one of accelerate's.
    """
    if _package(caller) == _ACCELERATE:
        raise AttributeError(_refusal("shows accelerate no sampler"))


def _package(module: str) -> str:
    return module.partition(".")[0]


def _refusal(what: str) -> str:
    return (
        f"a MemmapLoader {what}: it reads the part of its rank itself. Give it to accelerate's prepare() as it is; to resume in"
        " the middle of an epoch, save its state by accelerator.register_for_checkpointing(loader), or call load_state_dict(),"
        " in place of skip_first_batches()."
    )


class AccelerateState:
    """Reports one pass of a loader to accelerate, as its own DataLoaders do.

    With that `gather_for_metrics` leaves out rows that ranks share so as to have equal steps, and gradients that were
    accumulated are not left over at the end of an epoch.
    """

    def __init__(self) -> None:
        # accelerate's names
        self.end_of_dataloader = False
        self.remainder = -1
        self._has_begun = False
        state = sys.modules.get("accelerate.state")
        # of a program that made no Accelerator, nobody asks
        self._known: Any = state.GradientState() if state is not None and state.GradientState().initialized else None

    def begin(self) -> None:
        """Report, once, that this pass is the one that batches come from now."""
        if self._known is not None and not self._has_begun:
            self._has_begun = True
            self._known._add_dataloader(self)

    def last(self, remainder: int) -> None:
        """Report that the batch that is given now is the last; remainder: rows of all ranks in it that count, 0: all."""
        self.end_of_dataloader, self.remainder = True, remainder

    def end(self) -> None:
        """Report that the pass is over."""
        if self._known is not None:
            self._known._remove_dataloader(self)
            self._known = None
