"""Which of the datasets that were joined each row of a dataset is from, for weights by name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader.rows import Rows


@dataclass(frozen=True, eq=False)
class Groups:
    """names: of the datasets. of: int32[N], which of them each position is from."""

    names: tuple[str, ...]
    of: npt.NDArray[np.int32]

    def at(self, positions: Rows) -> Groups:
        """Return those of some positions."""
        return Groups(self.names, self.of[positions])

    def positions(self, name: str) -> Rows:
        """Return the positions that are from one of the datasets."""
        return np.flatnonzero(self.of == self.names.index(name))
