"""Gives the size of crops in each epoch and the rows of a batch that go with it: fixed, set between epochs, or functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reader.dataset.samples import Transform
from reader.transforms.random import integer

Size = int | tuple[int, int] | Callable[[int], Any]
# Rows a batch and rank: a number, or a function of the height and width of crops.
BatchSize = int | Callable[[int, int], int]

# In a state, the size of the epoch behind its own.
_FOLLOWING = ("next_height", "next_width")


@dataclass(frozen=True)
class ConstantPixels:
    """Gives rows a batch so that its pixels stay the same while the size changes: a function for MemmapLoader(batch_size=).

    Args:
        rows: of a batch of crops of size x size pixels.
        size: pixels.
        multiple: rows are a multiple of this, the nearest below, and one multiple at least.

    Raises:
        ValueError: one is below 1, or rows are not a multiple.

    Example:
        >>> rows = ConstantPixels(256, size=224, multiple=8)
        >>> [rows(side, side) for side in (128, 160, 224)]
        [784, 496, 256]
    """

    rows: int
    size: int
    multiple: int = 8

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            integer(name, value)
        if min(self.rows, self.size, self.multiple) < 1 or self.rows % self.multiple:
            raise ValueError(f"{self}: expected numbers of 1 or more, and rows that multiple= divides.")

    def __call__(self, height: int, width: int) -> int:
        """Return the rows of a batch of crops of this size."""
        rows = self.rows * self.size**2 // (height * width)
        return max(1, rows // self.multiple) * self.multiple


class Sizes:
    """Gives the size of a loader's crops, fixed, set from one epoch to the next, or a function of epoch; and rows a batch by it.

    Raises:
        ValueError: batch_size is a function, and there is no size.
    """

    def __init__(self, size: Size | None, batch_size: BatchSize) -> None:
        self._size, self._batch_size = size, batch_size
        # number and size of the newest epoch: a size that is set during it applies to the next one
        self._running: tuple[int, tuple[int, int] | None] | None = None
        if size is None and callable(batch_size):
            raise ValueError("batch_size is a function of the size of crops: give the loader size= too, or a number.")

    def sides(self, epoch: int, position: int = 0) -> tuple[int, int] | None:
        """Return (height, width) of an epoch, which begins, or is resumed at a position; None if there is no size.

        Raises:
            ValueError: it is no size.
        """
        if self._size is None:
            return None
        if position and self._running is not None and self._running[0] == epoch:
            return self._running[1]
        size = self._size(epoch) if callable(self._size) else self._size
        sides = tuple(size) if isinstance(size, tuple | list) else (size, size)
        if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
            raise ValueError(f"size is {size!r} in epoch {epoch}, expected pixels: one number, or height and width.")
        return sides[0], sides[1]

    def batch_size(self, epoch: int, position: int) -> int:
        """Return the rows of a batch of an epoch; raises ValueError where a function returns no integer, or as `sides`."""
        # a function may have no size for the epoch behind the last one: where it need not be asked, it is not
        if not callable(self._batch_size):
            return self._batch_size
        sides = self.sides(epoch, position)
        assert sides is not None
        return integer("batch_size of crops of {} x {}".format(*sides), self._batch_size(*sides))

    def begin(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the size of an epoch that begins, or is resumed at a position, and keep it until another one begins.

        Raises:
            ValueError: as `sides`.
        """
        self._running = epoch, self.sides(epoch, position)
        return self._running[1]

    def set(self, size: int | tuple[int, int]) -> None:
        """Take another size from the next epoch on; raises ValueError where the loader has none."""
        if self._size is None:
            raise ValueError("the loader was made without size=: give it a size, which set_size then changes.")
        before, self._size = self._size, size
        try:
            self.sides(0)
        except ValueError:
            self._size = before
            raise

    def state(self, epoch: int, position: int) -> dict[str, int]:
        """Return what a state says of the size of its epoch, and of the next one where another was set; {} of a function."""
        # a function may have no size for the epoch behind the last one
        if callable(self._size) or (following := self.sides(epoch)) is None:
            return {}
        sides = self.sides(epoch, position) or following
        state = dict(zip(("height", "width"), sides, strict=True))
        return state if sides == following else state | dict(zip(_FOLLOWING, following, strict=True))

    def load(self, state: Mapping[str, int]) -> None:
        """Take the size that a state says; a function of epoch says it itself."""
        self._running = None
        if self._size is not None and not callable(self._size) and "height" in state:
            sides = int(state["height"]), int(state["width"])
            following = [int(state[name]) for name in _FOLLOWING if name in state] or sides
            self.set((following[0], following[-1]))
            self._running = int(state["epoch"]), sides


def with_sides(transform: Transform | None, sides: tuple[int, int]) -> Transform:
    """Return a transform whose crops have this size.

    Raises:
        ValueError: it has no crop.
    """
    if transform is None or not hasattr(transform, "with_size"):
        raise ValueError(
            f"size= is that of RandomResizedCrop and ResizeCenterCrop, and the transform is {transform!r}. Give"
            " one of them, or a Compose with one."
        )
    sized: Transform = transform.with_size(sides)
    return sized
