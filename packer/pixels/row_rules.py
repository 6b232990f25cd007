"""What all ways to a row have in common: limits, and the scale that a JPEG is decoded at.

Decodes nothing, and imports no image library.
"""

from __future__ import annotations

from dataclasses import dataclass

from packer.errors import DecodeError
from packer.options import MAX_PIXELS
from packer.pixels.formats import jpeg
from packer.pixels.geometry import Geometry

_DCT_SCALES = (8, 4, 2)


@dataclass(frozen=True)
class RowRules:
    """What rows are asked for: see `Decoder`. mode is Pillow's name of the channels."""

    geometry: Geometry | None
    mode: str = "RGB"
    is_exact: bool = False
    bit_depth: int = 16

    def dct_scale(self, width: int, height: int, orientation: int) -> int:
        """Return the largest of 8, 4, 2 that leaves twice the resized picture in both directions, else 1."""
        if self.is_exact or self.geometry is None:
            return 1
        if orientation >= 5:
            target_h, target_w = self.geometry.resized(height, width)
        else:
            target_w, target_h = self.geometry.resized(width, height)
        fits = (s for s in _DCT_SCALES if -(-width // s) >= 2 * target_w and -(-height // s) >= 2 * target_h)
        return next(fits, 1)

    def check_jpeg(self, header: jpeg.JpegHeader) -> None:
        """Refuse what libjpeg-turbo cannot decode, or is too large, as a DecodeError."""
        if header.lossless:
            raise DecodeError("it is a lossless JPEG, which libjpeg-turbo 2 cannot decode; convert it to PNG")
        if header.precision != 8:
            raise DecodeError(f"it is a {header.precision}-bit JPEG; only 8 bits can be decoded, convert it to PNG")
        self.check_pixels(header.width, header.height)

    def check_pixels(self, width: int, height: int) -> None:
        """Refuse a picture without pixels, or with too many, as a DecodeError."""
        if width < 1 or height < 1:
            raise DecodeError(f"its header says {width} x {height} pixels")
        if width * height > MAX_PIXELS:
            raise DecodeError(
                f"Pillow refuses it: Image size ({width * height} pixels) exceeds limit of {MAX_PIXELS} pixels, could be"
                " decompression bomb DOS attack"
            )
