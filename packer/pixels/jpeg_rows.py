"""Rows that a store keeps as JPEGs: a row is then what its JPEG decodes to, and it is known what that has lost."""

from __future__ import annotations

import dataclasses

import numpy as np

from packer.errors import DecodeError
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row, RowDecoder
from reader import frames
from reader.format.errors import RowSizeError

# What a line of samples.jsonl calls it.
SQUARED_ERROR = "squared_error"


class JpegRowDecoder:
    """As another decoder, but rows have gone through a JPEG: their pixels, and the frame that a store keeps.

    Args:
        form: "jpeg:95".
    """

    def __init__(self, decoder: RowDecoder, geometry: Geometry, form: str, channels: int) -> None:
        self._decoder = decoder
        self._sides = geometry.common_sides
        self._lossy = frames.LossyPacker(form, channels)

    def row(self, data: bytes) -> Row:
        """Decode one image into a row; raises DecodeError."""
        row = self._decoder.row(data)
        height, width = self._sides or row.content[2:]
        try:
            made = self._lossy.pack(np.frombuffer(row.pixels, np.uint8), height, width)
        except RowSizeError as e:
            raise DecodeError(str(e)) from e
        done = row.done | {SQUARED_ERROR: made.squared_error}
        return dataclasses.replace(row, pixels=made.pixels.tobytes(), frame=made.frame, done=done)
