"""Masks: which file belongs to which input, or what outlines it is drawn of; and its values in the row, of the nearest pixels."""

from __future__ import annotations

import dataclasses
import os
import posixpath
import warnings
from pathlib import Path

import numpy as np
from PIL import Image

from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.class_lists import composed
from packer.inputs.samples import Inputs, ScanError
from packer.pixels.decode import Row
from packer.pixels.geometry import Geometry
from packer.pixels.opening import UPRIGHT, DecodeError, loaded, opened, stored_size
from packer.pixels.outlines import OutlineError, draw, frame_of
from packer.sources.roots import check_listed

# formats that keep every value; a JPEG would not
_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")
_NAMED = 3


def give_masks(parts: dict[str, Inputs], folder: Path) -> None:
    """Give each input the mask of its own relative path but for the suffix; one without a mask, or with two, is refused.

    Raises:
        ScanError: there is no such folder, it holds no mask, or the inputs have a column of that name.
    """
    if not folder.is_dir():
        raise ScanError(
            f"--masks {folder} is no folder. Expected one with masks named as the images are: a.png for a.jpg."
        )
    found = _files(folder)
    if not found:
        raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_SUFFIXES)}.")
    used: set[str] = set()
    for split, inputs in parts.items():
        check_no_masks(inputs)
        inputs.masks = []
        for index, name in enumerate(label_paths(split, inputs)):
            stem = composed(posixpath.splitext(name)[0])
            own = found.get(stem, [])
            used.add(stem)
            inputs.masks.append(own[0] if own else "")
            if len(own) != 1:
                reason = f"it has two masks, {own[0]} and {own[1]}" if own else f"it has no mask {stem}.png"
                inputs.refused.setdefault(index, reason)
    extra = sorted(set(found) - used)
    if extra:
        named = ", ".join(found[stem][0] for stem in extra[:_NAMED]) + (" and others" if len(extra) > _NAMED else "")
        next(iter(parts.values())).notes.append(f"{len(extra)} masks of {folder} belong to no image: {named}.")


def check_no_masks(inputs: Inputs) -> None:
    """Raise ScanError where a column has the name that masks will have."""
    if "masks" in inputs.extras:
        raise ScanError("the inputs have a column 'masks' already. Rename it, or leave out --masks.")


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
        with opened(data) as image:
            if sorted(image.size) != sorted(size):  # before it is decoded: it may be a bomb
                raise DecodeError(f"it has {_pixels(stored_size(image))}, the image {_numbers(stored)}")
            own = loaded(image, data)
            mask = own.upright(_values(image))
    if own.value == 1:
        if mask.size not in (size, stored):
            raise DecodeError(f"it has {_pixels(mask.size)}, the image {_numbers(stored)}")
        if orientation in UPRIGHT and mask.size == stored and not is_upright:
            mask = mask.transpose(UPRIGHT[orientation])
    if mask.size != size:
        raise DecodeError(f"it has {_pixels(mask.size)}, the upright image {_numbers(size)}")
    return _in_row(mask, geometry)


def _in_row(mask: Image.Image, geometry: Geometry) -> bytes:
    placed, _ = dataclasses.replace(geometry, resample="nearest").place(mask, geometry.resized(*mask.size))
    return placed.tobytes()


def _files(folder: Path) -> dict[str, list[str]]:
    """List the masks below a folder: relative path without suffix, in Unicode NFC -> relative paths."""
    found: dict[str, list[str]] = {}
    for root, _, files in os.walk(folder, followlinks=True, onerror=check_listed):
        inside = os.path.relpath(root, folder).replace(os.sep, "/")
        for file in sorted(files):
            if file.lower().endswith(_SUFFIXES):
                path = posixpath.normpath(f"{inside}/{file}")
                found.setdefault(composed(posixpath.splitext(path)[0]), []).append(path)
    return found


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


def _pixels(size: tuple[int, int]) -> str:
    return f"{_numbers(size)} pixels"


def _numbers(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"
