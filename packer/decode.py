"""Bytes of any image -> one row of uint8 pixels, upright, or a DecodeError with a reason that a person understands.

JPEG goes through libjpeg-turbo (`jpeg.py`) where it accepts the file; Pillow, which lives here, does everything else.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from packer import jpeg, jxl, plugins
from packer.explain import explain, plain
from packer.fit import Geometry
from packer.options import MAX_PIXELS
from packer.profile import StageClock

# Formats that hold pictures people train on. The list keeps Pillow from trying the rest, Ghostscript for EPS among them.
# Those that need more than Pillow are in `plugins.py`.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF")

_MODES = {"rgb": "RGB", "gray": "L", "rgba": "RGBA"}
# EXIF orientation -> the transposition that makes it upright (TIFF 6.0, tag 274)
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION = 0x0112
_DCT_SCALES = (8, 4, 2)


class DecodeError(ValueError):
    """This input cannot become a row; the message is what rejected.jsonl says."""


@dataclass(frozen=True)
class Row:
    """One decoded input. width and height are the upright source's, done is what samples.jsonl records beside them."""

    pixels: bytes
    content: tuple[int, int, int, int]
    width: int
    height: int
    done: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Orientation:
    """EXIF's 1 to 8, and whether the library that decoded has made the picture upright already."""

    value: int
    is_undone: bool = False

    def upright(self, image: Image.Image) -> Image.Image:
        """Return the decoded picture upright."""
        turn = None if self.is_undone else UPRIGHT.get(self.value)
        return image if turn is None else image.transpose(turn)


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
        clock: StageClock | None = None,
    ) -> None:
        self._geometry, self._mode, self._clock = geometry, _MODES[channels], clock or StageClock("decode")
        self._exact, self._strict, self._max_pixels = exact, strict, max_pixels
        self._jpeg = jpeg.JpegDecoder()
        # process-wide, and this process is ours: the header check below replaces Pillow's limit
        Image.MAX_IMAGE_PIXELS = None
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        if geometry is not None:
            # a row in one piece: Pillow writes one out in pieces of this size, and joins them
            ImageFile.MAXBLOCK = max(ImageFile.MAXBLOCK, geometry.height * geometry.width * len(self._mode))

    def row(self, data: bytes) -> Row:
        """Decode one image into a row.

        Raises:
            DecodeError: the data is no image, is broken, is too large, or (strict) decodes only with warnings.
        """
        header = jpeg.read_header(data)
        if header is not None:
            self._check_jpeg(header, len(data))
        refusal = None
        if header is not None and self._jpeg.is_available and header.components in (1, 3, 4):
            try:
                if header.components < 4:
                    return self._fast_row(data, header)
                # Pillow turns ink into colours, but says nothing of libjpeg's warnings
                self._jpeg.check_inks(data, header)
            except jpeg.JpegError as e:
                refusal = _judge(str(e), header, data)
        return self._pillow_row(data, [refusal] if refusal else [])

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
        with opened(data) as image:
            width, height = stored_size(image)
            return (width, height) if header_orientation(image) >= 5 else (height, width)

    def _fast_row(self, data: bytes, header: jpeg.JpegHeader) -> Row:
        orientation = 1
        if header.may_be_rotated:
            with opened(data) as image:
                orientation = header_orientation(image)
        scale = self._dct_scale(header.width, header.height, orientation)
        width, height = -(-header.width // scale), -(-header.height // scale)
        pixels = self._jpeg.decode(data, width, height)
        # RGBX is a mode that Pillow maps without a copy; the fourth byte is dropped when the row is written out
        image = Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)
        if self._mode != "RGB":
            image = Image.frombytes("RGB", image.size, pixels, "raw", "RGBX").convert(self._mode)
        done: dict[str, Any] = {"decoder": "libjpeg-turbo"}
        return self._finish(image, (header.width, header.height), Orientation(orientation), scale, done)

    def _pillow_row(self, data: bytes, notes: list[str]) -> Row:
        if large := jxl.read_header(data):  # opening it decodes it
            self._check_pixels(large.width, large.height, len(data))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with opened(data) as image:
                self._check_pixels(*image.size, len(data))
                size, scale = stored_size(image), self._draft(image)
                orientation = loaded(image, data)
                upright = to_mode(image, self._mode)
        notes += [str(w.message).splitlines()[0] for w in caught]
        done: dict[str, Any] = {"decoder": plugins.decoder_of(image.format), "format": image.format}
        if notes:
            done["warnings"] = notes
            if self._strict:
                raise DecodeError(f"it decodes only with warnings (--strict): {notes[0]}")
        return self._finish(upright, size, orientation, scale, done)

    def _finish(
        self, image: Image.Image, size: tuple[int, int], orientation: Orientation, scale: int, done: dict[str, Any]
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
        image, content = self._geometry.place(image, self._geometry.resized(width, height))
        return Row(image.tobytes("raw", self._mode), content, width, height, done)

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


def agrees(data: bytes, sample: Mapping[str, Any]) -> bool:
    """Whether a row's line in samples.jsonl says of its source what would be said now, as far as the header tells.

    pixpack 0.1 did not record the orientation of a TIFF. What a plugin decoded counts only where the same one is here.
    """
    if sample.get("format") != "TIFF":
        return "format" not in sample or sample["decoder"] == plugins.decoder_of(sample["format"])
    with opened(data) as image:
        return header_orientation(image) == sample.get("exif_orientation", 1)


def to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Convert a loaded image to RGB, L or RGBA as people expect: 16 bits keep their high byte, alpha is dropped for RGB."""
    if image.mode.startswith("I;16"):
        high = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        image = Image.fromarray(high)
    elif image.mode == "I":
        values = np.asarray(image)
        # 16-bit PNG and PGM open as I in some versions; true 32-bit data has no agreed range
        if values.min() < 0 or values.max() > 0xFFFF:
            raise DecodeError("it holds 32-bit integers, which have no agreed range; convert it to 8 or 16 bits")
        image = Image.fromarray((values >> 8).astype(np.uint8))
    elif image.mode == "F":
        raise DecodeError("it holds floating point pixels, which have no agreed range; convert it to 8 or 16 bits")
    return image if image.mode == mode else image.convert(mode)


def opened(data: bytes) -> Image.Image:
    """Open an image of a known format, its header read and (but for JPEG XL) no pixel decoded; raises DecodeError."""
    kind = plugins.kind_of(data)
    library = plugins.library(kind) if kind else plugins.Library(FORMATS)
    if library.lacks:
        raise DecodeError(f"it is {_a(kind)} {kind} image; to decode it, install {library.lacks}")
    try:
        return Image.open(io.BytesIO(data), formats=library.formats)
    except Exception as e:  # a damaged header makes Pillow's plugins raise nearly anything
        if kind and problem(e) is None:
            raise DecodeError(f"it begins as {_a(kind)} {kind} image but its header is damaged or cut short") from e
        raise DecodeError(explain(data, problem(e))) from e


def _a(kind: str) -> str:
    return "an" if kind == plugins.AVIF else "a"


def problem(error: Exception) -> str | None:
    """Return what Pillow said of an image, None where it knows no such format."""
    return None if isinstance(error, UnidentifiedImageError) else str(error)


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return (width, height) of an opened image as its pixels are stored, before any orientation; decodes nothing."""
    undone = _tiff_tag(image) if image.format == "TIFF" else plugins.orientation(image)
    # who turns a picture itself gives its size after that
    return image.size[::-1] if undone is not None and undone >= 5 else image.size


def header_orientation(image: Image.Image) -> int:
    """Return the orientation, 1 to 8, of an opened image without decoding it."""
    undone = plugins.orientation(image)
    if undone is not None:
        return undone
    try:
        # the base class's: PngImageFile's own decodes the whole image first
        return _orientation(Image.Image.getexif(image))
    except Exception:  # damaged EXIF counts as none, as it does for Pillow
        return 1


def loaded(image: Image.Image, data: bytes) -> Orientation:
    """Decode an opened image in place; returns its orientation. Raises DecodeError.

    data: what it was opened from, to explain what fails.
    """
    before, is_undone = header_orientation(image), image.format == "TIFF" or plugins.orientation(image) is not None
    try:
        image.load()
    except Exception as e:  # Pillow's plugins raise nearly anything on damaged data
        raise DecodeError(explain(data, problem(e))) from e
    # a PNG may hold its EXIF behind the pixels
    return Orientation(before, is_undone=True) if is_undone else Orientation(_orientation(image.getexif()))


def _orientation(exif: Image.Exif) -> int:
    value = exif.get(_ORIENTATION, 1)
    return value if value in UPRIGHT else 1


def _tiff_tag(image: Any) -> int:
    value = image.tag_v2.get(_ORIENTATION, 1)
    return value if value in UPRIGHT else 1


def _judge(message: str, header: jpeg.JpegHeader, data: bytes) -> str:
    """Return libjpeg's complaint for the record, or reject where it means that Pillow would fill the rest with gray.

    A segment that ends early is lost pixels in a baseline JPEG, but only lost sharpness in a progressive one.
    """
    if re.search(r"premature end of jpeg", message, re.I):
        raise DecodeError(f"the JPEG is cut short{_after(data, header)}")
    if re.search(r"premature end of data", message, re.I) and not header.progressive:
        raise DecodeError("the JPEG lacks part of its data")
    return plain(message)


def _after(data: bytes, header: jpeg.JpegHeader) -> str:
    """Say after which share of its lines a JPEG breaks off; a progressive one has some of every line.

    Decodes what came at an eighth of the size: little time and memory, as --max-pixels was checked.
    """
    if header.progressive:
        return ""
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # for this image: libjpeg fills what did not come with one gray
    try:
        with opened(data) as image:
            image.draft("L", (header.width // 8, header.height // 8))
            gray = np.asarray(image.convert("L"))
    except Exception:  # not one line came
        return ""
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False
    # the last lines that are of that gray all over are the missing ones
    missing = int((gray[::-1] != gray[-1, -1]).any(axis=1).argmax())
    return f" after {min(99, 100 * (len(gray) - missing) // len(gray))} %"
