"""Plain PNGs without Pillow: 8 bits of gray or RGB, not interlaced, and nothing in them that changes what pixels mean.

Chunks are read here, as PNG (third edition, W3C 2025) lays them out, zlib inflates, and the compiled part undoes the filters.
What is anything else, or not sound in every byte, is left to Pillow, which makes the same pixels and whose reasons are worded.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER = struct.Struct(">IIBBBBB")
# Color type -> channels.
_CHANNELS = {0: 1, 2: 3}
# Chunks that may stand beside the pixels, of which a row heeds nothing, and their bytes: Pillow refuses shorter ones.
_IGNORED = {b"pHYs": 9, b"tIME": 7, b"gAMA": 4, b"cHRM": 32, b"sRGB": 1}


@dataclass(frozen=True)
class PlainPng:
    """The header of a plain PNG, and its pixels as they are compressed."""

    width: int
    height: int
    channels: int
    compressed: bytes

    def filtered(self) -> bytes | None:
        """Inflate the lines, each with the number of its filter in front; None where they are not exactly the picture's."""
        return inflated(self.compressed, self.height * (1 + self.width * self.channels))


def inflated(compressed: bytes, size: int) -> bytes | None:
    """Inflate size bytes; None where there are not exactly so many."""
    inflate = zlib.decompressobj()
    try:
        data = inflate.decompress(compressed, size + 1)
    except zlib.error:
        return None
    return data if len(data) == size and inflate.eof and not inflate.unused_data else None


def read_plain(data: bytes) -> PlainPng | None:
    """Read a PNG's chunks; None where it is not plain, or a checksum is wrong, or there is more or less than a PNG."""
    if not data.startswith(_SIGNATURE):
        return None
    at, before = len(_SIGNATURE), b""
    kinds: list[tuple[bytes, int]] = []
    parts: list[bytes] = []
    while at + 12 <= len(data):
        stop = at + 12 + int.from_bytes(data[at : at + 4], "big")
        kind = data[at + 4 : at + 8]
        if zlib.crc32(data[at + 4 : stop - 4]) != int.from_bytes(data[stop - 4 : stop], "big"):
            return None
        if kind == b"IDAT":
            if parts and before != kind:  # they follow each other
                return None
            parts.append(data[at + 8 : stop - 4])
        elif _IGNORED.get(kind) != stop - at - 12:
            kinds.append((kind, at))
        at, before = stop, kind
    if [kind for kind, _ in kinds] != [b"IHDR", b"IEND"] or at != len(data) or kinds[0][1] != len(_SIGNATURE):
        return None
    if kinds[1][1] != len(data) - 12 or data[8:12] != b"\0\0\0\x0d":
        return None
    width, height, bits, color, *rest = _HEADER.unpack_from(data, 16)
    if bits != 8 or color not in _CHANNELS or rest != [0, 0, 0] or not (width and height):
        return None
    return PlainPng(width, height, _CHANNELS[color], parts[0] if len(parts) == 1 else b"".join(parts))


def gray_to_rgb(gray: bytes) -> bytes:
    """Repeat each value three times."""
    rgb = bytearray(3 * len(gray))
    rgb[0::3] = rgb[1::3] = rgb[2::3] = gray
    return bytes(rgb)
