"""Hostile stores whose rows are JPEGs: how a valid store of raw rows becomes one of those, and their faults by name."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from packer.workers.frame_writer import packed_rows, with_errors
from reader.format.fields import write_record
from reader.format.manifest import SAMPLES
from reader.format.tensors import Compression
from tests.hostile._frames import FRAMES, files_of, frames_of, put_frames, reframe
from tests.hostile._stores import JPEG, JPEG_KINDS, SHAPES, SIDE, Draft, Fault

_FORM = "jpeg:95"
_ROW = 5
_CHECKSUM_BYTES = 4
# ISO/IEC 10918-1: start of frame, start of scan, end of image
_SOF0, _SOS, _EOI = b"\xff\xc0", b"\xff\xda", b"\xff\xd9"


def encode(
    head: dict[str, Any],
    blocks: list[Any],
    rows: Sequence[bytes],
    sides: Sequence[tuple[int, int]],
    samples: bytes,
) -> dict[str, bytes]:
    """Make a head and blocks of raw rows say so of JPEGs; returns the files that replace theirs."""
    pixels = np.frombuffer(b"".join(rows), np.uint8)
    made, kept, errors = packed_rows(_FORM, head["channels"], pixels, [*map(len, rows)], sides)
    ends = [0, *itertools.accumulate(map(len, rows))]
    lines = with_errors(samples, errors)
    begins = [0, *itertools.accumulate(map(len, lines.splitlines(keepends=True)))]
    start = 0
    for block in blocks:
        stop = start + block[0]
        block[2:] = [begins[start], sum(map(len, made[start:stop])), zlib.crc32(kept[ends[start] : ends[stop]])]
        start = stop
    head["reader_features"] += ["compressed-rows", "jpeg-rows"]
    compression = Compression.of(_FORM, len(pixels), sum(errors))
    assert compression is not None
    head["compression"] = write_record(compression)
    head["options"]["compress"] = _FORM
    head["decoders"]["jpeg"] = {"pillow": "0", "libjpeg_turbo": "0"}
    return files_of(made) | {SAMPLES: lines}


def signed(data: bytes) -> bytes:
    """Return the frame of a JPEG."""
    return data + struct.pack("<I", zlib.crc32(data))


def resigned(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    """Return what makes another frame with a right checksum, of what a change makes of the JPEG."""
    return lambda frame: signed(change(frame[:-_CHECKSUM_BYTES]))


def picture(height: int = SIDE, width: int = SIDE, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG that Pillow makes."""
    written = io.BytesIO()
    Image.new(mode, (width, height)).save(written, "JPEG", **{"quality": 95, "subsampling": 0, **options})
    return written.getvalue()


def _frame(change: Callable[[bytes], bytes]) -> Fault:
    return Fault(JPEG, reframe(_ROW, change), "verify")


def _jpeg(change: Callable[[bytes], bytes]) -> Fault:
    return _frame(resigned(change))


def _other(data: bytes) -> Fault:
    return _jpeg(lambda before: data)


def _put(mark: bytes, offset: int, value: bytes) -> Fault:
    """Put bytes so far behind a marker."""

    def change(data: bytes) -> bytes:
        at = data.index(mark) + offset
        return data[:at] + value + data[at + len(value) :]

    return _jpeg(change)


def _before(mark: bytes, what: Callable[[bytes], bytes]) -> Fault:
    """Put something in front of a marker."""
    return _jpeg(lambda data: data.replace(mark, what(data) + mark, 1))


def _frame_header(data: bytes) -> bytes:
    at = data.index(_SOF0)
    return data[at : at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")]


def _head(key: str, value: Any, says: str = "opening") -> Fault:
    return Fault(JPEG, lambda draft: draft.head["compression"].__setitem__(key, value), says)


def _features(names: list[str], kind: str = JPEG) -> Fault:
    return Fault(kind, lambda draft: draft.head.update(reader_features=names), "opening")


def _exchange_two(draft: Draft) -> None:
    made = frames_of(draft)
    made[_ROW], made[_ROW + 1] = made[_ROW + 1], made[_ROW]
    put_frames(draft, made)


def _error(value: object) -> Fault:
    return Fault(JPEG, lambda d: d.line(SAMPLES, _ROW, lambda line: line | {"squared_error": value}), "verify")


JPEG_FAULTS: dict[str, Fault] = {
    # frames
    "a JPEG without its checksum": _frame(lambda frame: frame[:-_CHECKSUM_BYTES]),
    "a JPEG with another checksum": _frame(lambda frame: frame[:-1] + bytes([frame[-1] ^ 1])),
    "a JPEG's frame has three bytes": _frame(lambda frame: frame[:3]),
    "a JPEG's frame is a checksum": _frame(lambda frame: bytes(_CHECKSUM_BYTES)),
    "a JPEG's frame is pixels": _frame(lambda frame: signed(bytes(3 * SIDE * SIDE))),
    "a JPEG's frame is far too long": _jpeg(lambda data: data + bytes(20_000)),
    "a JPEG of another size": _other(picture(SIDE, 2 * SIDE)),
    "a JPEG of another size and as many pixels": _other(picture(SIDE // 2, 2 * SIDE)),
    "a JPEG that claims 65,535 x 65,535": _put(_SOF0, 5, b"\xff" * 4),
    "a JPEG without lines": _put(_SOF0, 5, b"\0\0"),
    "a JPEG of 12 bits": _put(_SOF0, 4, b"\x0c"),
    "a JPEG of 255 components": _put(_SOF0, 9, b"\xff"),
    "a JPEG whose components have other names": _put(_SOF0, 10, b"R"),
    "a JPEG with a factor of 4": _put(_SOF0, 11, b"\x44"),
    "a JPEG without a table": _put(_SOF0, 12, b"\x03"),
    "a JPEG with arithmetic codes": _put(_SOF0, 1, b"\xc9"),
    "a gray JPEG": _other(picture(mode="L")),
    "a JPEG of inks": _other(picture(mode="CMYK")),
    "a progressive JPEG": _other(picture(progressive=True)),
    "a subsampled JPEG": _other(picture(subsampling=2)),
    "a JPEG with a comment": _other(picture(comment=b"x")),
    "a JPEG with restarts": _other(picture(restart_marker_blocks=1)),
    "a JPEG with two frame headers": _before(_SOS, _frame_header),
    "a JPEG in a JPEG": _before(_SOS, lambda data: data),
    "a JPEG whose segment ends behind it": _put(b"\xff\xdb", 2, b"\xff\xff"),
    "a JPEG whose segment has no bytes": _put(b"\xff\xdb", 2, b"\0\0"),
    "a JPEG whose scan has one component": _put(_SOS, 4, b"\1"),
    "a JPEG without its scan": _jpeg(lambda data: data[: data.index(_SOS)] + _EOI),
    "a JPEG without codes": _jpeg(lambda data: data[: data.index(_SOS) + 14] + _EOI),
    "a JPEG of half its codes": _jpeg(lambda data: data[: (data.index(_SOS) + 14 + len(data)) // 2] + _EOI),
    "a JPEG without its end": _jpeg(lambda data: data[:-2]),
    "a JPEG and a byte": _jpeg(lambda data: data + b"\0"),
    "a JPEG and the same again": _jpeg(lambda data: data + data),
    "two JPEGs of each other": Fault(JPEG, _exchange_two, "verify"),
    "a JPEG's frame begins before the file": Fault(JPEG, lambda d: d.patch(FRAMES, "q", 2 * _ROW, -1), "verify"),
    "a JPEG's row has another shape": Fault(JPEG_KINDS[1], lambda d: d.patch(SHAPES, "i", 9, 3), "verify"),
    # what the manifest and the lines say of them
    "jpeg-rows alone": _features(["jpeg-rows"]),
    "jpeg-rows with masks": _features(["own-sizes", "own-masks", "compressed-rows", "jpeg-rows"], JPEG_KINDS[1]),
    "jpeg-rows of raw rows": _features(["jpeg-rows"], "class"),
    "JPEGs without jpeg-rows": _features(["compressed-rows"]),
    "jpeg-rows of four channels": Fault(
        JPEG, lambda d: d.head.update(channels=4, mean=[0.5] * 4, std=[0.5] * 4), "opening"
    ),
    "compression of JPEGs is absent": Fault(JPEG, lambda d: d.head.pop("compression"), "opening"),
    "codec of JPEGs is zstd": _head("codec", "zstd"),
    "quality is 0": _head("quality", 0),
    "quality is 101": _head("quality", 101),
    "quality is a text": _head("quality", "95"),
    "subsampling is a later one": _head("subsampling", "4:2:0"),
    "bytes of JPEGs' pixels are others": _head("pixel_bytes", 1),
    "squared_error is negative": _head("squared_error", -1),
    "squared_error is more than pixels differ": _head("squared_error", 65_025 * 14 * 192 + 1),
    "squared_error is beyond 64 bits": _head("squared_error", 1 << 70),
    "squared_error is another's": _head("squared_error", 1, says="verify"),
    "squared_error of a row is another's": _error(0),
    "squared_error of a row is negative": _error(-1),
    "squared_error of a row is a text": _error("many"),
}
