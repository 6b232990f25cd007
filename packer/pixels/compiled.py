"""The compiled part, or why it cannot be used; packer's only import of it. Also channel sums, with it or numpy.

It makes the same bytes as libjpeg-turbo and Pillow-SIMD, which serve all other images. It never rejects an image.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import ModuleType

from packer.pixels import jpeg

Pair = tuple[int, int]
# Versions of libjpeg-turbo that decode intact files to equal pixels.
_OLDEST, _NEWEST = (2, 1), (3, 2)
# The sum of squares of this many lines fits uint32.
_LINES = 256
# uint8 without gaps, arrays of numpy included
PixelBytes = bytes | bytearray | memoryview


# data of a JPEG, source, resized, origin, size, a number of PIL.Image.Resampling, out: decodes it to (width, height) = source by
# DCT scaling, resizes it, and crops size = (width, height) at origin. Writes RGB to out, uint8[height, width, 3], 0 outside
# the picture; False if the data is not an intact JPEG.
RowOf = Callable[[bytes, Pair, Pair, Pair, Pair, int, bytearray | memoryview], bool]
# pixels of one or four bytes, source = (width, height), size, a number of PIL.Image.Resampling: resizes a picture to size;
# None if a side is above 2^20.
ResizeOf = Callable[[bytes, Pair, Pair, int], bytes | None]
# interleaved bytes and their channels, 1, 2, 3, 4 or 6: returns the sum of each channel, then the sums of squares.
SumsOf = Callable[[PixelBytes, int], tuple[int, ...]]


@dataclass(frozen=True)
class Native:
    """The compiled functions, None if one is not used; reason says why. is_missing: they are not built."""

    row: RowOf | None = None
    resize: ResizeOf | None = None
    sums: SumsOf | None = None
    # the version of its libjpeg-turbo; "" if it does not decode
    version: str = ""
    reason: str = ""
    is_missing: bool = False


@functools.cache
def native() -> Native:
    """Find out whether the compiled part is built, and runs with a tested libjpeg-turbo."""
    try:
        from reader.native import functions

        built = functions()
    except ImportError as e:
        return Native(reason=str(e), is_missing=True)
    known = Native(None, built.resize, built.sums)
    version = _library_version(built)
    if version is None or not _OLDEST <= _numbers(version) <= _NEWEST:
        found = f"it runs with libjpeg-turbo {version or 'of unknown version'}, expected 2.1 to 3.2"
        return replace(known, reason=f"not used to decode: {found}")
    return replace(known, row=built.row, version=version)


def channel_sums(pixels: PixelBytes, channels: int, line_bytes: int) -> tuple[int, ...]:
    """Return the sum of each channel of complete lines of pixels, then the sums of squares.

    Padding is 0 and adds nothing.
    """
    if (compiled := native().sums) is not None:
        return compiled(pixels, channels)
    import numpy as np

    totals = np.zeros((2, channels), np.uint64)
    lines = np.frombuffer(pixels, np.uint8).reshape(-1, line_bytes)
    for start in range(0, len(lines), _LINES):
        values = lines[start : start + _LINES].astype(np.uint16)
        for total, some in zip(totals, (values, values * values), strict=True):
            total += some.sum(axis=0, dtype=np.uint32).reshape(-1, channels).sum(axis=0, dtype=np.uint64)
    return tuple(totals.reshape(-1).tolist())


def _library_version(built: ModuleType) -> str | None:
    """Return the version of the compiled part's libjpeg-turbo; that of its headers if it is linked in."""
    path = built.library()
    is_linked_in = path is not None and os.path.realpath(path) == os.path.realpath(str(built.__file__))
    return str(built.HEADERS) if is_linked_in else jpeg.version_in(path)


def _numbers(version: str) -> tuple[int, int]:
    """Return major and minor: "2.1.5" -> (2, 1)."""
    major, minor = (*version.split("."), "0")[:2]
    return int(major), int(minor)
