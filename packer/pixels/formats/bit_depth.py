"""Pixels of more than 8 bits, brought to 8: over how many bits values are spread, as the file says, as asked, or as they look."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from packer.errors import DepthError

# Values that use so many bits or fewer of 16 are recorded: shown by their high byte they are at most a quarter as bright.
_MOST_UNUSED = 14
_BITS_PER_SAMPLE = 258
# Pillow's unpacking of 16 bits takes the high byte alone; that of the other byte order takes the low one.
_OTHER_ORDER = {"B": "L", "L": "B", "N": "B" if sys.byteorder == "little" else "L"}


@dataclass(frozen=True)
class Depth:
    """Over how many bits the values of an opened image are spread; is_stated: the file says so, and no option changes it.

    high: Pillow decodes colors of 16 bits to their high bytes.
    """

    bits: int = 8
    is_stated: bool = True
    high: bool = False

    @classmethod
    def of(cls, image: Any) -> Depth:
        """Read it from the header; the image is not decoded yet."""
        tiles = getattr(image, "tile", [])  # an image that a program made has none
        arguments = [str(part) for tile in tiles for part in _flat(tile[3])]
        if image.mode.startswith("I") or any(";16" in part for part in arguments):
            if image.format == "TIFF" and image.tag_v2.get(_BITS_PER_SAMPLE, (16,))[0] == 12:
                return cls(12)
            # scaled to 16 bits by what the file says: a PGM by its maxval, unless that is 65535
            is_scaled = image.format in ("JPEG2000", "JXL") or (image.format == "PPM" and tiles[0][0] != "raw")
            return cls(16, is_scaled, high=not image.mode.startswith("I"))
        return cls()


def eight_bits(
    image: Image.Image, depth: Depth, asked: int | None, again: Callable[[], Image.Image]
) -> tuple[Image.Image, dict[str, object], str]:
    """Return a decoded image with 8 bits a channel, what samples.jsonl says of that, and a warning or "".

    Args:
        asked: --bit-depth; counts where the file does not state its own.
        again: opens the image once more, for the low bytes of colors.

    Raises:
        DepthError: it holds 32-bit integers or floating point, or low bytes that cannot be read.
    """
    if image.mode == "F":
        raise DepthError("it holds floating point pixels, which have no agreed range; convert it to 8 or 16 bits")
    if depth.bits == 8 or (depth.high and depth.is_stated):
        return image, {}, ""
    bits = depth.bits if depth.is_stated or asked is None else asked
    if depth.high and bits == 16:
        return image, _used(8 + int(np.asarray(image)[..., :3].max(initial=0)).bit_length(), asked), ""
    values = np.asarray(image)
    if depth.high:
        values = values.astype(np.uint16) << 8 | np.asarray(_low_bytes(again(), image.mode))
    elif values.min(initial=0) < 0 or values.max(initial=0) > 0xFFFF:
        # 16-bit PNG and PGM open as I in some versions; true 32-bit data has no agreed range
        raise DepthError("it holds 32-bit integers, which have no agreed range; convert it to 8 or 16 bits")
    largest = int(values.max(initial=0))
    shifted = Image.fromarray(np.minimum(values >> (bits - 8), 255).astype(np.uint8))
    if bits == 16:
        return shifted, {} if depth.is_stated else _used(largest.bit_length(), asked), ""
    is_cut = largest >= 1 << bits
    warning = f"it has values up to {largest}, which are cut at the {(1 << bits) - 1} of {bits} bits" if is_cut else ""
    return shifted, {"bit_depth": bits}, warning


def _used(bits: int, asked: int | None) -> dict[str, object]:
    return {"bits_used": max(1, bits)} if bits <= _MOST_UNUSED and asked is None else {}


def _low_bytes(image: Any, mode: str) -> Image.Image:
    """Decode an opened image of 16 bits a channel to the low bytes of its values."""
    try:
        image.tile = [tile._replace(args=_swapped(tile.args)) for tile in image.tile]
        image.load()
    except Exception as e:
        raise DepthError(f"its 16 bits ({mode}) cannot be read for --bit-depth; convert it to RGB or gray") from e
    return image


def _swapped(arguments: object) -> object:
    """Return what a decoder of Pillow is given, with the other byte order in it."""
    if isinstance(arguments, str) and ";16" in arguments:
        return arguments[:-1] + _OTHER_ORDER[arguments[-1]]
    return tuple(map(_swapped, arguments)) if isinstance(arguments, tuple) else arguments


def _flat(arguments: object) -> tuple[object, ...]:
    return arguments if isinstance(arguments, tuple) else (arguments,)
