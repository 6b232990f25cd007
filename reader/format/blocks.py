"""The table of blocks of a manifest.json: one line per block, parsed by its exact form and checked against the head."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES, Manifest, open_manifest, parse_manifest

# A line is four numbers of up to 19 digits.
_MOST_LINE_BYTES = 128
_LINE = re.compile(rb"    \[(\d{1,19}), (\d{1,10}), (\d{1,19}), (\d{1,19})\](,?)\n")
_CRC32_STOP = 1 << 32


@dataclass(frozen=True)
class Block:
    """Rows that were committed together.

    crc32 covers their size_bytes bytes in pixels.memmap; samples_offset is the start of their first line in samples.jsonl.
    """

    start: int
    stop: int
    crc32: int
    samples_offset: int
    size_bytes: int


def read_blocks(out: str | os.PathLike[str]) -> list[Block]:
    """Read the table of blocks of OUT/manifest.json; O(rows / block).

    Raises:
        StoreError: as `read_manifest`; or the blocks do not add up to the rows, their bytes or their lines.
    """
    root = Path(out)
    path = root / MANIFEST
    # one open file: another store may take this one's name between reads of the head and the blocks
    with open_manifest(root) as file:
        manifest, begin = parse_manifest(file, path)
        file.seek(begin)
        with error_path(path):
            blocks = list(_checked(file, manifest, path))
    return blocks


def parse_content(content: bytes, path: Path) -> tuple[Manifest, list[Block]]:
    """Parse the bytes of a manifest.json, head and blocks, with all checks of opening it; path is for errors.

    Raises:
        StoreError: as `read_blocks`.
    """
    with io.BytesIO(content) as file:
        manifest, begin = parse_manifest(file, path)
        file.seek(begin)
        return manifest, list(_checked(file, manifest, path))


def _checked(file: IO[bytes], manifest: Manifest, path: Path) -> Iterator[Block]:
    """Yield the blocks; each continues the one before it, and the last one ends with the rows."""
    start = used = 0
    least_offset, pixels_bytes = 0, manifest.files[PIXELS].size_bytes
    samples_bytes, row_bytes = manifest.files[SAMPLES].size_bytes, None if manifest.is_flat else manifest.row_bytes
    for number, (rows, crc32, offset, size_bytes) in enumerate(_lines(file, path)):
        what = ""
        if not 1 <= rows <= manifest.rows - start:
            what = f"{rows} rows, expected 1 to {manifest.rows - start}"
        elif crc32 >= _CRC32_STOP:
            what = f"the checksum {crc32}, expected 32 bits"
        elif (offset != 0 if number == 0 else offset < least_offset) or offset >= samples_bytes:
            what = (
                f"lines from byte {offset} of {SAMPLES} on, expected {least_offset} or more, and less than the file has"
            )
        elif not rows <= size_bytes <= pixels_bytes - used or (row_bytes and size_bytes != rows * row_bytes):
            what = f"{size_bytes} bytes of pixels, expected those of {rows} rows, {pixels_bytes - used} at most"
        if what:
            raise StoreError(f"{path}: block {number} has {what}.")
        yield Block(start, start + rows, crc32, offset, size_bytes)
        # every row has a line, and none is shorter than an empty object
        start, used, least_offset = start + rows, used + size_bytes, offset + 3 * rows
    if start != manifest.rows:
        raise StoreError(f"{path}: the blocks hold {start} rows, the manifest says {manifest.rows}.")
    if pixels_bytes != manifest.file_bytes(used):
        raise StoreError(f"{path}: the blocks hold {used} bytes of pixels, the manifest says {pixels_bytes}.")


def _lines(file: IO[bytes], path: Path) -> Iterator[tuple[int, int, int, int]]:
    """Yield the numbers of each line, up to the "]" after the last."""
    is_last = file.readline(_MOST_LINE_BYTES) != b"\n"
    while not is_last:
        line = file.readline(_MOST_LINE_BYTES)
        if not (numbers := _LINE.fullmatch(line)):
            raise StoreError(f"{path}: the table of blocks has a line {line[:60]!r}, expected 4 numbers in brackets.")
        yield int(numbers[1]), int(numbers[2]), int(numbers[3]), int(numbers[4])
        is_last = not numbers[5]
    if file.readline(_MOST_LINE_BYTES) != b"  ],\n":
        raise StoreError(f"{path}: the table of blocks does not end where it should.")
