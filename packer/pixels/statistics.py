"""Exact sums of uint8 pixels, fast: what a store's mean and standard deviation are made of."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from packer.pixels.native.live import native

# Lines that channels are summed over at once: so few that 255 times as many fit in uint16, so small that they stay in the
# CPU's cache: 0.08 ms a row of 224 x 224 x 3 right after it was decoded, 0.13 all lines at once (2026-11-21).
_SUM_LINES, _SUM_BYTES = 257, 80_000


class ChannelSums:
    """Exact sums and sums of squares per channel of rows of uint8; padding is 0 and adds nothing."""

    def __init__(self, line_bytes: int, channels: int) -> None:
        self._channels, self._line_bytes = channels, line_bytes
        self._compiled = native().sums
        self._values = np.empty((max(1, min(_SUM_LINES, _SUM_BYTES // line_bytes)), line_bytes), np.uint16)
        self._totals = np.zeros((2, channels), np.uint64)

    def add(self, rows: npt.NDArray[np.uint8]) -> None:
        """Count rows, or any complete lines of them."""
        if self._compiled is not None:
            self._totals += np.array(self._compiled(rows, self._channels), np.uint64).reshape(2, -1)
            return
        lines, step = rows.reshape(-1, self._line_bytes), len(self._values)
        for start in range(0, len(lines), step):
            piece = lines[start : start + step]
            values = self._values[: len(piece)]
            np.copyto(values, piece)
            for total, dtype in zip(self._totals, (np.uint16, np.uint32), strict=True):
                sums = np.add.reduce(values, axis=0, dtype=dtype)
                total += sums.reshape(-1, self._channels).sum(axis=0, dtype=np.uint64)
                # the second round is of squares
                np.multiply(values, values, out=values)

    def take(self) -> tuple[list[int], list[int]]:
        """Return the sums and the sums of squares since the last call."""
        sums, squares = self._totals.tolist()
        self._totals[:] = 0
        return sums, squares


# So many lines of squares, of 255 x 255 at most, fit in uint32.
_MOST_LINES = 66_051
# So many bytes of a row are summed at once, while they are in the CPU's cache: as numbers of 16 bits they take twice as much.
_RAGGED_SUM_BYTES = 256 << 10
# Rows that are smaller are joined, and written at once.
_CHUNK_BYTES = 1 << 20


class RaggedBlock:
    """The rows of a block while it is decoded, one behind the other, and their exact sums per channel."""

    def __init__(self, channels: int) -> None:
        self._chunks: list[memoryview | bytearray] = []
        self._compiled = native().sums
        self._totals = np.zeros((2, channels), np.uint64)
        self.size_bytes = 0

    def add(self, pixels: npt.NDArray[np.uint8], height: int, mask: bytes = b"") -> None:
        """Append uint8[height * width * channels], and behind it the row's mask, which is in no sum."""
        self._append(pixels.data)
        self._append(memoryview(mask))
        channels = self._totals.shape[1]
        if self._compiled is not None:
            self._totals += np.array(self._compiled(pixels, channels), np.uint64).reshape(2, -1)
            return
        values = pixels.reshape(height, -1)
        step = min(_MOST_LINES, max(1, _RAGGED_SUM_BYTES // max(1, values.shape[1])))
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
