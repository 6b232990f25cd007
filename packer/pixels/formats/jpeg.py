"""libjpeg-turbo through jpeg4py: the only module that knows either. Headers are read here without decoding.

jpeg4py treats libjpeg's warnings as errors and refuses some samplings; whoever calls must let Pillow decide about what it
refuses. What it accepts decodes to the same bytes as Pillow's. CMYK and YCCK are only checked here.
"""

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
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.errors import JpegError

# ISO/IEC 10918-1, table B.1: start-of-frame markers; 0xC4, 0xC8 and 0xCC are not frames
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})
# EXIF tag 0x0112, in both byte orders, before a type below 256, and XMP's name for it: any of them, and Pillow is asked
_ORIENTATION_MARKS = (b"\x01\x12\x00", b"\x12\x01", b"rientation")
_ICC_MARK = b"ICC_PROFILE\0"
# 65,535 of a segment, less its length, the mark, the number and the count
_ICC_BYTES = 65_519
# turbojpeg.h, enum TJPF and TJFLAG_STOPONWARNING: numbers that jpeg4py does not know
_TJPF_CMYK = 11
_STOP_ON_WARNING = 8192

# A pixel that libjpeg did not write: its RGBX has 255 last, and of inks hardly a pixel is that
_UNTOUCHED = np.array((7, 93, 171, 58), np.uint8)

# where jpeg4py 0.1.4 looks for libturbojpeg
_LIBRARIES = ("libturbojpeg.so.0", "turbojpeg.dll", "/opt/libjpeg-turbo/lib64/libturbojpeg.0.dylib")

# A scratch buffer above this is given back: one 50-megapixel image must not hold 200 MB for the rest of a pack.
_KEEP_BYTES = 32 << 20


@dataclass(frozen=True)
class JpegHeader:
    """What the frame header says. width and height are as stored, before any EXIF orientation.

    icc: the color profile, joined of its segments; b"" where there is none.
    """

    width: int
    height: int
    components: int
    precision: int
    progressive: bool
    lossless: bool
    may_be_rotated: bool
    icc: bytes = b""


def read_header(data: bytes) -> JpegHeader | None:
    """Walk the segments up to the first scan; None where the data is no JPEG or breaks off before a frame header."""
    size, may_be_rotated = len(data), False
    frame: tuple[int, int] | None = None
    profile: list[bytes] = []
    for marker, at, stop in segments(data):
        if marker in FRAMES:
            frame = frame or (at, marker)
        elif marker == 0xE1:
            segment = data[at + 4 : stop]
            may_be_rotated = may_be_rotated or any(mark in segment for mark in _ORIENTATION_MARKS)
        elif marker == 0xE2 and data.startswith(_ICC_MARK, at + 4):
            profile.append(data[at + 4 + len(_ICC_MARK) : stop])
    if frame is None or frame[0] + 10 > size:
        return None
    precision, height, width, components = struct.unpack_from(">BHHB", data, frame[0] + 4)
    kind = frame[1] & 3
    icc = joined_profile(profile) if profile else b""
    return JpegHeader(width, height, components, precision, kind == 2, kind == 3, may_be_rotated, icc)


def segments(data: bytes, at: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yield (marker, start, stop) of each segment up to the next scan's header (0xDA), as libjpeg finds them.

    at: where to begin; a file that begins as no JPEG has none.
    """
    size = len(data) if data[:2] == b"\xff\xd8" else 0
    while at + 4 <= size:
        if data[at] != 0xFF:
            # libjpeg skips what stands between two markers, with a warning
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


def joined_profile(parts: list[bytes]) -> bytes:
    """Return the color profile of APP2 segments, each with its number and their count in front (ICC.1:2022, annex B.4).

    One that lacks a segment is b"?": damaged.
    """
    numbers = sorted(parts, key=lambda part: part[:1])
    is_complete = [part[:2] for part in numbers] == [bytes([n, len(parts)]) for n in range(1, len(parts) + 1)]
    return b"".join(part[2:] for part in numbers) if is_complete else b"?"


def profile_segments(profile: bytes) -> bytes:
    """Return the APP2 segments of a color profile, as `joined_profile` reads them."""
    parts = [profile[at : at + _ICC_BYTES] for at in range(0, len(profile), _ICC_BYTES)]
    contents = [_ICC_MARK + bytes([number, len(parts)]) + part for number, part in enumerate(parts, start=1)]
    return b"".join(b"\xff\xe2" + struct.pack(">H", len(content) + 2) + content for content in contents)


class JpegDecoder:
    """Decodes into one reused buffer; one a process, not thread-safe."""

    def __init__(self) -> None:
        self._scratch: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def is_available(self) -> bool:
        """Whether jpeg4py and the system's libturbojpeg were found."""
        return _is_installed()

    def decode(self, data: bytes, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Decode to uint8[height, width, 4] (RGBX), valid until the next call.

        Args:
            width, height: as in the header, or exactly ceil(w / s) x ceil(h / s) of it for s = 2, 4, 8: libjpeg's DCT
                scaling. Anything else would leave rows of the buffer untouched.

        Raises:
            JpegError: libjpeg-turbo refused or warned.
        """
        return self._decode(data, width, height, _load()._cffi.TJPF_RGBX)

    def check(self, data: bytes, size: tuple[int, int], components: int) -> None:
        """Decode at an eighth of the size = (width, height), which reads all the data, for what libjpeg says of it.

        Raises:
            JpegError: libjpeg-turbo refused or warned.
        """
        self._decode(data, -(-size[0] // 8), -(-size[1] // 8), self._format(components))

    def sound_part(self, data: bytes, size: tuple[int, int], components: int) -> tuple[float, str]:
        """Decode at an eighth of the size = (width, height), up to libjpeg's first complaint.

        Returns the share of the lines that were decoded before it, 0 to 1, and the complaint, "" where there is none. The
        share is 0 where libjpeg reads all scans before it gives a line: of progressive JPEGs and those of several scans.
        """
        width, height = -(-size[0] // 8), -(-size[1] // 8)
        pixels = self._buffer(width * height * 4).reshape(height, width, 4)
        pixels[:] = _UNTOUCHED
        message = self._decompress(data, pixels, self._format(components), _STOP_ON_WARNING)
        return 1 - float((pixels[:, -1] == _UNTOUCHED).all(axis=-1).mean()), message

    def _format(self, components: int) -> int:
        return _TJPF_CMYK if components == 4 else int(_load()._cffi.TJPF_RGBX)

    def _decode(self, data: bytes, width: int, height: int, pixel_format: int) -> npt.NDArray[np.uint8]:
        pixels = self._buffer(width * height * 4).reshape(height, width, 4)
        message = self._decompress(data, pixels, pixel_format, 0)
        if message:
            raise JpegError(message)
        return pixels

    def _decompress(self, data: bytes, pixels: npt.NDArray[np.uint8], pixel_format: int, flags: int) -> str:
        """Decode into pixels; returns libjpeg's complaint, "" for none.

        With a handle of its own: one that is used again decodes a JPEG that lacks its tables with those of the one before,
        and after some errors it refuses every good one. jpeg4py keeps its own.
        """
        cffi: Any = _load()._cffi
        source = cffi.ffi.from_buffer("unsigned char[]", data)
        target = cffi.ffi.from_buffer("unsigned char[]", pixels, require_writable=True)
        height, width, _ = pixels.shape
        handle = cffi.lib.tjInitDecompress()
        if handle == cffi.ffi.NULL:
            raise MemoryError
        try:
            failed = cffi.lib.tjDecompress2(
                handle, source, len(data), target, width, width * 4, height, pixel_format, flags
            )
            return cffi.ffi.string(cffi.lib.tjGetErrorStr()).decode("utf-8", "replace") if failed else ""
        finally:
            cffi.lib.tjDestroy(handle)

    def _buffer(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        if size_bytes > _KEEP_BYTES:
            self._scratch = np.empty(0, np.uint8)
            return np.empty(size_bytes, np.uint8)
        if len(self._scratch) < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch[:size_bytes]


def version() -> str | None:
    """Return jpeg4py's version, None where it or libturbojpeg is missing."""
    if not _is_installed():
        return None
    from importlib.metadata import version as distribution_version

    return distribution_version("jpeg4py")


def library_version() -> str | None:
    """Return the version of the libturbojpeg that is loaded, None if unknown."""
    if not _is_installed():
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
def _is_installed() -> bool:
    """Load libturbojpeg as jpeg4py would, without importing that: cffi's parser of C takes 80 ms (2026-11-22)."""
    if not all(importlib.util.find_spec(name) for name in ("jpeg4py", "cffi")):
        return False
    for name in _LIBRARIES:
        with contextlib.suppress(OSError):
            ctypes.CDLL(name)
            return True
    return False


@functools.cache
def _load() -> Any:
    """Import jpeg4py and let it find libturbojpeg."""
    import jpeg4py

    jpeg4py._cffi.initialize()
    # its decode asks this table how many bytes a pixel has
    jpeg4py._cffi.tjPixelSize.setdefault(_TJPF_CMYK, 4)
    return jpeg4py
