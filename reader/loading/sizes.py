"""The sizes of crops over the epochs, and the rows of a batch that go with them: fixed, set between epochs, or functions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from reader.dataset.dataset import MemmapDataset
from reader.dataset.samples import Transform
from reader.loading.finish import begins_with_crop
from reader.loading.validation import integer

_log = logging.getLogger("reader")

Size = int | tuple[int, int] | Callable[[int], Any]
# Rows a batch and rank: a number, or a function of the height and width of crops.
BatchSize = int | Callable[[int, int], int]

# In a state, the size of the epoch behind its own.
_FOLLOWING = ("next_height", "next_width")


@dataclass(frozen=True)
class ConstantPixels:
    """Rows a batch so that its pixels stay the same while the size changes: a function for MemmapLoader(batch_size=).

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
    """The size of a loader's crops: fixed, set from one epoch to the next, or a function of epoch; and rows a batch by it.

    Raises:
        ValueError: it is none of these, or the transform has no crop.
    """

    def __init__(
        self, size: Size | None, transform: Transform | None, batch_size: BatchSize, dataset: MemmapDataset
    ) -> None:
        self._size, self._batch_size, self._dataset = size, batch_size, dataset
        self._has_warned = False
        # of the current epoch: a size that is set during it applies to the next one
        self._begun: tuple[int, tuple[int, int]] | None = None
        if size is not None:
            self.of(transform, 0)
        elif callable(batch_size):
            raise ValueError("batch_size is a function of the size of crops: give the loader size= too, or a number.")

    @property
    def are_given(self) -> bool:
        """Whether there is a size at all."""
        return self._size is not None

    def of(self, transform: Transform | None, epoch: int, position: int = 0) -> Transform | None:
        """Return the transform with the size of an epoch, which begins, or is resumed at a position."""
        if self._size is None:
            return transform
        if transform is None or not hasattr(transform, "with_size"):
            raise ValueError(
                f"size= is that of RandomResizedCrop and ResizeCenterCrop, and the transform is {transform!r}. Give"
                " one of them, or a Compose with one."
            )
        sides = self._running(epoch, position) or self.at(epoch)
        self._begun = epoch, sides
        self._warn_of_small_rows(transform, sides)
        return transform.with_size(sides)

    def rows(self, epoch: int, position: int = 0) -> int:
        """Return the rows of a batch and rank in an epoch, which begins, or is resumed at a position."""
        if not callable(self._batch_size):
            return integer("batch_size", self._batch_size)
        height, width = self._running(epoch, position) or self.at(epoch)
        return integer(f"batch_size of crops of {height} x {width}", self._batch_size(height, width))

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

    def _warn_of_small_rows(self, transform: object, sides: tuple[int, int]) -> None:
        """Log once that crops are larger than the rows, or than the largest of them."""
        height, width, _ = self._dataset.manifest.sides
        if self._has_warned or not begins_with_crop(transform) or (sides[0] <= height and sides[1] <= width):
            return
        self._has_warned = True
        _log.warning(
            "%s: crops of %d x %d are larger than the rows, %d x %d%s: they are enlarged, or padded. Give a smaller size=, or"
            " pack larger rows.",
            *(self._dataset.path, *sides, height, width, self._dataset.manifest.kind.at_most),
        )

    def _running(self, epoch: int, position: int) -> tuple[int, int] | None:
        """Return the size of an epoch that was begun and is in its middle; None: it is yet to begin."""
        return self._begun[1] if position and self._begun is not None and self._begun[0] == epoch else None
