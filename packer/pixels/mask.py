"""The mask of a row, from a mask file; values of the nearest pixels, never blended."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from packer.errors import DecodeError
from packer.pixels.geometry import Geometry
from packer.pixels.opening import UPRIGHT, load_image, open_image
from packer.pixels.row import Row
from packer.text import spans

# the value to ignore, as in Pascal VOC and programs that train on it
IGNORED = 255


class MaskRow(NamedTuple):
    """The mask of a row, one byte a pixel, and its values, ascending."""

    pixels: bytes
    values: list[int]


def mask_row(data: bytes, row: Row, geometry: Geometry, *, classes: Sequence[int] = ()) -> MaskRow:
    """Decode a mask and bring it to the row as its image was.

    A mask file with its own orientation is turned by that. Another one is turned like the image, unless its size shows that
    it is upright already.

    Args:
        row: the image's.
        classes: the values that become 0, 1, ...; (): all stay.

    Raises:
        DecodeError: it cannot be decoded, has another size than the image, more than 8 bits a pixel, or a value of no class.
    """
    orientation = row.done.get("exif_orientation", 1)
    size = row.width, row.height
    stored = size[::-1] if orientation >= 5 else size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(data) as image:
            if sorted(image.size) != sorted(size):  # before it is decoded: it may be a bomb
                raise DecodeError(f"it has {_numbers(image.size)} pixels, the image {_numbers(stored)}")
            own = load_image(image)
            mask = Image.fromarray(_classes(_values(image), classes))
    if own in UPRIGHT:
        mask = mask.transpose(UPRIGHT[own])
    else:
        if mask.size not in (size, stored):
            raise DecodeError(f"it has {_numbers(mask.size)} pixels, the image {_numbers(stored)}")
        if orientation in UPRIGHT and mask.size == stored:
            mask = mask.transpose(UPRIGHT[orientation])
    if mask.size != size:
        raise DecodeError(f"it has {_numbers(mask.size)} pixels, the upright image {_numbers(size)}")
    return _in_row(mask, geometry)


def _in_row(mask: Image.Image, geometry: Geometry) -> MaskRow:
    filled, (y0, x0, y1, x1) = replace(geometry, resample="nearest").to_row(mask, geometry.resized(*mask.size))
    # the padding has no class
    row_mask = Image.new("L", filled.size, IGNORED)
    row_mask.paste(filled.crop((x0, y0, x1, y1)), (x0, y0))
    return MaskRow(row_mask.tobytes(), [value for value, count in enumerate(row_mask.histogram()) if count])


def _classes(values: npt.NDArray[np.uint8], listed: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Map mask values to classes by their place in the list; without a list, values stay. An unlisted 255 stays."""
    if not listed:
        return values
    classes: npt.NDArray[Any] = np.full(256, -1, np.int16)
    classes[IGNORED] = IGNORED
    classes[[*listed]] = range(len(listed))
    found = classes[values]
    if (found < 0).any():
        raise DecodeError(
            f"it has the value {values[found < 0].min()}; expected those of --mask-values, {spans(listed)}"
        )
    return found.astype(np.uint8)


def _values(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Return the values of a decoded mask: palette indices, gray levels (also of gray RGB), or 0 and 1."""
    if image.format == "JPEG":
        raise DecodeError("it is a JPEG, which does not keep values; save masks as PNG")
    values = np.asarray(image)
    if image.mode in ("RGB", "RGBA") and (values[:, :, :3] == values[:, :, :1]).all():
        values = values[:, :, 0]
    if values.ndim != 2 or values.dtype.kind not in "bui":
        raise DecodeError(f"its pixels are {image.mode}; expected a palette or gray: save the class of each as a level")
    if values.size and not 0 <= values.min() <= values.max() <= 255:
        raise DecodeError(f"it has values from {values.min()} to {values.max()}; expected 0 to 255")
    return values.astype(np.uint8)


def _numbers(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
