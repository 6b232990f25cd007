"""Tells accelerate when a pass ends, and refuses it what would give a loop other rows than its own.

Imports no framework: one that the program has not imported is not asked.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Protocol


def check_asker() -> None:
    """Refuse accelerate's prepare_data_loader the samplers of a loader: it would split the rows of one rank among all ranks.

    Called by a property; its caller is looked at.

    Raises:
        AttributeError: that is who asks.
    """
    asker = _asker()
    if asker is not None and asker.f_code.co_name == "prepare_data_loader":
        raise AttributeError(
            "a MemmapLoader reads the part of its rank itself, and is not made a DataLoader of. Give it to accelerate's prepare()"
            " as it is."
        )


def check_skip() -> None:
    """Refuse the steps of an epoch that nobody has named to accelerate's skip_first_batches: it would skip in epoch 0.

    Called by what iterates over the steps; its caller is looked at.

    Raises:
        ValueError: that is who asks, to skip any.
    """
    asker = _asker()
    if asker is not None and getattr(asker.f_locals.get("self"), "skip_batches", False):
        raise ValueError(
            "skip_first_batches does not say of which epoch, and no epoch of this MemmapLoader has begun. Call"
            " loader.set_epoch(epoch) first; or accelerator.register_for_checkpointing(loader), so that load_state restores epoch"
            " and position."
        )


def _asker() -> FrameType | None:
    """Return the frame of accelerate that called what calls this module; None: it was another's."""
    asker = sys._getframe(3)
    return asker if str(asker.f_globals.get("__name__")).startswith("accelerate.") else None


class _GradientState(Protocol):
    """Accelerate's state, which knows the loaders whose passes run."""

    def _add_dataloader(self, loader: AccelerateState) -> None: ...

    def _remove_dataloader(self, loader: AccelerateState) -> None: ...


class AccelerateState:
    """Reports one pass of a loader to accelerate, as its own DataLoaders do.

    With that `gather_for_metrics` leaves out rows that ranks share so as to have equal steps, and gradients that were
    accumulated are not left over at the end of an epoch.
    """

    def __init__(self) -> None:
        # accelerate's names
        self.end_of_dataloader = False
        self.remainder = -1
        self._has_started = False
        state = sys.modules.get("accelerate.state")
        # a program without an Accelerator does not ask
        self._known: _GradientState | None = (
            state.GradientState() if state is not None and state.GradientState().initialized else None
        )

    def begin(self) -> None:
        """Report, once, that this pass is the one that batches come from now."""
        if self._known is not None and not self._has_started:
            self._has_started = True
            self._known._add_dataloader(self)

    def last(self, remainder: int) -> None:
        """Report that the batch that is given now is the last; remainder: rows of all ranks in it that count, 0: all."""
        self.end_of_dataloader, self.remainder = True, remainder

    def end(self) -> None:
        """Report that the pass is over."""
        if self._known is not None:
            self._known._remove_dataloader(self)
            self._known = None
