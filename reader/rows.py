"""Types for row numbers and for the steps of an epoch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Steps:
    """Some steps of a plan: the store rows of each batch, the global position of its first row, and that after the step."""

    batches: list[Rows]
    starts: list[int]
    positions: list[int]
