"""Frames on their way into a store that is a copy: written one after the other, with what its blocks say of them."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.checksums import crc32_combine
from packer.errors import PackError
from packer.pixels.jpeg_rows import SQUARED_ERROR
from packer.store.sealed.checked_rows import Ints
from reader import frames
from reader.format.errors import RowSizeError
from reader.format.filesystem import error_path
from reader.format.samples import Sample
from reader.format.tensors import jpeg_quality


def packed_rows(
    form: str, channels: int, pixels: npt.NDArray[np.uint8], sizes: Sequence[int], sides: Sequence[tuple[int, int]]
) -> tuple[tuple[bytes, ...], npt.NDArray[np.uint8], tuple[int, ...]]:
    """Pack rows that are one after the other, in a form, "zstd" or "jpeg:95".

    Args:
        sizes, sides: the bytes of each row, and its height and width.

    Returns: the frames, the pixels that they hold, and, where these are others, the squared error of each row.

    Raises:
        PackError: no frame can be of such a row.
    """
    spans = itertools.pairwise(itertools.accumulate(sizes, initial=0))
    rows = [(pixels[start:stop], *own) for (start, stop), own in zip(spans, sides, strict=True)]
    if not jpeg_quality(form):
        packer = frames.packer(form, channels)
        return tuple(packer.pack(*row) for row in rows), pixels, ()
    try:
        lossy = frames.LossyPacker(form, channels)
        made = [lossy.pack(*row) for row in rows]
    except RowSizeError as e:
        raise PackError(f"a row cannot be kept as {form}: {e}. Leave it out, or keep rows as they are.") from None
    kept = np.concatenate([row.pixels for row in made])
    return tuple(row.frame for row in made), kept, tuple(row.squared_error for row in made)


def with_errors(lines: bytes, errors: Sequence[int]) -> bytes:
    """Say in lines of samples.jsonl what their rows have lost, where any did."""
    if not errors:
        return lines
    made = []
    for line, error in zip(lines.splitlines(), errors, strict=True):
        sample = Sample.decode(line)
        made.append(replace(sample, decoding={**sample.decoding, SQUARED_ERROR: error}).encode())
    return "".join(made).encode("ascii")


class FrameWriter:
    """Appends frames to a file of rows that is there, from its first byte on; for one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with error_path(path):
            self._file = open(path, "r+b")  # noqa: SIM115 (open as long as this is)
        self.size_bytes = self.crc32 = 0
        # of the block under way, the second where its frames end in the file
        self._crc32, self._ends = 0, [0]

    def add(self, frames: Sequence[bytes]) -> None:
        """Append the frames of rows."""
        with error_path(self._path):
            for frame in frames:
                self._file.write(frame)
                self._crc32 = zlib.crc32(frame, self._crc32)
                self._ends.append(self._ends[-1] + len(frame))

    def take(self) -> tuple[int, int, Ints]:
        """End a block: returns its crc32 and bytes, and int64[n, 2], where each of its frames begins and ends in the file."""
        ends, crc32 = np.array(self._ends, np.int64), self._crc32
        size_bytes = self._ends[-1] - self._ends[0]
        self.crc32 = crc32_combine(self.crc32, crc32, size_bytes)
        self.size_bytes += size_bytes
        self._crc32, self._ends = 0, [self.size_bytes]
        return crc32, size_bytes, np.stack([ends[:-1], ends[1:]], axis=1)

    def close(self) -> None:
        """Let the file go; it is synced by who cuts it to its size."""
        with error_path(self._path):
            self._file.close()
