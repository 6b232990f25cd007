"""The faults of hostile stores whose rows are compressed, by name; see `_faults`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from reader.format.manifest import PIXELS
from tests.hostile._frames import (
    FRAMES,
    flipped,
    frames_of,
    in_two,
    of_size,
    put_frames,
    reframe,
    shorter,
    skipped,
    with_dictionary,
    with_window,
    without_checksum,
    without_size,
)
from tests.hostile._stores import (
    COMPRESSED,
    FRAME_KINDS,
    MASK_OFFSETS,
    OFFSETS,
    SHAPES,
    Draft,
    Fault,
)

_OWN = FRAME_KINDS[1]
# of the rows of a valid store, 8 x 8 x 3 each
_ROW, _ROWS_BYTES = 5, 14 * 192


def _frame(change: Callable[[bytes], bytes]) -> Fault:
    return Fault(COMPRESSED, reframe(_ROW, change), "verify")


def _span(index: int, value: int) -> Fault:
    return Fault(COMPRESSED, lambda draft: draft.patch(FRAMES, "q", 2 * _ROW + index, value), "verify")


def _head(key: str, value: Any, kind: str = COMPRESSED, says: str = "opening") -> Fault:
    return Fault(kind, lambda draft: draft.head["compression"].__setitem__(key, value), says)


def _block(number: int, index: int, value: Any, says: str = "blocks", kind: str = COMPRESSED) -> Fault:
    return Fault(kind, lambda draft: draft.blocks[number].__setitem__(index, value), says)


def _own(name: str, code: str, index: int, value: int) -> Fault:
    return Fault(_OWN, lambda draft: draft.patch(name, code, index, value), "verify")


def _leave_a_gap(draft: Draft) -> None:
    """Put a skippable frame between two rows, where no row's bytes are."""
    made, gap = frames_of(draft), skipped(8)
    made[_ROW] += gap
    put_frames(draft, made)
    begin = sum(map(len, made[:_ROW]))
    draft.patch(FRAMES, "q", 2 * _ROW + 1, begin + len(made[_ROW]) - len(gap))


def _share_a_frame(draft: Draft) -> None:
    begin = sum(map(len, frames_of(draft)[: _ROW - 1]))
    end = begin + len(frames_of(draft)[_ROW - 1])
    draft.patch(FRAMES, "q", 2 * _ROW, begin)
    draft.patch(FRAMES, "q", 2 * _ROW + 1, end)


def _exchange_two(draft: Draft) -> None:
    made = frames_of(draft)
    made[_ROW], made[_ROW + 1] = made[_ROW + 1], made[_ROW]
    put_frames(draft, made)


def _declare_large_rows(draft: Draft) -> None:
    """Declare rows of 8 GiB each, as many as frames of this size could hold if each byte of them stood for its most."""
    side = 1 << 15
    draft.head.update(height=side, width=side, content=False)
    draft.head["files"].pop("_tensordict/content.memmap")
    os.remove(draft.out / "_tensordict/content.memmap")
    draft.head["compression"]["pixel_bytes"] = 14 * side * side * 3


def _fill(draft: Draft) -> None:
    pixels = draft.read(PIXELS)
    draft.write(PIXELS, pixels[:-1] + b"x")


FRAME_FAULTS: dict[str, Fault] = {
    # frames
    "a frame without a checksum": _frame(without_checksum),
    "a frame without a size": _frame(without_size),
    "a frame with a dictionary": _frame(with_dictionary),
    "a frame with a window of 2 GiB": _frame(with_window),
    "a frame that claims 2^40 bytes": _frame(of_size(1 << 40)),
    "a frame that claims 2^63 bytes": _frame(of_size(1 << 63)),
    "a frame that claims its row and has 100,000 bytes": _frame(of_size(192)),
    "a frame of less than its row": _frame(shorter),
    "a row of two frames": _frame(in_two),
    "a frame and the same again": _frame(lambda frame: frame + frame),
    "a frame behind one that is skipped": _frame(lambda frame: skipped(8) + frame),
    "a frame before one that is skipped": _frame(lambda frame: frame + skipped(8)),
    "a row of a frame that is skipped": _frame(lambda frame: skipped(192)),
    "a frame and a byte": _frame(lambda frame: frame + b"\0"),
    "a frame without its last byte": _frame(lambda frame: frame[:-1]),
    "a frame without its header": _frame(lambda frame: frame[4:]),
    "a frame with another checksum": _frame(flipped),
    "a frame is pixels": _frame(lambda frame: bytes(192)),
    "two rows of each other": Fault(COMPRESSED, _exchange_two, "verify"),
    # where they are
    "a frame begins before the file": _span(0, -1),
    "a frame ends behind the file": _span(1, 1 << 40),
    "a frame ends at 2^63 - 1": _span(1, (1 << 63) - 1),
    "a frame has no bytes": _span(1, 0),
    "a frame begins at 2^62": _span(0, 1 << 62),
    "a frame begins in the one before": _span(0, 1),
    "two rows share a frame": Fault(COMPRESSED, _share_a_frame, "verify"),
    "there is a gap between frames": Fault(COMPRESSED, _leave_a_gap, "verify"),
    "there is something behind the frames": Fault(COMPRESSED, _fill, "verify"),
    "bytes of a block of frames are negative": _block(0, 3, -5),
    "bytes of a block of frames are huge": _block(0, 3, 1 << 40),
    "a checksum of pixels of 40 bits": _block(0, 4, 1 << 40),
    "a checksum of pixels is another's": _block(0, 4, 1, says="verify"),
    "a block of frames has three numbers": Fault(COMPRESSED, lambda d: d.blocks[0].__delitem__(slice(3, 5)), "blocks"),
    "a block of frames has six numbers": Fault(COMPRESSED, lambda d: d.blocks[0].append(5), "blocks"),
    # what the manifest says of them
    "compression is absent": Fault(COMPRESSED, lambda d: d.head.pop("compression"), "opening"),
    "compression is a list": Fault(COMPRESSED, lambda d: d.head.update(compression=["zstd"]), "opening"),
    "compression of raw rows": Fault("class", lambda d: d.head.update(compression={"codec": "x"}), "harmless"),
    "compressed-rows of raw rows": Fault(
        "class", lambda d: d.head.update(reader_features=["compressed-rows"]), "opening"
    ),
    "frames without compressed-rows": Fault(COMPRESSED, lambda d: d.head.update(reader_features=[]), "opening"),
    "codec is a later one": _head("codec", "lz4"),
    "codec is a list": _head("codec", ["zstd"]),
    "predictor is a later one": _head("predictor", "paeth"),
    "level is a text": _head("level", "1"),
    "level is 99": _head("level", 99),
    "bytes of pixels are others": _head("pixel_bytes", _ROWS_BYTES + 1),
    "bytes of pixels are negative": _head("pixel_bytes", -1),
    "bytes of pixels are huge": _head("pixel_bytes", 1 << 62, kind=_OWN),
    "bytes of pixels are beyond 64 bits": _head("pixel_bytes", 1 << 70, kind=_OWN),
    "rows are larger than frames can hold": Fault(COMPRESSED, _declare_large_rows, "opening"),
    "options.compress is a number": Fault(COMPRESSED, lambda d: d.head["options"].update(compress=1), "opening"),
    # rows with sizes of their own
    "a shape of a frame is another's": _own(SHAPES, "i", 9, 3),
    "a shape of a frame exceeds its block": _own(SHAPES, "i", 9, 1 << 20),
    "an offset of a row unpacked is negative": _own(OFFSETS, "q", 3, -8),
    "an offset of a row unpacked is 2^62": _own(OFFSETS, "q", 3, 1 << 62),
    "a mask of a row unpacked is elsewhere": _own(MASK_OFFSETS, "q", 3, 0),
    "a frame with its mask is cut": Fault(_OWN, reframe(_ROW, shorter), "verify"),
}
