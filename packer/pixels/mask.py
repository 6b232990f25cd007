"""The mask of a row: of a file of labels, or drawn of outlines; values of the nearest pixels, never blended."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
from PIL import Image

from packer.errors import DecodeError, OutlineError
from packer.pixels.formats.opening import UPRIGHT, load_image, open_image, stored_size
from packer.pixels.geometry import Geometry
from packer.pixels.outlines import draw, frame_of
from packer.pixels.row import Row


def drawn_row(drawing: str, row: Row, geometry: Geometry, *, is_upright: bool) -> bytes:
    """Return the uint8 values of a mask that is drawn of outlines, brought to the row as its image was.

    Args:
        drawing: as `packer.pixels.outlines.drawing` makes it.
        row: the image's.
        is_upright: the outlines were drawn on the upright picture; so they are where the label file gives its size, as of boxes.

    Raises:
        DecodeError: an outline cannot be drawn.
    """
    orientation = row.done.get("exif_orientation", 1)
    size = row.width, row.height
    stored = size[::-1] if orientation >= 5 else size
    is_upright = is_upright or frame_of(drawing) == size != stored
    try:
        mask = Image.fromarray(draw(drawing, size if is_upright else stored))
    except OutlineError as e:
        raise DecodeError(f"the label file has {e}") from e
    if orientation in UPRIGHT and not is_upright:
        mask = mask.transpose(UPRIGHT[orientation])
    return _in_row(mask, geometry)


def mask_row(data: bytes, row: Row, geometry: Geometry, *, is_upright: bool) -> bytes:
    """Return the uint8 values of a mask, brought to the row as its image was.

    A mask file with an orientation of its own is turned by that, and is upright then.

    Args:
        row: the image's.
        is_upright: the mask was drawn on the upright picture; else it is turned as the image was, unless its size says that
            it has been turned already.

    Raises:
        DecodeError: it cannot be decoded, has another size than the image, or more than 8 bits a pixel.
    """
    orientation = row.done.get("exif_orientation", 1)
    size = row.width, row.height
    stored = size[::-1] if orientation >= 5 else size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(data) as image:
            if sorted(image.size) != sorted(size):  # before it is decoded: it may be a bomb
                raise DecodeError(f"it has {_numbers(stored_size(image))} pixels, the image {_numbers(stored)}")
            own = load_image(image, data)
            mask = own.upright(_values(image))
    if own.value == 1:
        if mask.size not in (size, stored):
            raise DecodeError(f"it has {_numbers(mask.size)} pixels, the image {_numbers(stored)}")
        if orientation in UPRIGHT and mask.size == stored and not is_upright:
            mask = mask.transpose(UPRIGHT[orientation])
    if mask.size != size:
        raise DecodeError(f"it has {_numbers(mask.size)} pixels, the upright image {_numbers(size)}")
    return _in_row(mask, geometry)


def _in_row(mask: Image.Image, geometry: Geometry) -> bytes:
    row_mask, _ = dataclasses.replace(geometry, resample="nearest").to_row(mask, geometry.resized(*mask.size))
    return row_mask.tobytes()


def _values(image: Image.Image) -> Image.Image:
    """Return what the pixels of a decoded mask say: the index of a palette, the level of gray, or 0 and 1."""
    if image.format == "JPEG":
        raise DecodeError("it is a JPEG, which does not keep values; save masks as PNG")
    values = np.asarray(image)
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise DecodeError(f"its pixels are {image.mode}; expected a palette or gray")
    if values.size and not 0 <= values.min() <= values.max() <= 255:
        raise DecodeError(f"it has values from {values.min()} to {values.max()}; expected 0 to 255")
    return Image.fromarray(values.astype(np.uint8))


def _numbers(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
