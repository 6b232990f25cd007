"""The two kinds of rows: of one size, and with sizes of their own.

What would ask which kind a store has asks here for what follows from it. Knows features and numbers; no manifest and no file.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import ClassVar

from reader.format.head import OWN_SIZES
from reader.format.tensors import TensorSpec

# pixels.memmap of a store with rows of own sizes is filled up to complete pages: it is read by pages, also past the page cache.
PAGE_BYTES = 4096


class RowKind:
    """Rows of one size, as uint8[N, H, W, C]; `OwnSizes` is the other kind. Sides are (height, width), the largest there are.

    Attributes:
        up_to, at_most: words of a text before the sides, or behind them.
        batch_type: what tensordict's files name; the dotted path is part of the format, and never moves.
        block_numbers: of the line of a block in manifest.json.
        is_flat: pixels is uint8[bytes], without a dimension of rows.
        tensors: where each row begins and what shape it has.
    """

    has_own_sizes = False
    up_to, at_most = "", ""
    batch_type = "<class 'reader.store.ImageBatch'>"
    block_numbers = 3
    is_flat = False
    tensors: ClassVar[Mapping[str, TensorSpec]] = {}

    def common_sides(self, sides: tuple[int, int]) -> tuple[int, int] | None:
        """Return the height and width of every row; None where they differ."""
        return sides

    def alike_text(self, shape: tuple[int, int, int]) -> str:
        """Say what rows of (height, width, channels) must have in common to be in one batch."""
        return f"uint8[{', '.join(map(str, shape))}]"

    def pixel_shape(self, rows: int, shape: tuple[int, int, int], size_bytes: int) -> tuple[int, ...]:
        """Return the shape of all pixels, unpacked, of rows of (height, width, channels) that have so many bytes together."""
        return rows, *shape

    def row_bytes(self, rows: int, shape: tuple[int, int, int], size_bytes: int) -> int:
        """Return the bytes of a row, on average, of rows that have so many together, with masks that are behind the pixels."""
        return math.prod(shape)

    def required_bytes(self, rows: int, shape: tuple[int, int, int]) -> int:
        """Return the bytes that rows of (height, width, channels) must have together; 0 where that is not said."""
        return rows * math.prod(shape)

    def file_bytes(self, used_bytes: int, form: str = "") -> int:
        """Return the size of the file of rows in a form, "" raw, that take so many bytes in it.

        Of frames, and of rows with sizes of their own, it is complete pages, so that it is never empty.
        """
        return _whole_pages(used_bytes) if form else used_bytes

    def shared_bytes(self, rows: int) -> int:
        """Return by how much the pages that hold so many rows may be larger than they are; 0 where rows are read alone."""
        return 0


class OwnSizes(RowKind):
    """Rows that have the size of their image each, one after the other in flat pixels, their masks behind them."""

    has_own_sizes = True
    up_to, at_most = "up to ", " at most"
    batch_type = "<class 'reader.store.RaggedBatch'>"
    block_numbers = 4
    is_flat = True
    tensors: ClassVar[Mapping[str, TensorSpec]] = {
        "offsets": TensorSpec("int64", ()),
        "shapes": TensorSpec("int32", (3,)),
    }

    def common_sides(self, sides: tuple[int, int]) -> None:
        """Return None: rows have no sides in common."""

    def alike_text(self, shape: tuple[int, int, int]) -> str:
        """Say what rows of a batch have in common: their channels, not their height and width."""
        return f"uint8[H, W, {shape[2]}]"

    def pixel_shape(self, rows: int, shape: tuple[int, int, int], size_bytes: int) -> tuple[int, ...]:
        """Return the shape of the pixels, which are flat."""
        return (size_bytes,)

    def row_bytes(self, rows: int, shape: tuple[int, int, int], size_bytes: int) -> int:
        """Return the mean of all rows."""
        return max(1, size_bytes // rows)

    def required_bytes(self, rows: int, shape: tuple[int, int, int]) -> int:
        """Return 0: only the shape of each row says its bytes."""
        return 0

    def file_bytes(self, used_bytes: int, form: str = "") -> int:
        """Return the bytes of the file: whole pages, raw too."""
        return _whole_pages(used_bytes)

    def shared_bytes(self, rows: int) -> int:
        """Return the bytes of pages that two rows share, which are read for each."""
        return rows * PAGE_BYTES


def _whole_pages(used_bytes: int) -> int:
    return -(-used_bytes // PAGE_BYTES) * PAGE_BYTES


ONE_SIZE, OWN_SIZE_EACH = RowKind(), OwnSizes()


def row_kind(*, has_own_sizes: bool) -> RowKind:
    """Return the kind of rows of one size, or with sizes of their own."""
    return OWN_SIZE_EACH if has_own_sizes else ONE_SIZE


def kind_of(reader_features: Collection[str]) -> RowKind:
    """Return the kind of rows that a store with these reader features has."""
    return row_kind(has_own_sizes=OWN_SIZES in reader_features)
