"""Rows stored as JPEGs: the pixels are those of the decoded JPEG, and the manifest records their error.

Pillow encodes, with the same settings everywhere; `reader.jpeg_frames` decodes.
"""

from __future__ import annotations

import dataclasses
import io
import struct
import zlib

import numpy as np
import numpy.typing as npt

from packer.errors import DecodeError
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row, RowDecoder
from reader import jpeg_frames

Pixels = npt.NDArray[np.uint8]

# Its key in a line of samples.jsonl.
SQUARED_ERROR = "squared_error"
# libjpeg's JPEG_MAX_DIMENSION
_MOST_SIDE = 65_500
# Differences squared at a time: they stay in the CPU's cache.
_COMPARED = 1 << 15


@dataclasses.dataclass(frozen=True)
class EncodedRow:
    """A row as a JPEG: its frame, the pixels that this decodes to, uint8[n], and the sum of squared differences."""

    frame: bytes
    pixels: Pixels
    squared_error: int


class JpegRowDecoder:
    """Wraps another decoder: rows get the pixels of their JPEG, and the frame that a store keeps."""

    def __init__(self, decoder: RowDecoder, geometry: Geometry, quality: int, channels: int) -> None:
        self._decoder = decoder
        self._sides, self._quality, self._channels = geometry.common_sides, quality, channels

    def row(self, data: bytes, memory: memoryview | None = None) -> Row:
        """Decode one image into a row; raises DecodeError."""
        row = self._decoder.row(data)
        height, width = self._sides or row.content[2:]
        made = encode(np.frombuffer(row.pixels, np.uint8), height, width, self._channels, self._quality)
        done = row.done | {SQUARED_ERROR: made.squared_error}
        return dataclasses.replace(row, pixels=made.pixels.tobytes(), frame=made.frame, done=done)


def encode(row: Pixels, height: int, width: int, channels: int, quality: int) -> EncodedRow:
    """Encode a row, uint8[height * width * channels], as its frame: a JPEG, and the JPEG's crc32.

    Never subsampled: at equal error, full chroma at a lower quality takes fewer bytes than 4:2:0 at a higher one.

    Raises:
        DecodeError: a side has more than 65,500 pixels.
    """
    if max(height, width) > _MOST_SIDE:
        raise DecodeError(f"its row has {height} x {width} pixels, a JPEG up to {_MOST_SIDE:,} a side")
    from PIL import Image

    picture = row.reshape(height, width, channels)
    written = io.BytesIO()
    Image.fromarray(picture if channels > 1 else picture[:, :, 0]).save(written, "JPEG", quality=quality, subsampling=0)
    data = written.getvalue()
    frame = data + struct.pack("<I", zlib.crc32(data))
    pixels = np.empty_like(row)
    if what := jpeg_frames.decode(memoryview(frame), height, width, channels, pixels):
        raise DecodeError(what)
    return EncodedRow(frame, pixels, squared_error(row, pixels))


def squared_error(one: Pixels, other: Pixels) -> int:
    """Return the sum of the squares of the differences of two rows, uint8[n]."""
    total = 0
    for start in range(0, len(one), _COMPARED):
        some, others = one[start : start + _COMPARED], other[start : start + _COMPARED]
        # in integers: a dot product of floats wakes all threads of BLAS. 255 * 255 is below 2 ** 16, 32,768 of them below 2 ** 32
        differences = np.maximum(some, others) - np.minimum(some, others)
        total += int(np.multiply(differences, differences, dtype=np.uint16).sum(dtype=np.uint32))
    return total
