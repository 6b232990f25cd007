"""Bytes of any image -> one row of uint8 pixels, upright, or a DecodeError with a readable reason.

JPEGs that the compiled part serves become rows here. `pillow.py`, with Pillow and numpy, is imported for the first other
image; in a pack of photographs, most workers never meet one.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from packer.pixels import jpeg
from packer.pixels.compiled import native
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row, RowRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.pixels.pillow import PillowDecoder

# Names that are checked: a folder of photographs hardly has other files.
_LOOKED_AT = 1000
_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
# Pillow's names of the channels.
MODES = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}


class Decoder:
    """Turns bytes into rows; one a process."""

    def __init__(self, geometry: Geometry, *, channels: str = "rgb", exact: bool = False, bit_depth: int = 16) -> None:
        self._rules = RowRules(geometry, MODES[channels], exact, bit_depth)

    def row(self, data: bytes, memory: memoryview | None = None) -> Row:
        """Decode one image into a row.

        Args:
            memory: that of a row of one size; its pixels may be written there, or elsewhere.

        Raises:
            DecodeError: the data is no image, is broken, or is too large.
        """
        header = jpeg.read_header(data)
        orientation = 1
        if header is not None:
            self._rules.check_pixels(header.width, header.height)
            if header.may_be_rotated:
                orientation = self._pillow.orientation(data)
            if orientation == 1 and (row := self._native_row(data, header, memory)):
                return row
        return self._pillow.row(data, header, orientation)

    def upright_size(self, data: bytes) -> tuple[int, int]:
        """Return (height, width) after EXIF orientation, from the header alone.

        Raises:
            DecodeError: the header cannot be read.
        """
        header = jpeg.read_header(data)
        if header is not None and not header.may_be_rotated:
            return header.height, header.width
        return self._pillow.upright_size(data)

    @functools.cached_property
    def _pillow(self) -> PillowDecoder:
        from packer.pixels.pillow import PillowDecoder

        return PillowDecoder(self._rules)

    def _native_row(self, data: bytes, header: jpeg.JpegHeader, memory: memoryview | None) -> Row | None:
        """Decode, resize and crop in one pass; None if that is not available here, or the data is damaged."""
        rules, geometry, decode = self._rules, self._rules.geometry, native().row
        if decode is None or rules.mode != "RGB" or header.components not in (1, 3):
            return None
        width, height = header.width, header.height
        resized = geometry.resized(width, height)
        scale = rules.dct_scale(width, height, 1)
        stored, size = (-(-width // scale), -(-height // scale)), geometry.row_size(resized)
        pixels = bytearray(size[0] * size[1] * 3) if memory is None else memory
        if not decode(data, stored, resized, geometry.origin(resized), size, geometry.filter, pixels):
            return None
        done: dict[str, object] = {"decoder": "libjpeg-turbo"}
        if scale > 1:
            done["dct_scale"] = scale
        return Row(pixels, geometry.content(resized), width, height, done)


def serves(paths: Sequence[str]) -> bool:
    """Return whether the compiled part may serve all these images, by their names."""
    return native().row is not None and all(path.lower().endswith(_SUFFIXES) for path in paths[:_LOOKED_AT])
