"""Pictures that need an image library: bytes -> a row by libjpeg-turbo and Pillow, or a DecodeError with its reason.

JPEG goes through libjpeg-turbo (`formats/turbojpeg.py`) where that accepts the file; Pillow does everything else.
"""

from __future__ import annotations

import math
import warnings

from PIL import Image

from packer.clock import StageClock
from packer.errors import DecodeError, DepthError, JpegError
from packer.pixels.formats import jpeg, jxl, plugins
from packer.pixels.formats.bit_depth import Depth, eight_bits
from packer.pixels.formats.damage import decoded_share
from packer.pixels.formats.diagnose import plain
from packer.pixels.formats.opening import (
    UPRIGHT,
    Orientation,
    header_orientation,
    lift_limits,
    load_image,
    open_image,
    stored_size,
)
from packer.pixels.formats.turbojpeg import JpegDecoder
from packer.pixels.resize import raw_bytes
from packer.pixels.row import Row
from packer.pixels.row_rules import RowRules


class PictureDecoder:
    """Turns bytes of any image into rows; one a process."""

    def __init__(self, rules: RowRules, clock: StageClock) -> None:
        self._rules, self._clock = rules, clock
        self._jpeg = JpegDecoder()
        lift_limits()

    def row(self, data: bytes, header: jpeg.JpegHeader | None, orientation: int | None = None) -> Row:
        """Decode one image into a row.

        Args:
            header: of a JPEG, which the rules allow.
            orientation: by EXIF, where it is known.

        Raises:
            DecodeError: the data is no image, is broken, is too large, or (strict) decodes only with warnings.
        """
        complaint = ""
        if header is not None and self._jpeg.is_available and header.components in (1, 3, 4):
            try:
                if header.components < 4:
                    if orientation is None:
                        orientation = self.orientation(data) if header.may_be_rotated else 1
                    return self._fast_row(data, header, orientation)
                # Pillow turns ink into colors, but says nothing of libjpeg's warnings
                self._jpeg.check(data, (header.width, header.height), 4)
            except JpegError as e:
                complaint = str(e)
        return self._pillow_row(data, header, complaint)

    def orientation(self, data: bytes) -> int:
        """Return the EXIF orientation of an image, 1 to 8, by its header; raises DecodeError."""
        with open_image(data) as image:
            return header_orientation(image)

    def upright_size(self, data: bytes) -> tuple[int, int]:
        """Return (height, width) after EXIF orientation, from the header alone; raises DecodeError."""
        if (large := jxl.read_header(data)) and not plugins.library(plugins.JPEG_XL).lacks:
            return (large.width, large.height) if large.orientation >= 5 else (large.height, large.width)
        with open_image(data) as image:
            width, height = stored_size(image)
            return (width, height) if header_orientation(image) >= 5 else (height, width)

    def _fast_row(self, data: bytes, header: jpeg.JpegHeader, orientation: int) -> Row:
        scale = self._rules.dct_scale(header.width, header.height, orientation)
        width, height = -(-header.width // scale), -(-header.height // scale)
        pixels = self._jpeg.decode(data, width, height)
        # RGBX is a mode that Pillow maps without a copy; the fourth byte is dropped when the row is written out
        image = Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)
        done: dict[str, object] = {"decoder": "libjpeg-turbo"}
        if self._rules.mode != "RGB":
            image = Image.frombytes("RGB", image.size, pixels, "raw", "RGBX").convert(self._rules.mode)
        return self._finish(image, (header.width, header.height), Orientation(orientation), scale, done)

    def _pillow_row(self, data: bytes, header: jpeg.JpegHeader | None, complaint: str) -> Row:
        """Decode with Pillow. complaint: what libjpeg-turbo said of it, "" for nothing."""
        share = decoded_share(header, data, self._jpeg) if header and complaint else 1.0
        if large := jxl.read_header(data):  # opening it decodes it
            self._rules.check_pixels(large.width, large.height, len(data))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with open_image(data) as image:
                self._rules.check_pixels(*image.size, len(data))
                self._check_unread(image, data, header)
                size, scale = stored_size(image), self._draft(image)
                depth = Depth.of(image)
                orientation = load_image(image, data)
                try:
                    pixels, deep, warning = eight_bits(image, depth, self._rules.bit_depth, lambda: open_image(data))
                except DepthError as e:
                    raise DecodeError(str(e)) from e
                done: dict[str, object] = {"decoder": plugins.decoder_of(image.format), "format": image.format} | deep
                upright = pixels if pixels.mode == self._rules.mode else pixels.convert(self._rules.mode)
        if share < 1:
            # rounded down: 1 is for what has no damage
            done["decoded"] = math.floor(share * 100) / 100
        notes = [note for note in (plain(complaint) if complaint else "", warning) if note]
        notes += [str(w.message).splitlines()[0] for w in caught]
        if notes:
            done["warnings"] = notes
            if self._rules.is_strict:
                raise DecodeError(f"it decodes only with warnings (--strict): {notes[0]}")
        return self._finish(upright, size, orientation, scale, done)

    def _finish(
        self,
        image: Image.Image,
        size: tuple[int, int],
        orientation: Orientation,
        scale: int,
        done: dict[str, object],
    ) -> Row:
        width, height = size[::-1] if orientation.value >= 5 else size
        self._clock.enter("resize")
        if orientation.value in UPRIGHT:
            image = orientation.upright(image)
            done["exif_orientation"] = orientation.value
        if scale > 1:
            done["dct_scale"] = scale
        if self._rules.geometry is None:
            raise DecodeError("no size was given to decode to")
        image, content = self._rules.geometry.to_row(image, self._rules.geometry.resized(width, height))
        return Row(raw_bytes(image, self._rules.mode, len(self._rules.mode)), content, width, height, done)

    def _draft(self, image: Image.Image) -> int:
        """Ask Pillow's JPEG plugin for the same DCT scaling; returns the scale it took."""
        width, height = image.size
        if image.format not in ("JPEG", "MPO"):
            return 1
        scale = self._rules.dct_scale(width, height, header_orientation(image))
        if scale > 1:
            # rounded down: Pillow divides by this size and takes the largest scale that is not more
            image.draft(None, (width // scale, height // scale))
        return round(width / image.size[0])

    def _check_unread(self, image: Image.Image, data: bytes, header: jpeg.JpegHeader | None) -> None:
        """Reject a JPEG whose header only Pillow reads, and of which libjpeg-turbo complains."""
        if header is not None or not self._jpeg.is_available or image.format not in ("JPEG", "MPO"):
            return
        try:
            self._jpeg.check(data, image.size, len(image.getbands()))
        except JpegError as e:
            raise DecodeError(f"the JPEG's header is damaged ({plain(str(e))})") from e


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert an image that a program made to RGB, L or RGBA as files are: of 16 bits the high byte, for RGB without alpha.

    Raises:
        DecodeError: its pixels have no agreed range.
    """
    try:
        pixels, _, _ = eight_bits(image, Depth.of(image), None, lambda: image)
    except DepthError as e:
        raise DecodeError(str(e)) from e
    return pixels if pixels.mode == mode else pixels.convert(mode)
