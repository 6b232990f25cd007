"""What training frameworks read from a loop besides batches: accelerate, whether a batch is the last of its epoch.

Imports none of them: one that the program has not imported is not asked.
"""

from __future__ import annotations

import sys
from typing import Protocol


def check_asker() -> None:
    """Refuse accelerate's prepare_data_loader the samplers of a loader: it would split the rows of one rank among all ranks.

    Called by a property; its caller is looked at.

    Raises:
        AttributeError: that is who asks.
    """
    asker = sys._getframe(2)
    is_accelerate = str(asker.f_globals.get("__name__")).startswith("accelerate.")
    if is_accelerate and asker.f_code.co_name == "prepare_data_loader":
        raise AttributeError(
            "a MemmapLoader reads the part of its rank itself, and is not made a DataLoader of. Give it to accelerate's prepare()"
            " as it is."
        )


class _GradientState(Protocol):
    """That of accelerate, which knows the loaders whose passes run."""

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
