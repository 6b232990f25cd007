"""How much of a JPEG that libjpeg complains of was decoded from its own data, and whether that is enough for a row.

libjpeg fills what it cannot decode and continues; its first complaint alone does not say how far the damage reaches. Called
only where it complained: a sound JPEG never comes here.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from packer.errors import DecodeError
from packer.pixels.formats import jpeg
from packer.pixels.formats.diagnose import plain
from packer.pixels.formats.opening import load_cut_jpeg
from packer.pixels.formats.turbojpeg import JpegDecoder

# Damage between two restart markers stays there. Of the JPEGs of this kind that the tests of other decoders take for whole, the
# worst (hopper_bad_exif.jpg of Pillow's) has 0.95.
_LEAST_DECODED = 0.95
# Encoders that write words of 32 bits leave up to 3 bytes of anything after the last code. Of 1,500 flipped bits in the data of
# six JPEGs (quality 50 to 95, all samplings, 2026-11-23) 173 left bytes over, and none of them less than 11.
_MOST_LEFT_OVER = 3
_QUANTIZATION, _RESTARTS, _SCAN = 0xDB, 0xDD, 0xDA
# what decoding needs beside the frame header: the tables of codes as well
_NEEDED = jpeg.FRAMES | {_QUANTIZATION, _RESTARTS, _SCAN, 0xC4, 0xCC}
_SCAN_STOP = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_LEFT_OVER = re.compile(r"(\d+) extraneous bytes before marker 0x(..)")
_CUT, _LACKS, _ODD_SCANS = "Premature end of JPEG", "premature end of data", "Inconsistent progression"
# jdhuff.c, jdphuff.c, jdmarker.c: what libjpeg warns of in the data of a scan and continues after; errors end a decode
_WARNING = re.compile(rf"{_LACKS}|{_ODD_SCANS}|extraneous bytes|bad (Huffman|arithmetic) code|found marker")
_START, _END = b"\xff\xd8", b"\xff\xd9"
# jpeglib.h, JPEG_MAX_DIMENSION
_MOST_SIDE = 65_500
# Looking at one takes 30 microseconds; of more, so many are looked at, evenly spread.
_MOST_INTERVALS = 4096


def decoded_share(header: jpeg.JpegHeader, data: bytes, decoder: JpegDecoder) -> float:
    """Return what share of a JPEG was decoded from its own data, 0 to 1; 1: libjpeg complains only of what is around it.

    Of one with restart markers: the share of the intervals that lack nothing. Of a progressive one: the share of the data
    that comes before the first damaged scan.

    Raises:
        DecodeError: what was not decoded is more than a row may lack.
    """
    walk = list(jpeg.segments(data))
    if walk[-1][0] != _SCAN:
        return 1.0  # libjpeg refused it, and so will Pillow
    for (marker, _, stop), (_, start, _) in pairwise(walk):
        # a table whose bytes were shifted leaves its last ones over
        if marker == _QUANTIZATION and data[stop:start].strip(b"\xff"):
            raise DecodeError("the JPEG's quantization table is damaged: bytes of it are left over")
    needed = [(marker, data[at:stop]) for marker, at, stop in walk if marker in _NEEDED]
    scan, frame = needed[-1][1], next(segment for marker, segment in needed if marker in jpeg.FRAMES)
    if walk[-1][2] > len(data):
        raise DecodeError("the JPEG is cut short")
    if min(len(scan), len(frame) - 2) < 8 or len(scan) != 8 + 2 * scan[4] or len(frame) != 10 + 3 * frame[9]:
        raise DecodeError("the JPEG's header is damaged")
    if not header.progressive:
        # what a scan may say of coefficients here is one thing, which libjpeg takes for said
        needed[-1] = (_SCAN, scan[:-3] + b"\0\x3f\0")
    bare = _Bare(needed, data[walk[-1][2] :], header)
    lines, complaint = bare.sound_part(decoder)
    if not complaint or _is_padding(complaint, bare.content):
        return 1.0
    if _CUT in complaint:
        raise DecodeError(f"the JPEG is cut short{_after(data, header)}")
    if header.progressive and _WARNING.search(complaint):
        return _share_of_scans(complaint, bare, decoder)
    if bare.restart_interval and _WARNING.search(complaint):
        share = _share_of_intervals(bare, decoder)
        if share >= _LEAST_DECODED:
            return share
    raise DecodeError(_reason(complaint, lines))


@dataclass(frozen=True)
class _Bare:
    """A JPEG without what decoding does not need, and without what stands between its segments.

    segments: (marker, bytes), up to the header of the first scan; content: all that follows that.
    """

    segments: list[tuple[int, bytes]]
    content: bytes
    header: jpeg.JpegHeader

    @property
    def tables(self) -> bytes:
        """SOI and all segments, without the scans."""
        return _START + b"".join(segment for _, segment in self.segments)

    @property
    def frame(self) -> bytes:
        """The SOF segment."""
        return next(segment for marker, segment in self.segments if marker in jpeg.FRAMES)

    @property
    def restart_interval(self) -> int:
        """How many units (MCUs) come between two restart markers; 0: there are no such markers."""
        found = [segment for marker, segment in self.segments if marker == _RESTARTS and len(segment) == 6]
        return int.from_bytes(found[-1][4:], "big") if found else 0

    def sound_part(self, decoder: JpegDecoder, stop: int | None = None) -> tuple[float, str]:
        """Decode up to libjpeg's first complaint, as JpegDecoder.sound_part. stop: as if the content ended there."""
        content = self.content if stop is None else self.content[:stop] + _END
        return decoder.sound_part(
            self.tables + content, (self.header.width, self.header.height), self.header.components
        )

    def scans(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield (start, stop, header) of each scan's data in the content."""
        offset = len(self.tables)
        data, start, scan = self.tables + self.content, offset, self.segments[-1][1]
        while True:
            found = _SCAN_STOP.search(data, start)
            stop = found.start() if found else len(data)
            yield start - offset, stop - offset, scan
            *_, (marker, at, start) = [(0, 0, 0), *jpeg.segments(data, stop)]
            if marker != _SCAN or start - at < 8 or start > len(data):
                return
            scan = data[at:start]

    def intervals(self) -> list[tuple[bytes, tuple[int, int]]]:
        """Return what is between two restart markers as JPEGs of one line of units, with their (width, height).

        Of intervals that are missing there is no content; none at all where they cannot be taken apart.
        """
        frame, interval = self.frame, self.restart_interval
        components = frame[9]
        # in a scan of one component a unit is a block
        sampling = frame[11::3][:components] if components > 1 else b"\x11"
        width, height = 8 * max(pair >> 4 for pair in sampling), 8 * max(pair & 15 for pair in sampling)
        units = math.ceil(self.header.width / width) * math.ceil(self.header.height / height)
        _, stop, scan = next(self.scans())
        if scan[4] != components or width * interval > _MOST_SIDE:
            return []
        parts = _RESTART.split(self.content[:stop])
        parts += [b""] * (math.ceil(units / interval) - len(parts))
        found = []
        for number in range(0, len(parts), math.ceil(len(parts) / _MOST_INTERVALS)):
            line = width * max(1, min(interval, units - number * interval))
            own = {_RESTARTS: b"", frame[1]: frame[:5] + struct.pack(">HH", height, line) + frame[9:]}
            tables = _START + b"".join(own.get(marker, segment) for marker, segment in self.segments)
            found.append((tables + parts[number] + _END, (line, height)))
        return found


def _reason(complaint: str, lines: float) -> str:
    """Say in plain words what a complaint of the data means. lines: the share decoded before it; 0: not known."""
    after = f" after {min(99, int(100 * lines))} %" if lines else ""
    if _LACKS in complaint:
        return f"the JPEG lacks part of its data{after}"
    if left := _LEFT_OVER.search(complaint):
        return f"the JPEG's data is damaged: {left[1]} bytes of it are left over"
    return f"the JPEG's data is damaged{after} ({plain(complaint)})"


def _is_padding(complaint: str, content: bytes) -> bool:
    """Return whether what libjpeg leaves over before the end is no data."""
    left = _LEFT_OVER.search(complaint)
    if left is None or left[2] != "d9":
        return False
    count, stop = int(left[1]), content.find(_END)
    return count <= _MOST_LEFT_OVER or len(set(content[max(0, stop - count) : stop])) == 1


def _share_of_scans(complaint: str, bare: _Bare, decoder: JpegDecoder) -> float:
    """Return the share of a progressive JPEG's data before its first damaged scan.

    Raises:
        DecodeError: it is less than a row may lack, and that scan is of DC or luma.
    """
    scans = list(bare.scans())
    sound, damaged = 0, len(scans)  # as many scans from the first on are sound; are not
    while damaged - sound > 1:
        count = (sound + damaged) // 2
        if bare.sound_part(decoder, scans[count - 1][1])[1]:
            damaged = count
        else:
            sound = count
    start, _, scan = scans[sound]
    share = start / max(1, len(bare.content))
    components, first_coefficient = scan[5:-3:2], scan[-3]
    # what is displaced in a scan gets values that it never had, in one that only adds bits too; in colors it is hardly seen
    gives_shape = first_coefficient == 0 or bare.frame[10] in components
    if gives_shape and share < _LEAST_DECODED and _ODD_SCANS not in complaint:
        raise DecodeError(f"{_reason(complaint, 0)}, in scan {sound + 1} of {len(scans)}")
    return share


def _share_of_intervals(bare: _Bare, decoder: JpegDecoder) -> float:
    """Return the share of the intervals between restart markers that lack nothing and leave nothing over.

    0: they cannot be distinguished.
    """
    lacking = left_over = 0
    intervals = bare.intervals()
    for data, size in intervals:
        complaint = decoder.sound_part(data, size, bare.header.components)[1]
        if _LEFT_OVER.search(complaint):
            left_over += not _is_padding(complaint, data)
        else:
            lacking += bool(complaint)
    # where most leave bytes over, what the file says of its intervals is wrong, and not the data of each: hopper_bad_exif.jpg
    damaged = lacking + (left_over if 2 * left_over <= len(intervals) else 0)
    return (len(intervals) - damaged) / len(intervals) if intervals else 0.0


def _after(data: bytes, header: jpeg.JpegHeader) -> str:
    """Say after what percentage of its lines a JPEG breaks off; a progressive one has some of every line."""
    image = None if header.progressive else load_cut_jpeg(data, (header.width, header.height))
    if image is None:
        return ""
    gray = np.asarray(image)
    # the last lines that are of one gray all over are the missing ones
    missing = int((gray[::-1] != gray[-1, -1]).any(axis=1).argmax())
    return f" after {min(99, 100 * (len(gray) - missing) // len(gray))} %"
