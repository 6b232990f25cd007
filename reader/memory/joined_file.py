"""Several files as one: the bytes of each begin at a base of their own, far from those of the others."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from reader.memory.raw_file import RawFile
from reader.memory.spans import Read

# Between two files is more than a read goes through; bases are multiples of every block of a disk.
_APART_BYTES = 1 << 20


@dataclass(frozen=True)
class FileSpan:
    """A file, and where its bytes begin among those of all."""

    path: Path
    base: int


# What holds bytes: one file, or several.
RawSource = Path | tuple[FileSpan, ...]


def bases_of(sizes: Sequence[int]) -> list[int]:
    """Return where the bytes of each of several files begin, which has so many of them.

    Example:
        >>> bases_of([5, 3_000_000, 1])
        [0, 2097152, 6291456]
    """
    rooms = [(-(-size // _APART_BYTES) + 1) * _APART_BYTES for size in sizes]
    return [*itertools.accumulate(rooms, initial=0)][:-1]


class JoinedFiles:
    """Several files, read as `RawFile` reads one; no read is of two of them."""

    def __init__(self, files: Sequence[RawFile], bases: Sequence[int]) -> None:
        self._files, self._bases = files, bases
        self.align = max(file.align for file in files)

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes to their places in memory; raises as `RawFile.read`."""
        for start, size, place in reads:
            which = bisect.bisect_right(self._bases, start) - 1
            self._files[which].read(memory, [(start - self._bases[which], size, place)])

    def close(self) -> None:
        """Close all of them."""
        for file in self._files:
            file.close()


def open_raw(source: RawSource, *, past_cache: bool) -> RawFile | JoinedFiles:
    """Open one file, or several as one."""
    if isinstance(source, Path):
        return RawFile(source, past_cache=past_cache)
    return JoinedFiles([RawFile(p.path, past_cache=past_cache) for p in source], [p.base for p in source])
