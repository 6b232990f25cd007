"""JPEG headers, read without decoding, and the libjpeg-turbo in use. Imports neither that nor numpy."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from packer.system import installed_version

# ISO/IEC 10918-1, table B.1: start-of-frame markers; 0xC4, 0xC8 and 0xCC are not frames
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
# EXIF tag 0x0112, in both byte orders, before a type below 256: only then Pillow may find it
_ORIENTATION_MARKS = (b"\x01\x12\x00", b"\x12\x01")
# The key in XMP by which Pillow turns a picture.
_TURNING_XMP = re.compile(rb'tiff:Orientation(?:="|>)[2-8]')
# that tag, and the type of its value (TIFF 6.0, section 2)
_ORIENTATION, _SHORT = 0x0112, 3
# Bytes per value of each type that Pillow reads; an entry of more than 4 bytes is stored elsewhere.
_INLINE_BYTES = 4
_VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
# the mark, TIFF's header, and a directory's count
_LEAST_EXIF_BYTES = 16
_EXIF_MARK = b"Exif\0\0"
# where jpeg4py 0.1.4 looks for libturbojpeg, on Linux and macOS
_LIBRARIES = ("libturbojpeg.so.0", "/opt/libjpeg-turbo/lib64/libturbojpeg.0.dylib")


@dataclass(frozen=True)
class JpegHeader:
    """The fields of a frame header. width and height are as stored, before any EXIF orientation."""

    width: int
    height: int
    components: int
    progressive: bool
    may_be_rotated: bool


def read_header(data: bytes) -> JpegHeader | None:
    """Walk the segments up to the first scan; None if the data ends before a frame header, or is no JPEG of 8 bits.

    None for a lossless JPEG too: versions of libjpeg-turbo differ on it.
    """
    if not data.startswith(b"\xff\xd8"):
        return None
    size, named = len(data), list[bytes]()
    frame: tuple[int, int] | None = None
    for marker, at, stop in _segments(data):
        if marker in _FRAMES:
            frame = frame or (at, marker)
        elif marker == 0xE1:
            named.append(data[at + 4 : stop])
    if frame is None or frame[0] + 10 > size:
        return None
    precision, height, width, components = struct.unpack_from(">BHHB", data, frame[0] + 4)
    kind = frame[1] & 3
    if precision != 8 or kind == 3:
        return None
    return JpegHeader(width, height, components, kind == 2, _may_be_rotated(named))


def _may_be_rotated(segments: list[bytes]) -> bool:
    """Whether APP1 segments may turn the picture: Pillow reads the first EXIF, then XMP."""
    for segment in segments:
        if not segment.startswith(_EXIF_MARK):
            if _TURNING_XMP.search(segment):
                return True
        elif any(mark in segment for mark in _ORIENTATION_MARKS) and not _is_upright(segment):
            return True
    return False


def _is_upright(segment: bytes) -> bool:
    """Whether the first directory of this EXIF has no orientation, or a SHORT that turns nothing, as Pillow reads it.

    If the value of an entry is cut off, Pillow reads no further entry, but XMP.
    """
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(segment[6:10])
    if order is None or len(segment) < _LEAST_EXIF_BYTES:
        return False
    tiff = segment[6:]
    (first,) = struct.unpack_from(f"{order}I", tiff, 4)
    if first > len(tiff) - 2:
        return False
    (count,) = struct.unpack_from(f"{order}H", tiff, first)
    if 12 * count > len(tiff) - 2 - first:
        return False
    found: list[bool] = []
    for at in range(first + 2, first + 2 + 12 * count, 12):
        tag, kind, values, offset = struct.unpack_from(f"{order}HHII", tiff, at)
        size_bytes = _VALUE_BYTES.get(kind, 0) * values
        if size_bytes > _INLINE_BYTES and offset + size_bytes > len(tiff):
            return False
        if tag == _ORIENTATION:
            (value,) = struct.unpack_from(f"{order}H", tiff, at + 8)
            found.append((kind, values) == (_SHORT, 1) and not 2 <= value <= 8)
    return found in ([], [True])


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of each segment of a JPEG up to the first scan's header (0xDA), as libjpeg finds them."""
    at, size = 2, len(data)
    while at + 4 <= size:
        if data[at] != 0xFF:
            # libjpeg skips bytes between two markers, with a warning
            at = data.find(b"\xff", at)
            if at < 0:
                return
            continue
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        # FF 00 is no marker either (jdmarker.c, next_marker)
        if marker == 0 or marker in _STANDALONE:
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if marker == 0xD9 or length < 2:
            return
        yield marker, at, at + 2 + length
        if marker == 0xDA:
            return
        at += 2 + length


def version() -> str | None:
    """Return jpeg4py's version, or None if it or libturbojpeg is missing."""
    if not is_installed():
        return None
    return installed_version("jpeg4py")


def library_version() -> str | None:
    """Return the version of the libturbojpeg that is loaded, None if unknown."""
    if not is_installed():
        return None
    try:
        with open("/proc/self/maps") as maps:
            return version_in(next(line.split()[-1] for line in maps if "turbojpeg" in os.path.basename(line)))
    except (OSError, StopIteration):
        return None


def version_in(path: str | None) -> str | None:
    """Return libjpeg-turbo's version as its file states it (TurboJPEG 2 has no call for it), None if unknown."""
    try:
        with open(path or "", "rb") as library:
            match = re.search(rb"libjpeg-turbo version (\d+(?:\.\d+)*)", library.read())
    except OSError:
        return None
    return match[1].decode() if match else None


@functools.cache
def is_installed() -> bool:
    """Load libturbojpeg as jpeg4py would, without importing that: cffi's parser of C is slow."""
    if not all(importlib.util.find_spec(name) for name in ("jpeg4py", "cffi")):
        return False
    for name in _LIBRARIES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False
