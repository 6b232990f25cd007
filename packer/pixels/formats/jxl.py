"""Headers of JPEG XL: size and orientation, read without decoding, as the plugin would decode all of it first.

ISO/IEC 18181-1:2024, annexes D (SizeHeader, ImageMetadata), and 18181-2 (boxes).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_CODESTREAM = b"\xff\x0a"
_CONTAINER = b"\0\0\0\x0cJXL \r\n\x87\n"
# width over height, by the three bits that may stand in place of a width
_RATIOS = {1: (1, 1), 2: (12, 10), 3: (4, 3), 4: (3, 2), 5: (16, 9), 6: (5, 4), 7: (2, 1)}
_SIZE_BITS = (9, 13, 18, 30)


@dataclass(frozen=True)
class JxlHeader:
    """What the codestream says. width and height are as stored, before the orientation, 1 to 8, which decoders undo."""

    width: int
    height: int
    orientation: int


def is_jxl(data: bytes) -> bool:
    """Whether data begins as a JPEG XL does, bare or in its container."""
    return data.startswith((_CODESTREAM, _CONTAINER))


def read_header(data: bytes) -> JxlHeader | None:
    """Read the header of a JPEG XL; None where there is none, or it breaks off."""
    bits = _Bits(_codestream(data))
    try:
        is_small = bits.take(1)
        height = _side(bits, is_small)
        ratio = bits.take(3)
        across, down = _RATIOS.get(ratio, (0, 1))
        width = height * across // down if ratio else _side(bits, is_small)
        is_default = bits.take(1)
        orientation = 1 + bits.take(3) if not is_default and bits.take(1) else 1
    except EOFError:
        return None
    return JxlHeader(width, height, orientation)


def _side(bits: _Bits, is_small: int) -> int:
    if is_small:
        return 8 * (1 + bits.take(5))
    return 1 + bits.take(_SIZE_BITS[bits.take(2)])


def _codestream(data: bytes) -> bytes:
    """Return what stands behind the signature of the codestream, or of its first part in a container; at most 32 bytes."""
    if data.startswith(_CODESTREAM):
        return data[2:34]
    at = len(_CONTAINER)
    while data.startswith(_CONTAINER) and at + 16 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        begin = at + 8
        if size == 1:  # 64 bits follow
            (size,), begin = struct.unpack_from(">Q", data, at + 8), at + 16
        begin += 4 if kind == b"jxlp" else 0  # the number of the part
        if kind in (b"jxlc", b"jxlp") and data.startswith(_CODESTREAM, begin):
            return data[begin + 2 : begin + 34]
        if size < 8:
            break
        at += size
    return b""


class _Bits:
    """Bits of bytes, the lowest of each byte first."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "little"), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits as a number; raises EOFError where there are fewer."""
        if count > self._left:
            raise EOFError
        value = self._value & ((1 << count) - 1)
        self._value >>= count
        self._left -= count
        return value
