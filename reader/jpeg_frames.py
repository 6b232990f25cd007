"""Decodes the frame of a row, a JPEG and its crc32: the only module of the reader that knows libjpeg.

The compiled part decodes if it is built, else Pillow: without subsampling, the exact inverse DCT, the default of both, makes
the same pixels. Frames are untrusted: each must decode to exactly the row. Knows no store.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import struct
import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from reader.format.errors import MissingLibraryError

Pixels = npt.NDArray[np.uint8]

# ISO/IEC 10918-1, table B.1
_START, _END = b"\xff\xd8", b"\xff\xd9"
_APP0, _TABLES, _BASELINE, _SCAN = 0xE0, (0xC4, 0xDB), 0xC0, 0xDA
# In a scan a zero follows each FF of the data.
_MARKER = re.compile(rb"\xff[^\0]")
# Bytes of a possible scan, which differ from the zeros that libjpeg supplies. Bytes after the last block are ignored.
_FURTHER = bytes(range(254, 0, -1))
# A JPEG has no checksum: its crc32, little-endian, follows it.
_CHECKSUM_BYTES = 4
# Each component has as many samples as the picture: 4:4:4.
_NOT_SUBSAMPLED = 0x11


def check_library() -> None:
    """Raise MissingLibraryError if neither the compiled part nor Pillow is installed."""
    if compiled_decoder() is None and importlib.util.find_spec("PIL") is None:
        raise MissingLibraryError(
            "rows that are JPEGs need the compiled part of pixpack, or the package Pillow, and neither is installed."
            " Install one: pip install pillow"
        )


def decode(frame: memoryview, height: int, width: int, channels: int, row: Pixels) -> str:
    """Decode a frame into a row, uint8[height * width * channels]; returns its error, or "".

    Releases the GIL. The checksum and the header are checked first, so that libjpeg takes no memory that a false header claims.
    """
    data = frame[:-_CHECKSUM_BYTES]
    if len(frame) <= _CHECKSUM_BYTES or zlib.crc32(data) != int.from_bytes(frame[-_CHECKSUM_BYTES:], "little"):
        return "its frame is damaged (its checksum is another)"
    if what := _wrong_header(data, height, width, channels):
        return what
    native = compiled_decoder()
    what = native(data, height, width, channels, row) if native else _decoded_by_pillow(data, row)
    return f"its frame is damaged ({what})" if what else ""


def _wrong_header(data: memoryview, height: int, width: int, channels: int) -> str:
    """Return how the header differs from packed JPEGs of this size, or ""."""
    if data[:2] != _START or data[-2:] != _END:
        return "its frame is no complete JPEG"
    at, is_sized = 2, False
    while len(data) - at >= 4 and data[at] == 0xFF:
        marker, segment = data[at + 1], data[at + 4 : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]
        if marker == _BASELINE and not is_sized:
            if what := _wrong_size(segment, height, width, channels):
                return what
            is_sized = True
        elif marker == _SCAN:
            if not is_sized or len(segment) != 4 + 2 * channels or segment[0] != channels:
                return "its JPEG has another scan than one of all components"
            end = _MARKER.search(data, at + 4 + len(segment))
            return "" if end and end.start() == len(data) - len(_END) else "its JPEG has a marker in its scan"
        elif marker != _APP0 and marker not in _TABLES:
            return f"its JPEG has a segment FF{marker:02X} before its scan, which packed JPEGs lack"
        at += 4 + len(segment)
    return "its JPEG has no scan"


def _wrong_size(segment: memoryview, height: int, width: int, channels: int) -> str:
    if len(segment) < 6:
        return "its JPEG does not say its size"
    precision, lines, columns, count = struct.unpack_from(">BHHB", segment)
    if (precision, lines, columns, count) != (8, height, width, channels):
        found, wanted = f"{lines} x {columns} x {count}", f"{height} x {width} x {channels}"
        return f"its JPEG has {found} values of {precision} bits, the row {wanted} of 8"
    ids, factors = bytes(segment[6::3]), bytes(segment[7::3])
    if ids != bytes(range(1, channels + 1)) or factors != bytes([_NOT_SUBSAMPLED] * channels):
        return "its JPEG is subsampled, or has other components than Y, Cb, Cr"
    return ""


def _decoded_by_pillow(data: memoryview, row: Pixels) -> str:
    try:
        row[:] = _pillow_pixels(data)
        # Pillow silently makes missing blocks of the scan gray
        if (row != _pillow_pixels(bytes(data[: -len(_END)]) + _FURTHER + _END)).any():
            return "Corrupt JPEG data: premature end of data segment"
    except (OSError, SyntaxError, ValueError) as e:
        return str(e)
    return ""


def _pillow_pixels(data: bytes | memoryview) -> Pixels:
    # not by Image.open, which has its own limit of pixels
    from PIL.JpegImagePlugin import JpegImageFile

    with JpegImageFile(io.BytesIO(data)) as image:
        return np.asarray(image).reshape(-1)


@functools.cache
def compiled_decoder() -> Callable[..., str] | None:
    """Return the compiled decoder, or None if it is not built."""
    try:
        from reader.native import functions

        found: Callable[..., str] = functions().jpeg_pixels
    except ImportError:
        return None
    return found
