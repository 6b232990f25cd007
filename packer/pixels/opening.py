"""Opens images by Pillow: of packed formats only, with size and orientation before decoding."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageFile

from packer.errors import DecodeError
from packer.pixels import plugins

# Formats of training images. The list keeps Pillow from trying others, such as EPS by Ghostscript. Formats that need a plugin
# are in `plugins.py`.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF", "AVIF", "JPEG2000")

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
# A logger without a handler writes to stderr; handlers of the program that forked this worker stay.
_NO_LOG = logging.NullHandler()


def lift_limits() -> None:
    """Make Pillow open pictures of any size in this worker process, and log nothing on stderr.

    Their size is checked before they are decoded.
    """
    Image.MAX_IMAGE_PIXELS = None
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    log = logging.getLogger("PIL")
    log.addHandler(_NO_LOG)
    log.propagate = False


def open_image(data: bytes) -> Image.Image:
    """Open an image of a known format: read its header, and (but for JPEG XL) decode no pixel; raises DecodeError."""
    kind = plugins.kind_of(data)
    if kind and (missing := plugins.missing(kind)):
        raise DecodeError(f"it is of the format {kind}; to decode it: pip install {missing}")
    try:
        return Image.open(io.BytesIO(data), formats=(kind,) if kind else _FORMATS)
    except ImportError:
        raise
    except Exception as e:  # a damaged header makes Pillow's plugins raise nearly anything
        raise DecodeError(_reason(e)) from e


def load_image(image: Image.Image) -> int:
    """Decode an opened image in place; returns its EXIF orientation, 1 to 8. Raises DecodeError."""
    try:
        image.load()
    except ImportError:
        raise
    except Exception as e:  # Pillow's plugins raise nearly anything on damaged data
        raise DecodeError(_reason(e)) from e
    # a PNG may hold its EXIF after the pixels
    return 1 if _is_upright(image) else _orientation(image.getexif())


def header_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of an opened image without decoding it."""
    if _is_upright(image):
        return 1
    try:
        # the base class's: PngImageFile's own decodes the image first
        return _orientation(Image.Image.getexif(image))
    except Exception:  # damaged EXIF counts as none, as it does for Pillow
        return 1


def _is_upright(image: Any) -> bool:
    """Whether the decoder turns the picture itself, so that its size is the upright one."""
    # pillow-jxl does not turn a JPEG inside a JPEG XL
    return image.format in ("TIFF", "HEIF") or (image.format == "JXL" and not image.jpeg)


def _orientation(tags: Mapping[int, object]) -> int:
    value = tags.get(_ORIENTATION, 1)
    return value if value in UPRIGHT else 1


def _reason(error: Exception) -> str:
    return f"Pillow refuses it: {readable(str(error)) or type(error).__name__}"


def readable(message: str) -> str:
    """Return a library's message without the internals of Python."""
    return re.sub(r" ?<_io\.\w+[^>]*>", "", message.strip().partition("\n")[0]).rstrip(".")
