"""Which rows or pages of a file a copy holds, and where."""

from __future__ import annotations

import numpy as np

from reader.rows import Rows


class Slots:
    """Which units of a file a copy holds, and in which slot each one is: those that were added first are first.

    A unit is what a file is copied by: a row, or of rows with sizes of their own a page.
    """

    def __init__(self, count: int) -> None:
        self.count, self.filled = count, 0
        # slot of each unit, -1: not held; None: the slot is the unit's own number
        self._table: Rows | None = np.full(count, -1, np.int64)

    @property
    def are_in_order(self) -> bool:
        """Say whether all units are held, each in the slot of its number."""
        return self._table is None

    def missing(self, units: Rows | None) -> Rows | None:
        """Return which of these units, sorted and each once, are not held; None stands for all of the file."""
        if self._table is None:
            return np.zeros(0, np.int64)
        if units is None:
            return None if not self.filled else np.flatnonzero(self._table < 0)
        return units[self._table[units] < 0]

    def add(self, missing: Rows | None) -> None:
        """Give slots to units that `missing` returned."""
        if missing is None:
            self._table, self.filled = None, self.count
        elif len(missing):
            assert self._table is not None
            self._table[missing] = np.arange(self.filled, self.filled + len(missing))
            self.filled += len(missing)

    def of(self, units: Rows) -> Rows:
        """Return the slots of units that are held."""
        return units if self._table is None else self._table[units]


def count_of(units: Rows | None, count: int) -> int:
    """Return how many units those are; None: all of so many."""
    return count if units is None else len(units)
