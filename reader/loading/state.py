"""Which epoch a loader is in and where: what `iter` begins next, the state of a checkpoint, and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reader.loading.schedule import Schedule
from reader.loading.validation import integer

# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler", "mixture")


@dataclass
class PassState:
    """Where the newest iterator is; the loader's state after that iterator is gone.

    is_taken: a batch was taken from it. moved_to: the epoch that it is of instead, set before that.
    """

    epoch: int
    position: int
    finished: bool = False
    is_taken: bool = False
    moved_to: int | None = None


@dataclass(frozen=True)
class SizeRamp:
    """A size that grows over the epochs in a straight line, as FFCV's: a function of epoch for MemmapLoader(size=).

    Args:
        first, last: pixels, before and behind the ramp.
        begin, end: the epochs between which it grows.
        multiple: sizes are multiples of this, the nearest.

    Raises:
        ValueError: they are not in order, or no multiples.

    Example:
        >>> ramp = SizeRamp(160, 192, begin=2, end=6)
        >>> [ramp(epoch) for epoch in (0, 2, 4, 5, 6, 9)]
        [160, 160, 192, 192, 192, 192]
    """

    first: int
    last: int
    begin: int
    end: int
    multiple: int = 32

    def __post_init__(self) -> None:
        if not 0 <= self.begin < self.end or min(self.first, self.last, self.multiple) < 1:
            raise ValueError(f"{self} is no ramp: expected sizes of 1 or more, and 0 <= begin < end.")
        if self.first % self.multiple or self.last % self.multiple:
            raise ValueError(f"{self.first} and {self.last} are no multiples of {self.multiple}: give multiple=.")

    def __call__(self, epoch: int) -> int:
        """Return the size of an epoch."""
        done = min(max(epoch - self.begin, 0), self.end - self.begin)
        size = self.first + (self.last - self.first) * done / (self.end - self.begin)
        return int(size / self.multiple + 0.5) * self.multiple


# In a state, the size of the epoch behind its own.
_FOLLOWING = ("next_height", "next_width")

Size = int | tuple[int, int] | Callable[[int], Any]


class Sizes:
    """The size of a loader's crops: fixed, set from one epoch to the next, or a function of epoch.

    Raises:
        ValueError: it is none of these, or the transform has no crop.
    """

    def __init__(self, size: Size | None, transform: Any) -> None:
        self._size = size
        # of the epoch that was begun last: what is set while it runs is for the next one
        self._begun: tuple[int, tuple[int, int]] | None = None
        if size is not None:
            self.of(transform, 0)

    @property
    def are_given(self) -> bool:
        """Whether there is a size at all."""
        return self._size is not None

    def of(self, transform: Any, epoch: int, position: int = 0) -> Any:
        """Return the transform with the size of an epoch, which begins, or is resumed at a position."""
        if self._size is None:
            return transform
        if not hasattr(transform, "with_size"):
            raise ValueError(
                f"size= is that of RandomResizedCrop and CenterCrop, and the transform is {transform!r}. Give one of them, or a"
                " Compose with one."
            )
        sides = self._running(epoch, position) or self.at(epoch)
        self._begun = epoch, sides
        return transform.with_size(sides)

    def at(self, epoch: int) -> tuple[int, int]:
        """Return (height, width) of an epoch."""
        size = self._size(epoch) if callable(self._size) else self._size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"size is {size!r} in epoch {epoch}, expected pixels: one number, or height and width.")
        return sides[0], sides[1]

    def set(self, size: int | tuple[int, int]) -> None:
        """Take another size from the next epoch on; raises ValueError where the loader was made without one."""
        if self._size is None:
            raise ValueError("the loader was made without size=: give it a size, which set_size then changes.")
        before, self._size = self._size, size
        try:
            self.at(0)
        except ValueError:
            self._size = before
            raise

    def state(self, epoch: int, position: int) -> dict[str, int]:
        """Return what a state says of the size of its epoch, and of the next one where another was set; {} of a function."""
        # a function may have no size for the epoch behind the last one
        if self._size is None or callable(self._size):
            return {}
        following = self.at(epoch)
        sides = self._running(epoch, position) or following
        state = dict(zip(("height", "width"), sides, strict=True))
        return state if sides == following else state | dict(zip(_FOLLOWING, following, strict=True))

    def load(self, state: Mapping[str, int]) -> None:
        """Take the size that a state says; a function of epoch says it itself."""
        self._begun = None
        if self._size is not None and not callable(self._size) and "height" in state:
            sides = int(state["height"]), int(state["width"])
            following = [int(state[name]) for name in _FOLLOWING if name in state] or sides
            self.set((following[0], following[-1]))
            self._begun = int(state["epoch"]), sides

    def _running(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the size of an epoch that was begun and is in its middle; None: it is yet to begin."""
        return self._begun[1] if position and self._begun is not None and self._begun[0] == epoch else None


class LoopState:
    """The epochs of one loader.

    next: epoch and position where the next `iter` begins.
    progress: of the newest iterator, which keeps it up to date.
    """

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.next = (0, 0)
        self.progress = PassState(0, 0, finished=True)

    def upcoming(self) -> tuple[int, int]:
        """Return epoch and position of the next pass; an epoch that another caller has set on the sampler is that one."""
        outside = self._schedule.outside_epoch()
        if outside is not None and outside != self.next[0]:
            self.next = (outside, 0)
        return self.next

    def begin(self, epoch: int, position: int) -> PassState:
        """Begin a pass; the one after it is the next epoch's."""
        self.next = (epoch + 1, 0)
        self.progress = PassState(epoch, position)
        self._schedule.begin_epoch(epoch)
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
        # a state that was loaded in the middle of this epoch stays: loops call set_epoch at the beginning of each
        if epoch != self.next[0]:
            self.next = (epoch, 0)
        progress = self.progress
        if not ends_pass and not progress.finished and not progress.is_taken:
            progress.moved_to = None if epoch == progress.epoch else epoch
        elif ends_pass or epoch != progress.epoch:
            progress.finished = True
        self._schedule.set_epoch(epoch)

    def state_dict(self) -> dict[str, int]:
        """Return where the loop is, as a few integers: after the batch that the caller got last."""
        epoch, position = self.next
        if not self.progress.finished and self.progress.moved_to is None:
            epoch, position = self.progress.epoch, self.progress.position
            if self._schedule.is_over(position):
                epoch, position = epoch + 1, 0
        schedule = self._schedule
        state = {"epoch": epoch, "position": position, "seed": schedule.seed, "order": _ORDERS.index(schedule.order)}
        return state | {"rows": len(schedule.dataset), "store": schedule.rows_id}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Make the next pass resume from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: the state is of another store, subset, seed or order.
        """
        own = self.state_dict()
        if not isinstance(state, dict) or any(type(state.get(key)) is not int for key in own):
            raise ValueError(f"the state is {state!r}, expected what state_dict() gave: {', '.join(own)}, integers.")
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
        count = self._schedule.cut.count
        if state["epoch"] < 0 or (not 0 <= state["position"] <= count and self._schedule.sampler is None):
            raise ValueError(f"the state is at epoch {state['epoch']}, position {state['position']} of {count} rows.")
        self.next = (int(state["epoch"]), int(state["position"]))
        self.progress.finished = True
        self._schedule.set_epoch(self.next[0])
