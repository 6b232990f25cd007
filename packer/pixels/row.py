"""A decoded row with its record, and the rules that all decoders follow. Imports no image library."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from packer.errors import DecodeError
from packer.options import MAX_PIXELS
from packer.pixels.geometry import Geometry

_DCT_SCALES = (8, 4, 2)


@dataclass(frozen=True)
class Row:
    """One decoded input. width and height are the upright source's; done holds other fields for samples.jsonl.

    frame: the stored form of the pixels, if they are encoded already.
    """

    pixels: bytes | bytearray | memoryview
    content: tuple[int, int, int, int]
    width: int
    height: int
    done: dict[str, Any] = field(default_factory=dict)
    frame: bytes = b""


class RowDecoder(Protocol):
    """Makes the rows of images, one after the other."""

    def row(self, data: bytes, memory: memoryview | None = None) -> Row:
        """Decode one image into a row; may write its pixels to memory, for a row of one size; raises DecodeError."""


@dataclass(frozen=True)
class RowRules:
    """The requested form of rows, for all decoders: see `Decoder`. mode is Pillow's name of the channels."""

    geometry: Geometry
    mode: str
    is_exact: bool
    bit_depth: int

    def dct_scale(self, width: int, height: int, orientation: int) -> int:
        """Return the largest of 8, 4, 2 that leaves twice the resized picture in both directions, else 1."""
        if self.is_exact:
            return 1
        if orientation >= 5:
            target_h, target_w = self.geometry.resized(height, width)
        else:
            target_w, target_h = self.geometry.resized(width, height)
        fits = (s for s in _DCT_SCALES if -(-width // s) >= 2 * target_w and -(-height // s) >= 2 * target_h)
        return next(fits, 1)

    def check_pixels(self, width: int, height: int) -> None:
        """Raise DecodeError for a picture without pixels, or with too many."""
        if width < 1 or height < 1:
            raise DecodeError(f"its header says {width} x {height} pixels")
        if width * height > MAX_PIXELS:
            raise DecodeError(
                f"Pillow refuses it: Image size ({width * height} pixels) exceeds limit of {MAX_PIXELS} pixels, could be"
                " decompression bomb DOS attack"
            )
        wide, high = self.geometry.resized(width, height)
        if wide * high > MAX_PIXELS + 16 * self.geometry.height * self.geometry.width:
            raise DecodeError(
                f"it is too long and narrow: {width} x {height} pixels, which would become {wide} x {high}"
            )
