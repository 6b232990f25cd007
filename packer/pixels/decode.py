"""Bytes of any image -> one row of uint8 pixels, upright, or a DecodeError with a reason that a person understands.

JPEGs that the compiled part serves become rows here; `pictures.py`, and with it Pillow and numpy, is imported when the first
image needs it, which most workers of a pack of photographs never see.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packer.options import MAX_PIXELS
from packer.pixels.compiled import RowPlan, native
from packer.pixels.formats import jpeg
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row
from packer.pixels.row_rules import RowRules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from packer.pixels.pictures import PictureDecoder

# So many names are looked at: a folder of photographs has hardly another file.
_LOOKED_AT = 1000
_SUFFIXES = (".jpg", ".jpeg", ".jpe", ".jfif")
_MODES = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}


class Decoder:
    """Turns bytes into rows; one a process."""

    def __init__(
        self,
        geometry: Geometry | None,
        *,
        channels: str = "rgb",
        exact: bool = False,
        bit_depth: int = 16,
    ) -> None:
        self._rules = RowRules(geometry, _MODES[channels], exact, bit_depth)
        self._one_pass = native().row
        self._made: PictureDecoder | None = None

    def row(self, data: bytes) -> Row:
        """Decode one image into a row.

        Raises:
            DecodeError: the data is no image, is broken, or is too large.
        """
        header = jpeg.read_header(data)
        orientation = None
        if header is not None:
            self._rules.check_jpeg(header)
            if self._one_pass is not None and header.components in (1, 3):
                orientation = self._pictures.orientation(data) if header.may_be_rotated else 1
                if orientation == 1 and (row := self._native_row(data, header)):
                    return row
        return self._pictures.row(data, header, orientation)

    def upright_size(self, data: bytes) -> tuple[int, int]:
        """Return (height, width) after EXIF orientation, from the header alone.

        Raises:
            DecodeError: the header cannot be read.
        """
        header = jpeg.read_header(data)
        if header is not None and not header.may_be_rotated:
            return header.height, header.width
        return self._pictures.upright_size(data)

    def plan(self, width: int, height: int) -> RowPlan | None:
        """Return how the compiled part makes a row of an upright JPEG of this size; None: that is not its to make."""
        geometry = self._rules.geometry
        if geometry is None or self._rules.mode != "RGB" or width * height > MAX_PIXELS:
            return None
        scale = self._rules.dct_scale(width, height, 1)
        stored, resized = (-(-width // scale), -(-height // scale)), geometry.resized(width, height)
        if geometry.is_strip(resized):
            return None
        return stored, resized, geometry.origin(resized), geometry.row_size(resized), geometry.filter

    def done(self, width: int, height: int) -> dict[str, object]:
        """Return what is recorded of a row that the compiled part makes of an upright JPEG of this size."""
        done: dict[str, object] = {"decoder": "libjpeg-turbo"}
        if (scale := self._rules.dct_scale(width, height, 1)) > 1:
            done["dct_scale"] = scale
        return done

    def content(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return the part of a row that an upright picture of this size fills: y0, x0, y1, x1."""
        geometry = self._rules.geometry
        assert geometry is not None
        return geometry.content(geometry.resized(width, height))

    @property
    def _pictures(self) -> PictureDecoder:
        if self._made is None:
            from packer.pixels.pictures import PictureDecoder

            self._made = PictureDecoder(self._rules)
        return self._made

    def _native_row(self, data: bytes, header: jpeg.JpegHeader) -> Row | None:
        """Decode, resize and crop in one pass; None: that is not available here, or something is wrong with the data."""
        if self._one_pass is None or (plan := self.plan(header.width, header.height)) is None:
            return None
        done = self.done(header.width, header.height)
        width, height = plan[3]
        pixels = bytearray(width * height * 3)
        if not self._one_pass(data, *plan, pixels):
            return None
        return Row(pixels, self.content(header.width, header.height), header.width, header.height, done)


def is_photograph(path: str) -> bool:
    """Say by its name whether the compiled part may serve an image."""
    return path.lower().endswith(_SUFFIXES)


def serves(paths: Sequence[str]) -> bool:
    """Say by their names whether the compiled part may serve all these images."""
    return native().row is not None and all(map(is_photograph, paths[:_LOOKED_AT]))
