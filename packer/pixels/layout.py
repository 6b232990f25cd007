"""What a row of a store takes: its bytes, and those of its mask, whether all rows have one size or each its own."""

from __future__ import annotations

from dataclasses import dataclass

from packer.options import CHANNELS
from packer.pixels.geometry import Geometry


@dataclass(frozen=True)
class RowLayout:
    """How the rows of one store lie in its files.

    channels: rgb, gray or rgba, as in `packer.options.CHANNELS`.
    has_mask_file: masks of equal rows lie in a file of their own; those of rows with their own sizes lie behind the pixels.
    """

    geometry: Geometry
    channels: str
    has_mask_file: bool = False

    @property
    def channel_count(self) -> int:
        """Bytes of a pixel."""
        return CHANNELS[self.channels]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; 1 where rows have sizes of their own, since their places are then counted in bytes."""
        return 1 if self.geometry.has_own_sizes else self.mask_bytes * self.channel_count

    @property
    def mask_bytes(self) -> int:
        """Bytes of the mask of one row."""
        return self.geometry.height * self.geometry.width
