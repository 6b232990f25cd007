"""Rows with sizes of their own, for a writer and for what reads without torch: their sums, and where in the flat file they are.

Blocks are decoded in any order and take their bytes in the order of the inputs: a block is written once the blocks before it are
counted, at the sum of their bytes, as blocks of equal rows are at the sum of their rows. So nothing need be known before an
image is decoded, any number of workers gives the same bytes, and the journal's sums say where an interrupted pack goes on;
headers are read before only to know how much disk to allocate and how many inputs make a block.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader.format.manifest import PIXELS, Manifest

# So many lines of squares, of 255 x 255 at most, fit in uint32.
_MOST_LINES = 66_051
# So many bytes of a row are summed at once, while they are in the CPU's cache: as numbers of 16 bits they take twice as much.
_SUM_BYTES = 256 << 10
# Rows that are smaller are kept together, and written in one go.
_CHUNK_BYTES = 1 << 20


class RaggedBlock:
    """The rows of a block while it is decoded, one behind the other, and their exact sums per channel."""

    def __init__(self, channels: int) -> None:
        self._chunks: list[memoryview | bytearray] = []
        self._totals = np.zeros((2, channels), np.uint64)
        self.size_bytes = 0

    def add(self, pixels: npt.NDArray[np.uint8], height: int, mask: bytes = b"") -> None:
        """Append uint8[height * width * channels], and behind it the row's mask, which is in no sum."""
        self._append(pixels.data)
        self._append(memoryview(mask))
        values = pixels.reshape(height, -1)
        step = min(_MOST_LINES, max(1, _SUM_BYTES // max(1, values.shape[1])))
        channels = self._totals.shape[1]
        for start in range(0, height, step):
            numbers = values[start : start + step].astype(np.uint16)
            for total in self._totals:
                lines = np.add.reduce(numbers, axis=0, dtype=np.uint32)
                total += lines.reshape(-1, channels).sum(axis=0, dtype=np.uint64)
                # the second round is of squares
                np.multiply(numbers, numbers, out=numbers)

    def chunks(self) -> list[memoryview]:
        """Return the bytes of the block, in pieces, and begin the next one."""
        chunks, self._chunks, self.size_bytes = self._chunks, [], 0
        return [memoryview(chunk) for chunk in chunks]

    def _append(self, data: memoryview) -> None:
        """Append bytes: few to those before, many as they are, since a copy would take their memory twice."""
        self.size_bytes += len(data)
        if len(data) >= _CHUNK_BYTES:
            self._chunks.append(data)
        elif self._chunks and isinstance(last := self._chunks[-1], bytearray) and len(last) < _CHUNK_BYTES:
            last += data
        else:
            self._chunks.append(bytearray(data))

    def take(self) -> tuple[list[int], list[int]]:
        """Return the sums and the sums of squares since the last call."""
        sums, squares = self._totals.tolist()
        self._totals[:] = 0
        return sums, squares


class RaggedRows:
    """The rows of a store, as views uint8[H, W, C] of its mapped file, and their masks."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        paths, rows = manifest.tensor_paths(), manifest.rows
        self._pixels = np.memmap(out / PIXELS, np.uint8, "r")
        self._offsets = np.memmap(out / paths["offsets"], np.int64, "r", shape=(rows,))
        self._shapes = np.memmap(out / paths["shapes"], np.int32, "r", shape=(rows, 3))

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        offset, size_bytes = self.extent(row)
        return np.asarray(self._pixels[offset : offset + size_bytes]).reshape(self._shapes[row].tolist())

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the pixels of a row begin in the file, and how many bytes they are."""
        return int(self._offsets[row]), int(np.prod(self._shapes[row].tolist(), dtype=np.int64))

    def mask(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a row, uint8[H, W], in a store that has them: it stands behind the row's pixels."""
        height, width, _ = self._shapes[row].tolist()
        start = sum(self.extent(row))
        return np.asarray(self._pixels[start : start + height * width]).reshape(height, width)
