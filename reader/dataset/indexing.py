"""Checks the index of `dataset[...]`, once: one row, or rows as a list, an array, a tensor or a mask."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import SupportsIndex, TypeGuard

import numpy as np
import numpy.typing as npt
import torch

from reader.format.shown import brief
from reader.rows import Rows
from reader.shuffling import permuted

Positions = Sequence[int] | torch.Tensor | npt.NDArray[np.integer] | npt.NDArray[np.bool_]
Index = int | slice | Positions


def is_row(index: object) -> TypeGuard[SupportsIndex]:
    """Return whether an index is one integer: an int, numpy's, or a tensor without dimensions, but not a bool."""
    if isinstance(index, torch.Tensor):
        return index.ndim == 0 and not (index.is_floating_point() or index.is_complex() or index.dtype == torch.bool)
    return isinstance(index, int | np.integer) and not isinstance(index, bool)


def checked_position(index: int, count: int, path: Path) -> int:
    """Return a position in [0, count); negative ones, from -count on, count from the end.

    Raises:
        IndexError: there is no such row.
    """
    index = operator.index(index)
    if not -count <= index < count:
        raise IndexError(f"row {index} is out of range: {path} has {count} rows.")
    return index % count


def checked_positions(index: object, count: int, path: Path) -> Rows:
    """Check and normalize any list of rows to int64[B] in [0, count).

    Raises:
        IndexError: it is not a list of rows, or there is no such row.
    """
    try:
        rows = np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
    except ValueError:  # a list of lists of unequal lengths
        rows = np.asarray(None)
    if rows.dtype == bool and rows.shape == (count,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or (rows.size and rows.dtype.kind not in "iu"):
        raise IndexError(
            f"the index is {brief(index)}, expected an integer, a slice, a list of rows or a mask of {count} rows."
        )
    if rows.size and (rows.min() < -count or rows.max() >= count):
        worst = int(rows.max() if rows.max() >= count else rows.min())
        raise IndexError(f"row {worst} is out of range: {path} has {count} rows.")
    rows = rows.astype(np.int64)
    return np.where(rows < 0, rows + count, rows)


def split_positions(count: int, fraction: float, *, seed: int, targets: list[int] | None = None) -> tuple[Rows, Rows]:
    """Split positions [0, count) at random into fraction and the rest; with targets, the same share of each class.

    Raises:
        ValueError: fraction is not inside (0, 1).
    """
    if not isinstance(fraction, float | np.floating) or not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction!r}, expected a number between 0 and 1, both left out.")
    order = permuted(count, 0, count, seed=seed)
    groups = [order]
    if targets is not None:
        values = np.asarray(targets)[order]
        groups = [order[values == value] for value in np.unique(values)]
    first = np.sort(np.concatenate([order[:0], *(g[: round(fraction * len(g))] for g in groups)]))
    mask = np.ones(count, dtype=bool)
    mask[first] = False
    return first, np.flatnonzero(mask)
