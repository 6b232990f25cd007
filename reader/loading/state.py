"""Which epoch a loader is in and where: what `iter` begins next, the state of a checkpoint, and its check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reader.loading.schedule import Schedule
from reader.loading.validation import integer

# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler", "mixture")


@dataclass
class PassState:
    """Where the newest iterator is; the loader's state after that iterator is gone.

    is_taken: a batch was taken from it. moved_to: the epoch that it is of instead, set before that. is_over: there is no batch
    behind the position. batch_size: rows of its batches, of one rank.
    """

    epoch: int
    position: int
    finished: bool = False
    is_taken: bool = False
    moved_to: int | None = None
    is_over: bool = False
    batch_size: int = 0


class LoopState:
    """The epochs of one loader.

    next: epoch and position where the next `iter` begins.
    progress: of the newest iterator, which keeps it up to date.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.next, self._is_placed = (0, 0), False
        self.progress = PassState(0, 0, finished=True)

    @property
    def knows_epoch(self) -> bool:
        """Whether an epoch has begun, or the program or a state has said which comes next."""
        return self._is_placed or self._schedule.outside_epoch() is not None

    def upcoming(self) -> tuple[int, int]:
        """Return epoch and position of the next pass; an epoch that another caller has set on the sampler is that one."""
        outside = self._schedule.outside_epoch()
        if outside is not None and outside != self.next[0]:
            self.next = (outside, 0)
        return self.next

    def begin(self, epoch: int, position: int) -> PassState:
        """Begin a pass; the one after it is the next epoch's."""
        self.next, self._is_placed = (epoch + 1, 0), True
        schedule = self._schedule
        self.progress = PassState(epoch, position, is_over=schedule.is_over(position), batch_size=schedule.batch_size)
        schedule.begin_epoch(epoch)
        return self.progress

    def set_epoch(self, epoch: int, *, ends_pass: bool = True) -> None:
        """Make the next pass begin this epoch; if a state of the middle of this very epoch was loaded, resume there.

        ends_pass: the pass that runs is over. Else one that nothing was taken from becomes of this epoch, and one of this epoch
            continues: frameworks that set the epoch on a sampler, as Lightning does, may do so after they began that epoch.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        if (epoch := integer("epoch", epoch)) < 0:
            raise ValueError(f"epoch is {epoch}, expected 0 or more.")
        self._is_placed = True
        # a state that was loaded in the middle of this epoch stays: loops call set_epoch at the beginning of each
        if epoch != self.next[0]:
            self.next = (epoch, 0)
        progress = self.progress
        if not ends_pass and not progress.finished and not progress.is_taken:
            progress.moved_to = None if epoch == progress.epoch else epoch
        elif ends_pass or epoch != progress.epoch:
            progress.finished = True
        self._schedule.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the loop is, as a few integers: after the batch that the caller got last.

        The seed is None before it is chosen.
        """
        epoch, position = self.next
        if not self.progress.finished and self.progress.moved_to is None:
            epoch, position = self.progress.epoch, self.progress.position
            if self.progress.is_over:
                epoch, position = epoch + 1, 0
        schedule = self._schedule
        state = {"epoch": epoch, "position": position, "seed": schedule.chosen_seed.value}
        return state | {
            "order": _ORDERS.index(schedule.order),
            "rows": len(schedule.dataset),
            "store": schedule.rows_id,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next pass resume from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: the state is of another store, subset, order or explicit seed.
        """
        own, schedule = self.state_dict(), self._schedule
        if not isinstance(state, dict) or not all(_is_number(state.get(key, ""), key) for key in own):
            raise ValueError(f"the state is {state!r}, expected what state_dict() gave: {', '.join(own)}, integers.")
        if schedule.chosen_seed.takes(state["seed"]):
            own["seed"] = state["seed"]
        for key, what in (
            ("rows", "number of rows"),
            ("store", "store, subset or weights, epoch_rows or canonical_nodes"),
            ("seed", "seed"),
            ("order", "order"),
        ):
            if state.get(key) != own[key]:
                raise ValueError(
                    f"the state is of another {what}: it says {state.get(key)}, this loader has {own[key]}."
                )
        count = schedule.cut.count
        if state["epoch"] < 0 or (not 0 <= state["position"] <= count and schedule.sampler is None):
            raise ValueError(f"the state is at epoch {state['epoch']}, position {state['position']} of {count} rows.")
        schedule.chosen_seed = schedule.chosen_seed.resumed(state["seed"])
        self.next, self._is_placed = (int(state["epoch"]), int(state["position"])), True
        self.progress.finished = True
        schedule.set_epoch(self.next[0])


def _is_number(value: object, key: str) -> bool:
    return type(value) is int or (key == "seed" and value is None)
