"""What compressed rows hold instead of pixels: green is subtracted from red and blue, then from each line the line above it.

In the compiled part, where it is built, without the interpreter; else by numpy. All sums are of bytes, modulo 256.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def predict(rows: Pixels, channels: int) -> None:
    """Replace pixels, uint8[n, height, width * channels] and contiguous, by what `restore` makes them of, in place."""
    if native := _compiled("predict"):
        native(rows, rows.shape[1], rows.shape[2], channels)
    else:
        _predict(rows, channels)


def restore(rows: Pixels, channels: int) -> None:
    """Undo `predict` in place, in uint8[n, height, width * channels], contiguous."""
    if native := _compiled("restore"):
        native(rows, rows.shape[1], rows.shape[2], channels)
    else:
        _restore(rows, channels)


def _predict(rows: Pixels, channels: int) -> None:
    if channels >= 3:
        pixels = rows.reshape(len(rows), rows.shape[1], -1, channels)
        for channel in (0, 2):
            pixels[..., channel] -= pixels[..., 1]
    rows[:, 1:] -= rows[:, :-1].copy()


def _restore(rows: Pixels, channels: int) -> None:
    """Undo `predict`: lines are summed over all rows at once, one call for each line, whatever the number of rows.

    Green is added as memory is: a copy of it with zeros between, one byte to the left and one to the right, since numbers that
    are 3 bytes apart are five times as slow.
    """
    for line in range(1, rows.shape[1]):
        np.add(rows[:, line], rows[:, line - 1], out=rows[:, line])
    if channels >= 3:
        flat, green = rows.reshape(-1), _spare(rows.size)
        np.bitwise_and(rows, _green_mask(rows.shape[2], channels), out=green.reshape(rows.shape))
        # [0, g, 0, 0, G, 0] -> red += [g, 0, 0, G, 0], blue += [0, g, 0, 0, G]
        np.add(flat[:-1], green[1:], out=flat[:-1])
        np.add(flat[1:], green[:-1], out=flat[1:])


_mine = threading.local()


def _spare(size_bytes: int) -> Pixels:
    """Return uint8[size_bytes], the same memory of this thread each time."""
    if not hasattr(_mine, "spare") or len(_mine.spare) < size_bytes:
        _mine.spare = np.empty(size_bytes, np.uint8)
    spare: Pixels = _mine.spare[:size_bytes]
    return spare


@functools.lru_cache(maxsize=16)
def _green_mask(line_bytes: int, channels: int) -> Pixels:
    mask = np.zeros(line_bytes, np.uint8)
    mask[1::channels] = 255
    return mask


@functools.cache
def _compiled(name: str) -> Callable[..., None] | None:
    """Return a function of the compiled part; None where it is not built."""
    try:
        from reader.native import functions

        found: Callable[..., None] = getattr(functions(), name)
    except ImportError:
        return None
    return found
