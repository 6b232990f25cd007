"""The rows of a task in a worker's memory where a store keeps them compressed: each is packed as it is decoded.

One that is a frame already, as a JPEG is whose pixels the row has, stays so.
"""

from __future__ import annotations

import numpy as np

from packer.pixels.compiled import native
from packer.pixels.layout import RowLayout
from packer.pixels.row import Row
from packer.pixels.statistics import ChannelSums
from packer.store.blocks import Result
from packer.workers.row_buffers import DecodedRows
from reader import frames


class FrameBuffer:
    """Rows of any size, each packed into a frame with its mask."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout, self._packer = layout, frames.packer(layout.form, layout.channel_count)
        self._sums, self._crc32 = ChannelSums(layout.channel_count), native().crc32
        self._chunk = bytearray()

    def begin(self, most_rows: int) -> None:
        """Do nothing: `finish` has begun the next task."""

    def add(self, result: Result, row: Row, mask: bytes) -> None:
        """Pack a row and append its frame; its size goes to the result."""
        height, width = self._layout.size or row.content[2:]
        self._sums.add(row.pixels, width * self._layout.channel_count)
        result.unpacked_crc32 = self._crc32(mask, self._crc32(row.pixels, result.unpacked_crc32))
        result.unpacked_bytes += len(row.pixels) + len(mask)
        frame = row.frame
        if not frame:
            pixels = np.frombuffer(row.pixels, np.uint8)
            unpacked = np.concatenate([pixels, np.frombuffer(mask, np.uint8)]) if mask else pixels
            frame = self._packer.pack(unpacked, height, width)
        self._append(result, frame)
        if self._layout.size is None:
            result.shapes.append((height, width))

    def finish(self, result: Result) -> DecodedRows:
        """Fill in the checksum, sums and size of the frames, and hand them over."""
        chunk, self._chunk = self._chunk, bytearray()
        result.crc32, result.size_bytes = self._crc32(chunk, 0), len(chunk)
        result.sums, result.square_sums = self._sums.take()
        return DecodedRows([memoryview(chunk)])

    def reuse(self, rows: DecodedRows) -> None:
        """Do nothing: the memory is let go."""

    def _append(self, result: Result, frame: bytes) -> None:
        result.frames.append(len(frame))
        self._chunk += frame
