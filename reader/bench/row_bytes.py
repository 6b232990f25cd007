"""The first rows of a store as `pack bench` counts them: which bytes of its pixels they are, whatever size each has.

Rows with sizes of their own are counted as images of mean size: so many bytes a second are so many of these a second, whichever
rows a way has drawn. Reads no pixel.
"""

from __future__ import annotations

import numpy as np

from reader.dataset.dataset import MemmapDataset
from reader.memory.pages import extents
from reader.rows import Rows
from reader.store import RaggedBatch


class RowBytes:
    """Where the rows of a whole store are in the file of its pixels.

    Example:
        >>> rows = RowBytes(MemmapDataset(store_path))  # of 32 x 32 x 3
        >>> rows.end(2), rows.count_within(10_000), rows.images(np.array([7, 7]))
        (6144, 3, 2.0)
    """

    def __init__(self, data: MemmapDataset) -> None:
        self.mean = data.manifest.row_bytes
        self._sizes: Rows | None = None
        if isinstance(data.mapped, RaggedBatch):
            offsets, self._sizes = extents(data.mapped, np.arange(len(data)))
            self._ends = np.maximum.accumulate(offsets + self._sizes)

    @property
    def differ(self) -> bool:
        """Whether rows have sizes of their own."""
        return self._sizes is not None

    def end(self, count: int) -> int:
        """Return the byte of the file where the first `count` rows end."""
        if self._sizes is None or not count:
            return count * self.mean
        return int(self._ends[count - 1])

    def count_within(self, size_bytes: int) -> int:
        """Return how many of the first rows end within so many bytes of the file."""
        return size_bytes // self.mean if self._sizes is None else int(np.searchsorted(self._ends, size_bytes, "right"))

    def images(self, rows: Rows) -> float:
        """Return how many images of mean size have as many bytes as these rows."""
        return float(len(rows) if self._sizes is None else self._sizes[rows].sum() / self.mean)
