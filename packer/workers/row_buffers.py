"""The rows of a task in a worker's memory: where they are held until they are written, their checksum and sums.

One class for rows of one size, one for rows as large as their images; decodes and writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from packer.pixels.compiled import native
from packer.pixels.layout import RowLayout
from packer.pixels.row import Row
from packer.pixels.statistics import ChannelSums, RaggedBlock
from packer.store.blocks import Result

# So many bytes of rows are checked at once: while they are in the CPU's cache, and small rows not one by one.
_CHECK_BYTES = 64 << 10


@dataclass
class DecodedRows:
    """The bytes of a task's rows, in pieces, and of their masks, where those go to a file of their own."""

    chunks: list[memoryview]
    masks: bytes = b""
    # what the chunks are parts of
    memory: memoryview = field(default_factory=lambda: memoryview(b""))


class RowBuffer(Protocol):
    """Takes the rows of one task after the other."""

    def begin(self, most_rows: int) -> None:
        """Begin a task of at most so many rows."""

    def add(self, result: Result, row: Row, mask: bytes) -> None:
        """Append a row, which the result counts as its next; cannot fail."""

    def finish(self, result: Result) -> DecodedRows:
        """Fill in the checksum, sums and size of the rows, and hand them over."""

    def reuse(self, rows: DecodedRows) -> None:
        """Take back the memory of rows that are written."""


def row_buffer(layout: RowLayout) -> RowBuffer:
    """Return what takes raw rows of this layout."""
    return VariableRowBuffer(layout) if layout.size is None else EqualRowBuffer(layout)


class EqualRowBuffer:
    """Rows of one size, in one piece of memory."""

    def __init__(self, layout: RowLayout) -> None:
        self.row_bytes = layout.size_bytes(1)
        self._line_bytes, self.has_content = self.row_bytes // layout.geometry.height, layout.geometry.has_content
        self._sums, self._crc32 = ChannelSums(layout.channel_count), native().crc32
        self._spare: list[memoryview] = []

    def begin(self, most_rows: int) -> None:
        """Begin a task of at most so many rows."""
        self._memory = self._free(most_rows * self.row_bytes)
        self._masks: list[bytes] = []
        self._count = self._checked = 0

    def add(self, result: Result, row: Row, mask: bytes) -> None:
        """Append a row."""
        begin = self._count * self.row_bytes
        self._memory[begin : begin + self.row_bytes] = row.pixels
        self._masks.append(mask)
        self._count += 1
        if (self._count - self._checked) * self.row_bytes >= _CHECK_BYTES:
            self._check(result)

    def finish(self, result: Result) -> DecodedRows:
        """Fill in what is known of the rows, and hand them over."""
        self._check(result)
        result.size_bytes = self._count * self.row_bytes
        result.sums, result.square_sums = self._sums.take()
        return DecodedRows([self._memory[: result.size_bytes]], b"".join(self._masks), self._memory)

    def reuse(self, rows: DecodedRows) -> None:
        """Take back the memory of rows that are written."""
        self._spare.append(rows.memory)

    def _check(self, result: Result) -> None:
        """Count the rows since the last call into the checksum and the sums."""
        if self._checked == self._count:
            return
        rows = self._memory[self._checked * self.row_bytes : self._count * self.row_bytes]
        self._checked = self._count
        result.crc32 = self._crc32(rows, result.crc32)
        self._sums.add(rows, self._line_bytes)

    def _free(self, size_bytes: int) -> memoryview:
        """Return spare memory or fresh memory, which costs a page fault every 4 KiB."""
        while self._spare:
            spare = self._spare.pop()
            if len(spare) >= size_bytes:
                return spare[:size_bytes] if len(spare) > size_bytes else spare
        return memoryview(bytearray(size_bytes))


class VariableRowBuffer:
    """Rows as large as their images, each with its mask behind it."""

    def __init__(self, layout: RowLayout) -> None:
        self._block = RaggedBlock(layout.channel_count)

    def begin(self, most_rows: int) -> None:
        """Do nothing: `finish` has begun the next task."""

    def add(self, result: Result, row: Row, mask: bytes) -> None:
        """Append a row, and its size to the result."""
        self._block.add(row.pixels, height=row.content[2], mask=mask)
        result.shapes.append(row.content[2:])

    def finish(self, result: Result) -> DecodedRows:
        """Fill in what is known of the rows, and hand them over."""
        result.size_bytes, chunks = self._block.size_bytes, self._block.chunks()
        result.sums, result.square_sums = self._block.take()
        for chunk in chunks:
            result.crc32 = native().crc32(chunk, result.crc32)
        return DecodedRows(chunks)

    def reuse(self, rows: DecodedRows) -> None:
        """Do nothing: the memory is let go."""
