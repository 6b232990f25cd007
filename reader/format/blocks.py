"""The table of blocks of a manifest.json: a line each, written and parsed by its exact form, checked against the head."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import IO

from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.head import with_digest
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES, Manifest, open_manifest, parse_manifest

# A line is up to five numbers of up to 19 digits.
_MOST_LINE_BYTES = 128
_LINE = re.compile(rb"    \[(\d{1,19}), (\d{1,10}), (\d{1,19})(?:, (\d{1,19})(?:, (\d{1,10}))?)?\](,?)\n")
_CRC32_STOP = 1 << 32


@dataclass(frozen=True)
class Block:
    """Rows that were committed together.

    crc32 covers their bytes in pixels.memmap; samples_offset is where their first line starts in samples.jsonl. size_bytes
    of those bytes is written where rows have sizes of their own or are compressed; elsewhere it follows from the rows, and is
    filled in by reading. pixels_crc32 covers compressed rows unpacked, and is 0 elsewhere.
    """

    start: int
    stop: int
    crc32: int
    samples_offset: int
    size_bytes: int = 0
    pixels_crc32: int = 0


def read_blocks(out: str | os.PathLike[str]) -> list[Block]:
    """Read the table of blocks of OUT/manifest.json; O(rows / block).

    Raises:
        StoreError: as `read_manifest`; or the blocks do not add up to the rows, their bytes or their lines.
    """
    root = Path(out)
    path = root / MANIFEST
    # one open file: another store may take the name of this one between its head and its blocks
    with open_manifest(root) as file:
        manifest, begin = parse_manifest(file, path)
        file.seek(begin)
        with error_path(path):
            blocks = list(_checked(file, manifest, path))
    return blocks


def parse_content(content: bytes, path: Path) -> tuple[Manifest, list[Block]]:
    """Return what the bytes of a manifest.json say, head and blocks, checked as opening it would; path names it in errors.

    Raises:
        StoreError: as `read_blocks`.
    """
    with io.BytesIO(content) as file:
        manifest, begin = parse_manifest(file, path)
        file.seek(begin)
        return manifest, list(_checked(file, manifest, path))


def encode_manifest(manifest: Manifest, blocks: Iterable[Block]) -> bytes:
    """Return the bytes of manifest.json: the head, one line a block, and last the sha256 of all bytes before it."""
    lines = ",".join(f"\n    {_block_line(block, manifest)}" for block in blocks)
    return with_digest(manifest.to_json(), lines)


def _checked(file: IO[bytes], manifest: Manifest, path: Path) -> Iterator[Block]:
    """Yield the blocks; each adds to those before it, and the last one ends where the rows do."""
    start = used = 0
    least_offset, pixels_bytes = 0, manifest.files[PIXELS].size_bytes
    for number, (rows, crc32, offset, size_bytes, pixels_crc32) in zip(
        count(), _lines(file, manifest, path), strict=False
    ):
        size_bytes = rows * manifest.row_bytes if size_bytes is None else size_bytes
        what = ""
        if not 1 <= rows <= manifest.rows - start:
            what = f"{rows} rows, expected 1 to {manifest.rows - start}"
        elif max(crc32, pixels_crc32) >= _CRC32_STOP:
            what = f"the checksum {max(crc32, pixels_crc32)}, expected 32 bits"
        elif (offset != 0 if number == 0 else offset < least_offset) or offset >= manifest.files[SAMPLES].size_bytes:
            what = (
                f"lines from byte {offset} of {SAMPLES} on, expected {least_offset} or more, and less than the file has"
            )
        elif not rows <= size_bytes <= pixels_bytes - used:
            what = f"{size_bytes} bytes of pixels, expected {rows} to {pixels_bytes - used}"
        if what:
            raise StoreError(f"{path}: block {number} has {what}.")
        yield Block(start, start + rows, crc32, offset, size_bytes, pixels_crc32)
        # every row has a line, and none is shorter than an empty object
        start, used, least_offset = start + rows, used + size_bytes, offset + 3 * rows
    if start != manifest.rows:
        raise StoreError(f"{path}: the blocks hold {start} rows, the manifest says {manifest.rows}.")
    if pixels_bytes != manifest.file_bytes(used):
        raise StoreError(f"{path}: the blocks hold {used} bytes of pixels, the manifest says {pixels_bytes}.")


def _lines(file: IO[bytes], manifest: Manifest, path: Path) -> Iterator[tuple[int, int, int, int | None, int]]:
    """Yield the numbers of each line, up to the "]" behind the last."""
    expected = manifest.block_numbers
    is_last = file.readline(_MOST_LINE_BYTES) != b"\n"
    while not is_last:
        line = file.readline(_MOST_LINE_BYTES)
        numbers = _LINE.fullmatch(line)
        if not numbers or 3 + (numbers[4] is not None) + (numbers[5] is not None) != expected:
            raise StoreError(
                f"{path}: the table of blocks has a line {line[:60]!r}, expected {expected} numbers in brackets."
            )
        size_bytes = None if numbers[4] is None else int(numbers[4])
        yield int(numbers[1]), int(numbers[2]), int(numbers[3]), size_bytes, int(numbers[5] or 0)
        is_last = not numbers[6]
    if file.readline(_MOST_LINE_BYTES) != b"  ],\n":
        raise StoreError(f"{path}: the table of blocks does not end where it should.")


def _block_line(block: Block, manifest: Manifest) -> list[int]:
    line = [block.stop - block.start, block.crc32, block.samples_offset, block.size_bytes, block.pixels_crc32]
    return line[: manifest.block_numbers]
