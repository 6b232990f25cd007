"""Row numbers: their types, the steps of an epoch, and errors that name the rows at which they arose."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Some steps of a plan: each batch's rows in the store, the global position of its first row, and that after the step."""

    batches: list[Rows]
    starts: list[int]
    positions: list[int]


class _Listed(Protocol):
    """A tensor on any device."""

    def tolist(self) -> object:
        """Return it as a list."""


@contextlib.contextmanager
def rows_named(store: Path, rows: int | _Listed | None) -> Iterator[None]:
    """Add the failed rows of the store to an error of a transform.

    rows: a tensor int64[B], read only for an error since it may be on a device; or one number, or None.
    """
    try:
        yield
    except Exception as e:
        if rows is not None:
            numbers = [rows] if isinstance(rows, int) else rows.tolist()
            e.add_note(f"The transform failed on these rows of {store}: {numbers}")
        raise


def is_run(rows: Rows) -> bool:
    """Return whether rows are consecutive and ascending: [4, 5, 6]."""
    return len(rows) == 0 or (int(rows[-1]) - int(rows[0]) == len(rows) - 1 and bool((np.diff(rows) == 1).all()))
