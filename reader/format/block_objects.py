"""The pixels of a store at a URL as objects of their own, the feature `block-objects`: which bytes are in which."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator

from reader.format.manifest import PIXELS

# A block of rows with sizes of their own may be many times 8 MiB; what sends one holds it in memory.
OBJECT_BYTES = 64 << 20


class BlockObjects:
    """Where the objects of a store begin: one a block, several where a block has more than 64 MiB, one for the filling.

    Args:
        blocks: the bytes of each block. total: those of all pixels, with the filling behind the last block.
    """

    def __init__(self, blocks: Iterable[int], total: int) -> None:
        ends = [*itertools.accumulate(blocks, initial=0)]
        spans = [*itertools.pairwise(ends), (ends[-1], total)]
        # [0, total] of one small block without a filling
        self.bounds = [at for begin, end in spans for at in range(begin, end, OBJECT_BYTES)] + [total]

    def names(self) -> list[str]:
        """Return the names of all objects, below the folder of the store."""
        return [object_name(begin) for begin in self.bounds[:-1]]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield which bytes of which objects are bytes [start, stop) of the pixels, in order: name, first, behind the last."""
        number = bisect.bisect_right(self.bounds, start) - 1
        while start < stop:
            begin, end = self.bounds[number], min(stop, self.bounds[number + 1])
            yield object_name(begin), start - begin, end - begin
            start, number = end, number + 1


def object_name(begin: int) -> str:
    """Name the object whose first byte is this one of the pixels.

    Example:
        >>> object_name(8388608)
        '_tensordict/pixels.memmap/0000000008388608'
    """
    return f"{PIXELS}/{begin:016d}"
