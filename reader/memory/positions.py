"""Where units of a file are in a copy that has some of them."""

from __future__ import annotations

import numpy as np

from reader.rows import Rows


class Positions:
    """Where the units of a copy are in it: in the order of the file.

    A unit is what a file is copied by: a row, or of rows with sizes of their own a page.

    Args:
        units: int64[n] of the copy, sorted and each once; None: all of the file.
        count: of the file.
    """

    def __init__(self, units: Rows | None, count: int) -> None:
        self.count = count if units is None else len(units)
        # position of each unit of the file; None: it is the unit's own number
        self._table: Rows | None = None
        if units is not None:
            self._table = np.full(count, -1, np.int64)
            self._table[units] = np.arange(len(units))

    def of(self, units: Rows) -> Rows:
        """Return the positions of units of the copy."""
        return units if self._table is None else self._table[units]
