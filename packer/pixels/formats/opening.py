"""Images opened by Pillow: of the formats that are packed, with what decides before decoding: orientation, size.

What the libraries behind the formats do of themselves, turning a picture above all, is known here and in `plugins.py`.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageFile, UnidentifiedImageError

from packer.errors import DecodeError
from packer.pixels.formats import plugins
from packer.pixels.formats.completeness import check_complete
from packer.pixels.formats.diagnose import explain

# Formats that hold pictures people train on. The list keeps Pillow from trying the rest, Ghostscript for EPS among them.
# Those that need more than Pillow are in `plugins.py`.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "WEBP", "TIFF")

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
# A logger without a handler writes to stderr; those of a program that a worker was forked from are its own.
_NO_LOG = logging.NullHandler()


@dataclass(frozen=True)
class Orientation:
    """EXIF's 1 to 8, and whether the library that decoded has made the picture upright already."""

    value: int
    is_undone: bool = False

    def upright(self, image: Image.Image) -> Image.Image:
        """Return the decoded picture upright."""
        turn = None if self.is_undone else UPRIGHT.get(self.value)
        return image if turn is None else image.transpose(turn)


def lift_limits() -> None:
    """Have Pillow open pictures of any size in this process, a worker's, and log nothing on its stderr.

    Their size is checked before they are decoded.
    """
    Image.MAX_IMAGE_PIXELS = None
    ImageFile.LOAD_TRUNCATED_IMAGES = False
    log = logging.getLogger("PIL")
    log.addHandler(_NO_LOG)
    log.propagate = False


def open_image(data: bytes) -> Image.Image:
    """Open an image of a known format, its header read and (but for JPEG XL) no pixel decoded; raises DecodeError."""
    kind = plugins.kind_of(data)
    library = plugins.library(kind) if kind else plugins.Library(FORMATS)
    if library.lacks:
        raise DecodeError(f"it is {_a(kind)} {kind} image; to decode it, install {library.lacks}")
    try:
        return Image.open(io.BytesIO(data), formats=library.formats)
    except ImportError:
        raise
    except Exception as e:  # a damaged header makes Pillow's plugins raise nearly anything
        if kind and problem(e) is None:
            raise DecodeError(f"it begins as {_a(kind)} {kind} image but its header is damaged or cut short") from e
        raise DecodeError(explain(data, problem(e))) from e


def problem(error: Exception) -> str | None:
    """Return Pillow's message about an image, None where it knows no such format."""
    return None if isinstance(error, UnidentifiedImageError) else str(error)


def stored_size(image: Any) -> tuple[int, int]:
    """Return (width, height) of an opened image as its pixels are stored, before any orientation; decodes nothing."""
    undone = _orientation(image.tag_v2) if image.format == "TIFF" else plugins.orientation(image)
    # who turns a picture itself gives its size after that
    return image.size[::-1] if undone is not None and undone >= 5 else image.size


def header_orientation(image: Image.Image) -> int:
    """Return the orientation, 1 to 8, of an opened image without decoding it."""
    undone = plugins.orientation(image)
    if undone is not None:
        return undone
    try:
        # the base class's: PngImageFile's own decodes the image first
        return _orientation(Image.Image.getexif(image))
    except Exception:  # damaged EXIF counts as none, as it does for Pillow
        return 1


def load_image(image: Image.Image, data: bytes) -> Orientation:
    """Decode an opened image in place; returns its orientation. Raises DecodeError.

    data: what it was opened from, to explain what fails.
    """
    before, is_undone = header_orientation(image), image.format == "TIFF" or plugins.orientation(image) is not None
    try:
        image.load()
    except ImportError:
        raise
    except Exception as e:  # Pillow's plugins raise nearly anything on damaged data
        raise DecodeError(explain(data, problem(e))) from e
    check_complete(data, image.format)
    # a PNG may hold its EXIF behind the pixels
    return Orientation(before, is_undone=True) if is_undone else Orientation(_orientation(image.getexif()))


def load_cut_jpeg(data: bytes, size: tuple[int, int]) -> Image.Image | None:
    """Decode what became of a cut JPEG, gray, at an eighth of its size = (width, height); None where not one line came.

    Lines that did not come are of one gray. Takes little time and memory, as --max-pixels was checked.
    """
    ImageFile.LOAD_TRUNCATED_IMAGES = True  # for this image
    try:
        with open_image(data) as image:
            image.draft("L", (size[0] // 8, size[1] // 8))
            return image.convert("L")
    except Exception:
        return None
    finally:
        ImageFile.LOAD_TRUNCATED_IMAGES = False


def _a(kind: str) -> str:
    return "an" if kind == plugins.AVIF else "a"


def _orientation(tags: Mapping[int, object]) -> int:
    value = tags.get(_ORIENTATION, 1)
    return value if value in UPRIGHT else 1
