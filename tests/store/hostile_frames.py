"""Compressed rows of hostile stores: how a valid store of raw rows becomes one of frames, and what may be wrong with a frame.

A frame is written by zstandard, or byte by byte where that writes none so; see RFC 8878.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import zstandard

from reader import frames
from reader.format.fields import write_record
from reader.format.manifest import PIXELS
from reader.format.row_kinds import PAGE_BYTES
from reader.format.tensors import Compression

FRAMES = "_tensordict/frames.memmap"
_MAGIC = b"\x28\xb5\x2f\xfd"
_CHECKSUM_BYTES = 4
# Enough samples for zstd to make a dictionary of.
_DICTIONARY_BYTES, _SAMPLES = 1000, [bytes((n * k) % 251 for n in range(600)) for k in range(1, 200)]
# A frame with a checksum whose header has a window, and 4 or 8 bytes of size; of one segment without a window.
_WINDOW, _ONE_SEGMENT = 0x84, 0xE4
_RAW, _REPEATED = 0, 1


class _StoreDraft(Protocol):
    """What is used of a `Draft`."""

    head: dict[str, Any]
    blocks: list[Any]

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the store."""
        ...

    def seal_blocks(self) -> None:
        """Make the checksums of blocks right again."""
        ...


def compress(
    head: dict[str, Any], blocks: list[Any], rows: Sequence[bytes], sides: Sequence[tuple[int, int]]
) -> dict[str, bytes]:
    """Make a head and blocks of raw rows, whose checksums are right, say so of frames; returns the files that replace theirs."""
    packer = frames.Packer(head["channels"])
    made = [packer.pack(np.frombuffer(row, np.uint8), *side) for row, side in zip(rows, sides, strict=True)]
    start = 0
    for block in blocks:
        block[3:] = [sum(map(len, made[start : start + block[0]])), block[1]]
        start += block[0]
    head["reader_features"].append("compressed-rows")
    compression = Compression.of("zstd", sum(map(len, rows)))
    assert compression is not None
    head["compression"] = write_record(compression)
    head["options"]["compress"] = "zstd"
    head["decoders"]["zstd"] = {"zstandard": "0", "zstd": "0"}
    return files_of(made)


def frames_of(draft: _StoreDraft) -> list[bytes]:
    """Return the frames of a store."""
    pixels, table = draft.read(PIXELS), draft.read(FRAMES)
    return [pixels[begin:end] for begin, end in struct.iter_unpack("<2q", table)]


def put_frames(draft: _StoreDraft, made: Sequence[bytes]) -> None:
    """Put frames in place of a store's, with the table and the blocks that they have."""
    for name, content in files_of(made).items():
        draft.write(name, content)
    start = 0
    for block in draft.blocks:
        block[3] = sum(map(len, made[start : start + block[0]]))
        start += block[0]
    draft.seal_blocks()


def reframe(row: int, change: Callable[[bytes], bytes]) -> Callable[[_StoreDraft], None]:
    """Return what puts another frame in place of a row's."""

    def put(draft: _StoreDraft) -> None:
        made = frames_of(draft)
        made[row] = change(made[row])
        put_frames(draft, made)

    return put


def without_checksum(frame: bytes) -> bytes:
    """Return a frame of the same content that has no checksum."""
    return zstandard.ZstdCompressor(level=1).compress(_content(frame))


def without_size(frame: bytes) -> bytes:
    """Return a frame of the same content that does not say how much it is."""
    return zstandard.ZstdCompressor(level=1, write_checksum=True, write_content_size=False).compress(_content(frame))


def with_dictionary(frame: bytes) -> bytes:
    """Return a frame of the same content that a dictionary is needed for."""
    made = zstandard.train_dictionary(_DICTIONARY_BYTES, _SAMPLES)
    return zstandard.ZstdCompressor(level=1, write_checksum=True, dict_data=made).compress(_content(frame))


def with_window(frame: bytes) -> bytes:
    """Return a frame of the same content that asks for a window of 2 GiB."""
    content = _content(frame)
    # 2 ** (10 + 21): the window's byte has its exponent, less 10, behind 3 bits
    header = _MAGIC + bytes([_WINDOW, 21 << 3]) + struct.pack("<I", len(content))
    return header + _block(_RAW, len(content)) + content + frame[-_CHECKSUM_BYTES:]


def of_size(size_bytes: int) -> Callable[[bytes], bytes]:
    """Return what makes a frame that claims so many bytes, of which it has 100,000."""

    def claim(frame: bytes) -> bytes:
        header = _MAGIC + bytes([_ONE_SEGMENT]) + struct.pack("<Q", size_bytes)
        return header + _block(_REPEATED, 100_000) + b"x" + bytes(_CHECKSUM_BYTES)

    return claim


def shorter(frame: bytes) -> bytes:
    """Return a frame of a part of the content."""
    return _compressed(_content(frame)[:100])


def in_two(frame: bytes) -> bytes:
    """Return two frames, of a half of the content each."""
    content = _content(frame)
    return _compressed(content[:96]) + _compressed(content[96:])


def skipped(size_bytes: int) -> bytes:
    """Return a skippable frame, which decoders take for nothing."""
    return struct.pack("<II", 0x184D2A50, size_bytes) + bytes(size_bytes)


def flipped(frame: bytes) -> bytes:
    """Return a frame whose content is not that of its checksum."""
    return frame[:-1] + bytes([frame[-1] ^ 1])


def _content(frame: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(frame)


def _compressed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)


def _block(kind: int, size_bytes: int) -> bytes:
    """Return the header of the last block of a frame."""
    return (1 | kind << 1 | size_bytes << 3).to_bytes(3, "little")


def files_of(made: Sequence[bytes]) -> dict[str, bytes]:
    """Return the files that frames are in: of pixels, and of where each is."""
    ends = itertools.accumulate(map(len, made), initial=0)
    pixels = b"".join(made)
    return {
        PIXELS: pixels + bytes(-len(pixels) % PAGE_BYTES),
        FRAMES: b"".join(struct.pack("<2q", *span) for span in itertools.pairwise(ends)),
    }
