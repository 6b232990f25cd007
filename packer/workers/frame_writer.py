"""Frames on their way into a store that is a copy: written one behind the other, with what its blocks say of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packer.checksums import crc32_combine
from packer.store.checked_rows import Ints
from reader.format.filesystem import error_path


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
