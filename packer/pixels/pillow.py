"""Decodes pictures that need an image library: bytes -> a row by libjpeg-turbo and Pillow, or a DecodeError with its reason.

JPEGs go through libjpeg-turbo, by jpeg4py, if it accepts the file: it treats libjpeg's warnings as errors and refuses some
samplings. Its pixels equal Pillow's, which decodes all other images.
"""

from __future__ import annotations

import functools
import warnings
from types import ModuleType

import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.errors import DecodeError, JpegError
from packer.pixels import jpeg
from packer.pixels.opening import UPRIGHT, header_orientation, lift_limits, load_image, open_image, readable
from packer.pixels.row import Row, RowRules


class PillowDecoder:
    """Turns bytes of any image into rows; one a process."""

    def __init__(self, rules: RowRules) -> None:
        self._rules = rules
        lift_limits()

    def row(self, data: bytes, header: jpeg.JpegHeader | None, orientation: int) -> Row:
        """Decode one image into a row.

        Args:
            header: that of a JPEG which the rules allow.
            orientation: that of a JPEG, by EXIF.

        Raises:
            DecodeError: Pillow refuses it, or it is too large.
        """
        complaint = ""
        if header is not None and jpeg.is_installed() and header.components in (1, 3):
            try:
                return self._fast_row(data, header, orientation)
            except JpegError as e:
                complaint = str(e)
                if "remature end" in complaint and not header.progressive:
                    # Pillow refuses it, or fills missing data with gray if the file has an end marker
                    self._pillow_row(data, complaint)
                    raise DecodeError(f"it is cut short ({readable(complaint)})") from e
        return self._pillow_row(data, complaint)

    def orientation(self, data: bytes) -> int:
        """Return the EXIF orientation of an image, 1 to 8, by its header; raises DecodeError."""
        with open_image(data) as image:
            return header_orientation(image)

    def upright_size(self, data: bytes) -> tuple[int, int]:
        """Return (height, width) after EXIF orientation, from the header alone; raises DecodeError."""
        with open_image(data) as image:
            width, height = image.size
            return (width, height) if header_orientation(image) >= 5 else (height, width)

    def _fast_row(self, data: bytes, header: jpeg.JpegHeader, orientation: int) -> Row:
        scale = self._rules.dct_scale(header.width, header.height, orientation)
        width, height = -(-header.width // scale), -(-header.height // scale)
        pixels = decoded_jpeg(data, width, height)
        # RGBX is a mode that Pillow maps without a copy; the fourth byte is dropped when the row is written out
        image = Image.frombuffer("RGBX", (width, height), pixels, "raw", "RGBX", 0, 1)
        done: dict[str, object] = {"decoder": "libjpeg-turbo"}
        if self._rules.mode != "RGB":
            image = Image.frombytes("RGB", image.size, pixels, "raw", "RGBX").convert(self._rules.mode)
        return self._finish(image, (header.width, header.height), orientation, scale, done)

    def _pillow_row(self, data: bytes, complaint: str) -> Row:
        """Decode with Pillow. complaint: libjpeg-turbo's message, or ""."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with open_image(data) as image:
                self._rules.check_pixels(*image.size)
                if self._rules.bit_depth != 16 and image.mode[0] != "I" and ";16" in str(getattr(image, "tile", "")):
                    raise DecodeError(
                        "it has 16-bit colors, of which Pillow gives the high bytes; leave out --bit-depth"
                    )
                size, scale = image.size, self._draft(image)
                orientation = load_image(image)
                # a TIFF with its orientation only in XMP is turned only by decoding
                size = image.size if scale == 1 else size
                upright = to_mode(image, self._rules.mode, self._rules.bit_depth)
        done: dict[str, object] = {"decoder": "Pillow", "format": image.format}
        notes = [readable(complaint)] if complaint else []
        notes += [str(w.message).splitlines()[0] for w in caught]
        if notes:
            done["warnings"] = notes
        return self._finish(upright, size, orientation, scale, done)

    def _finish(
        self, image: Image.Image, size: tuple[int, int], orientation: int, scale: int, done: dict[str, object]
    ) -> Row:
        width, height = size[::-1] if orientation >= 5 else size
        if orientation in UPRIGHT:
            image = image.transpose(UPRIGHT[orientation])
            done["exif_orientation"] = orientation
        if scale > 1:
            done["dct_scale"] = scale
        image, content = self._rules.geometry.to_row(image, self._rules.geometry.resized(width, height))
        return Row(image.tobytes("raw", self._rules.mode), content, width, height, done)

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


def to_mode(image: Image.Image, mode: str, bit_depth: int = 16) -> Image.Image:
    """Convert an image to RGB, L or RGBA: 16-bit gray keeps the upper 8 of bit_depth bits; RGB and L drop alpha.

    Raises:
        DecodeError: its pixels have no agreed range.
    """
    if image.mode == "F":
        raise DecodeError("it holds floating point pixels, which have no agreed range; convert it to 8 or 16 bits")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
            # 16-bit PNG and PGM open as I in some versions; true 32-bit data has no agreed range
            raise DecodeError("it holds 32-bit integers, which have no agreed range; convert it to 8 or 16 bits")
        image = Image.fromarray(np.minimum(values >> (bit_depth - 8), 255).astype(np.uint8))
    return image if image.mode == mode else image.convert(mode)


def decoded_jpeg(data: bytes, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode a JPEG by libjpeg-turbo to uint8[height, width, 4] (RGBX).

    Each call has a new handle. A reused one decodes a JPEG without tables by those of the previous JPEG, and after some
    errors it refuses every intact JPEG. jpeg4py reuses its handle.

    Args:
        width, height: as in the header, or exactly ceil(w / s) x ceil(h / s) of it for s = 2, 4, 8: libjpeg's DCT
            scaling. Anything else would leave rows of the array untouched.

    Raises:
        JpegError: libjpeg-turbo refused or warned.
    """
    cffi = _cffi()
    pixels = np.empty((height, width, 4), np.uint8)
    source = cffi.ffi.from_buffer("unsigned char[]", data)
    target = cffi.ffi.from_buffer("unsigned char[]", pixels, require_writable=True)
    handle = cffi.lib.tjInitDecompress()
    if handle == cffi.ffi.NULL:
        raise MemoryError
    try:
        if cffi.lib.tjDecompress2(handle, source, len(data), target, width, width * 4, height, cffi.TJPF_RGBX, 0):
            raise JpegError(cffi.ffi.string(cffi.lib.tjGetErrorStr()).decode("utf-8", "replace"))
    finally:
        cffi.lib.tjDestroy(handle)
    return pixels


@functools.cache
def _cffi() -> ModuleType:
    """Import jpeg4py and let it find libturbojpeg; raises ImportError if either cannot be loaded."""
    import jpeg4py

    try:
        jpeg4py._cffi.initialize()
    except OSError as e:
        raise ImportError(f"jpeg4py cannot load libturbojpeg: {e}") from e
    found: ModuleType = jpeg4py._cffi
    return found
