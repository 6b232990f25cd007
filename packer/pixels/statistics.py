"""Exact sums of uint8 pixels, fast: what a store's mean and standard deviation are made of."""

from __future__ import annotations

from collections.abc import Sequence

from packer.pixels.compiled import PixelBytes, native

# Lines that channels are summed over at once: so few that 255 times as many fit in uint16, so small that they stay in the
# CPU's cache: 0.08 ms a row of 224 x 224 x 3 right after it was decoded, 0.13 all lines at once (2026-11-21).
_SUM_LINES, _SUM_BYTES = 257, 80_000
# Rows that are smaller are joined, and written at once.
_CHUNK_BYTES = 1 << 20


class ChannelSums:
    """Exact sums and sums of squares per channel of uint8 pixels; padding is 0 and adds nothing."""

    def __init__(self, channels: int) -> None:
        self._channels, self._compiled = channels, native().sums
        self._totals = [0] * (2 * channels)

    def add(self, pixels: PixelBytes, line_bytes: int) -> None:
        """Count complete lines of pixels."""
        if self._compiled is not None:
            found = self._compiled(pixels, self._channels)
        else:
            found = _numpy_sums(pixels, self._channels, line_bytes)
        self.count(found)

    def count(self, found: Sequence[int]) -> None:
        """Add sums of each channel, and behind these of their squares, that were taken elsewhere."""
        self._totals = [total + more for total, more in zip(self._totals, found, strict=True)]

    def take(self) -> tuple[list[int], list[int]]:
        """Return the sums and the sums of squares since the last call."""
        sums, squares = self._totals[: self._channels], self._totals[self._channels :]
        self._totals = [0] * len(self._totals)
        return sums, squares


class RaggedBlock:
    """The rows of a block while it is decoded, one after the other, and their exact sums per channel."""

    def __init__(self, channels: int) -> None:
        self._chunks: list[memoryview | bytearray] = []
        self._sums = ChannelSums(channels)
        self.size_bytes = 0

    def add(self, pixels: PixelBytes, height: int, mask: bytes = b"") -> None:
        """Append uint8[height * width * channels], and behind it the row's mask, which is in no sum."""
        self._append(memoryview(pixels))
        self._append(memoryview(mask))
        self._sums.add(pixels, len(pixels) // max(1, height))

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
        return self._sums.take()


def _numpy_sums(pixels: PixelBytes, channels: int, line_bytes: int) -> tuple[int, ...]:
    """Return what the compiled part's sums() does."""
    import numpy as np

    totals = np.zeros((2, channels), np.uint64)
    lines = np.frombuffer(pixels, np.uint8).reshape(-1, max(1, line_bytes))
    step = max(1, min(_SUM_LINES, _SUM_BYTES // max(1, line_bytes)))
    for start in range(0, len(lines), step):
        values = lines[start : start + step].astype(np.uint16)
        for total, dtype in zip(totals, (np.uint16, np.uint32), strict=True):
            sums = np.add.reduce(values, axis=0, dtype=dtype)
            total += sums.reshape(-1, channels).sum(axis=0, dtype=np.uint64)
            # the second round is of squares
            np.multiply(values, values, out=values)
    return tuple(totals.reshape(-1).tolist())
