"""Bytes of any image -> one row of uint8 pixels, upright, or a DecodeError with a reason that a person understands.

JPEG goes through libjpeg-turbo (`formats/jpeg.py`) where it accepts the file; Pillow does everything else.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

from PIL import Image, ImageFile

from packer.clock import StageClock
from packer.errors import DecodeError, DepthError, JpegError
from packer.options import MAX_PIXELS
from packer.pixels.formats import icc, jpeg, jxl, plugins
from packer.pixels.formats.bit_depth import Depth, eight_bits
from packer.pixels.formats.damage import decoded_share
from packer.pixels.formats.diagnose import plain
from packer.pixels.formats.opening import (
    UPRIGHT,
    Orientation,
    header_orientation,
    load_image,
    open_image,
    profile_of,
    stored_size,
)
from packer.pixels.geometry import Geometry
from packer.pixels.native.live import native
from packer.pixels.resize import raw_bytes
from packer.pixels.row import Row

_MODES = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}
_DCT_SCALES = (8, 4, 2)


class Decoder:
    """Turns bytes into rows; one a process."""

    def __init__(
        self,
        geometry: Geometry | None,
        *,
        channels: str = "rgb",
        exact: bool = False,
        strict: bool = False,
        max_pixels: int = MAX_PIXELS,
        icc: str = "keep",
        bit_depth: int | None = None,
        clock: StageClock | None = None,
    ) -> None:
        self._geometry, self._mode, self._clock = geometry, _MODES[channels], clock or StageClock("decode")
        self._exact, self._strict, self._max_pixels = exact, strict, max_pixels
        self._converts, self._bit_depth = icc == "convert", bit_depth
        self._jpeg = jpeg.JpegDecoder()
        self._one_pass = native().row
        # process-wide, and this process is ours: the header check below replaces Pillow's limit
        Image.MAX_IMAGE_PIXELS = None
        ImageFile.LOAD_TRUNCATED_IMAGES = False

    def row(self, data: bytes) -> Row:
        """Decode one image into a row.

        Raises:
            DecodeError: the data is no image, is broken, is too large, or (strict) decodes only with warnings.
        """
        header = jpeg.read_header(data)
        if header is not None:
            self._check_jpeg(header, len(data))
        complaint = ""
        if header is not None and self._jpeg.is_available and header.components in (1, 3, 4):
            try:
                if header.components < 4:
                    return self._fast_row(data, header)
                # Pillow turns ink into colors, but says nothing of libjpeg's warnings
                self._jpeg.check(data, (header.width, header.height), 4)
            except JpegError as e:
                complaint = str(e)
        return self._pillow_row(data, header, complaint)

    def upright_size(self, data: bytes) -> tuple[int, int]:
        """Return (height, width) after EXIF orientation, from the header alone.

        Raises:
            DecodeError: the header cannot be read.
        """
        header = jpeg.read_header(data)
        if header is not None and not header.may_be_rotated:
            return header.height, header.width
        if (large := jxl.read_header(data)) and not plugins.library(plugins.JPEG_XL).lacks:
            return (large.width, large.height) if large.orientation >= 5 else (large.height, large.width)
        with open_image(data) as image:
            width, height = stored_size(image)
            return (width, height) if header_orientation(image) >= 5 else (height, width)

    def _fast_row(self, data: bytes, header: jpeg.JpegHeader) -> Row:
        orientation = 1
        if header.may_be_rotated:
            with open_image(data) as image:
                orientation = header_orientation(image)
        scale = self._dct_scale(header.width, header.height, orientation)
        width, height = -(-header.width // scale), -(-header.height // scale)
        if orientation == 1 and (row := self._native_row(data, header, scale, (width, height))):
            return row
        pixels = self._jpeg.decode(data, width, height)
        # RGBX is a mode that Pillow maps without a copy; the fourth byte is dropped when the row is written out
        image = Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)
        done: dict[str, Any] = {"decoder": "libjpeg-turbo"}
        is_foreign = self._note_profile(header.icc, done)
        if self._mode != "RGB" or (is_foreign and self._converts):
            image = Image.frombytes("RGB", image.size, pixels, "raw", "RGBX")
            # as a profile of gray wants it
            image = image.convert("L") if header.components == 1 and is_foreign else image
            image = self._in_mode(image, header.icc, done)
        return self._finish(image, (header.width, header.height), Orientation(orientation), scale, done, header.icc)

    def _native_row(self, data: bytes, header: jpeg.JpegHeader, scale: int, stored: tuple[int, int]) -> Row | None:
        """Decode, resize and crop in one pass; None: that is not to be had here, or something is wrong with the data."""
        if self._one_pass is None or self._geometry is None or self._mode != "RGB":
            return None
        resized = self._geometry.resized(header.width, header.height)
        done: dict[str, Any] = {"decoder": "libjpeg-turbo"}
        if (self._note_profile(header.icc, done) and self._converts) or not self._geometry.resizes_whole(
            stored, resized
        ):
            return None
        origin, size = self._geometry.origin(resized), self._geometry.row_size(resized)
        pixels = self._one_pass(data, stored, resized, origin, size, self._geometry.filter)
        if pixels is None:
            return None
        if scale > 1:
            done["dct_scale"] = scale
        return Row(pixels, self._geometry.content(resized), header.width, header.height, done)

    def _pillow_row(self, data: bytes, header: jpeg.JpegHeader | None, complaint: str) -> Row:
        """Decode with Pillow. complaint: what libjpeg-turbo said of it, "" for nothing."""
        share = decoded_share(header, data, self._jpeg) if header and complaint else 1.0
        if large := jxl.read_header(data):  # opening it decodes it
            self._check_pixels(large.width, large.height, len(data))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with open_image(data) as image:
                self._check_pixels(*image.size, len(data))
                self._check_unread(image, data, header)
                size, scale = stored_size(image), self._draft(image)
                depth, profile = Depth.of(image), profile_of(image, data)
                orientation = load_image(image, data)
                try:
                    pixels, deep, warning = eight_bits(image, depth, self._bit_depth, lambda: open_image(data))
                except DepthError as e:
                    raise DecodeError(str(e)) from e
                done: dict[str, Any] = {"decoder": plugins.decoder_of(image.format), "format": image.format} | deep
                self._note_profile(profile, done)
                upright = self._in_mode(pixels, profile, done)
        if share < 1:
            # rounded down: 1 is for what has no damage
            done["decoded"] = math.floor(share * 100) / 100
        notes = [note for note in (plain(complaint) if complaint else "", warning) if note]
        notes += [str(w.message).splitlines()[0] for w in caught]
        if notes:
            done["warnings"] = notes
            if self._strict:
                raise DecodeError(f"it decodes only with warnings (--strict): {notes[0]}")
        return self._finish(upright, size, orientation, scale, done, profile)

    def _finish(
        self,
        image: Image.Image,
        size: tuple[int, int],
        orientation: Orientation,
        scale: int,
        done: dict[str, Any],
        profile: bytes,
    ) -> Row:
        width, height = size[::-1] if orientation.value >= 5 else size
        self._clock.enter("resize")
        if orientation.value in UPRIGHT:
            image = orientation.upright(image)
            done["exif_orientation"] = orientation.value
        if scale > 1:
            done["dct_scale"] = scale
        if self._geometry is None:
            raise DecodeError("no size was given to decode to")
        image, content = self._geometry.to_row(image, self._geometry.resized(width, height))
        if "icc_converted" in done:  # here, where there are fewest pixels
            image = icc.to_srgb(image, profile, content).convert(self._mode)
        return Row(raw_bytes(image, self._mode, len(self._mode)), content, width, height, done)

    def _note_profile(self, profile: bytes, done: dict[str, Any]) -> bool:
        """Note the name of a profile that is not sRGB; returns whether there is one."""
        name = icc.foreign_name(profile) if profile else ""
        if name:
            done["icc"] = name
        return bool(name)

    def _in_mode(self, image: Image.Image, profile: bytes, done: dict[str, Any]) -> Image.Image:
        """Return an image in the mode of rows; or, where it is to be converted, in that of its profile, and note that."""
        if self._converts and "icc" in done:
            profiled = icc.as_profiled(image, profile)
            if profiled is not None and icc.transform(profile) is not None:
                done["icc_converted"] = True
                return profiled
        return image if image.mode == self._mode else image.convert(self._mode)

    def _dct_scale(self, width: int, height: int, orientation: int) -> int:
        """Return the largest of 8, 4, 2 that leaves twice the resized picture in both directions, else 1."""
        if self._exact or self._geometry is None:
            return 1
        if orientation >= 5:
            target_h, target_w = self._geometry.resized(height, width)
        else:
            target_w, target_h = self._geometry.resized(width, height)
        fits = (s for s in _DCT_SCALES if -(-width // s) >= 2 * target_w and -(-height // s) >= 2 * target_h)
        return next(fits, 1)

    def _draft(self, image: Image.Image) -> int:
        """Ask Pillow's JPEG plugin for the same DCT scaling; returns the scale it took."""
        width, height = image.size
        if image.format not in ("JPEG", "MPO"):
            return 1
        scale = self._dct_scale(width, height, header_orientation(image))
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

    def _check_jpeg(self, header: jpeg.JpegHeader, size_bytes: int) -> None:
        if header.lossless:
            raise DecodeError("it is a lossless JPEG, which libjpeg-turbo 2 cannot decode; convert it to PNG")
        if header.precision != 8:
            raise DecodeError(f"it is a {header.precision}-bit JPEG; only 8 bits can be decoded, convert it to PNG")
        self._check_pixels(header.width, header.height, size_bytes)

    def _check_pixels(self, width: int, height: int, size_bytes: int) -> None:
        if width < 1 or height < 1:
            raise DecodeError(f"its header says {width} x {height} pixels")
        if width * height > self._max_pixels:
            raise DecodeError(
                f"its header says {width} x {height} = {width * height} pixels on {size_bytes} bytes of data,"
                f" more than --max-pixels {self._max_pixels}"
            )


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
