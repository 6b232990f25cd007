"""Rows of a finished store as bytes, from which other stores are made: each is used only after its checksum was compared.

Reads plainly: of a mapped file, a page that cannot be read would end the process. Knows no sources and writes nothing.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import zlib
from collections.abc import Iterable
from io import RawIOBase
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.checksums import sha256_file
from packer.progress import CountedBytes, notify
from packer.report import Progress
from reader.format.blocks import Block, read_blocks
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, SAMPLES, Manifest

# Read and checked at once: while they are in the CPU's cache.
_CHECK_BYTES = 256 << 10

Ints = npt.NDArray[np.int64]


class CheckedPixels:
    """The file of rows, and its blocks, which are compared with their checksums."""

    def __init__(self, out: Path) -> None:
        # opened before the manifest is read, so that they belong together, whatever replaces OUT meanwhile
        self._file = open(out / PIXELS, "rb", buffering=0)  # noqa: SIM115 (open as long as this is)
        self._path = out / PIXELS
        self._intact: dict[int, bool] = {}
        try:
            self.blocks = read_blocks(out)
        except BaseException:
            self._file.close()
            raise
        self._starts = [block.start for block in self.blocks]
        # the byte where each block begins, and behind them that where the last one ends
        self.begins = list(itertools.accumulate((block.size_bytes for block in self.blocks), initial=0))

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Return these bytes of the file; fewer where it ends."""
        with error_path(self._path):
            return os.pread(self._file.fileno(), size_bytes, begin)

    def block_of(self, row: int) -> Block:
        """Return the block that a row is in."""
        return self.blocks[bisect.bisect_right(self._starts, row) - 1]

    def is_intact(self, row: int) -> bool:
        """Whether the block that a row is in has the bytes that were packed; each is read once."""
        number = bisect.bisect_right(self._starts, row) - 1
        if number not in self._intact:
            crc32, end = 0, self.begins[number + 1]
            for start in range(self.begins[number], end, _CHECK_BYTES):
                crc32 = zlib.crc32(self.read(start, min(_CHECK_BYTES, end - start)), crc32)
            self._intact[number] = crc32 == self.blocks[number].crc32
        return self._intact[number]

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def line_spans(out: Path, manifest: Manifest, blocks: list[Block], rows: Ints) -> Ints:
    """Return the bytes [begin, end) of samples.jsonl that each row's line has, int64[n, 2]; reads the lines of their blocks.

    Args:
        rows: int64[n], rising.

    Raises:
        OSError: the file cannot be read, or a block does not have as many lines as rows.
    """
    path, spans = out / SAMPLES, np.empty((len(rows), 2), np.int64)
    stops = [*(block.samples_offset for block in blocks[1:]), manifest.files[SAMPLES].size_bytes]
    numbers, firsts = np.unique(
        np.searchsorted([block.start for block in blocks], rows, side="right") - 1, return_index=True
    )
    for number, first, stop in zip(numbers.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(rows)], strict=True):
        block = blocks[number]
        begin = np.array([block.samples_offset])
        ends = begin + np.flatnonzero(read_spans(path, begin, stops[number] - begin) == ord("\n")) + 1
        if len(ends) != block.stop - block.start:
            raise OSError(errno.EIO, f"rows {block.start} to {block.stop - 1} have {len(ends)} lines", str(path))
        lines = rows[first:stop] - block.start
        spans[first:stop, 0], spans[first:stop, 1] = np.concatenate([begin, ends])[lines], ends[lines]
        notify(Progress("read", stop, len(rows)))
    return spans


def damage(out: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Name the first of these files, all but pixels, that is not what was packed, as a sentence; "" if none is."""
    names = sorted(names)
    read = CountedBytes(sum(manifest.files[name].size_bytes for name in names))
    for name in names:
        if sha256_file(out / name, read) != manifest.files[name].digest:
            return f"{out / name} is damaged: its content is not what was packed."
    return ""


def read_spans(path: Path, begins: Ints, sizes: Ints) -> npt.NDArray[np.uint8]:
    """Read pieces of a file, one after the other; what is together there is read at once.

    Args:
        begins, sizes: int64[n], the byte where each piece begins and how many bytes it has.

    Raises:
        OSError: the file cannot be read, or ends before a piece does.
    """
    ends = np.cumsum(sizes)
    into = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
    # [4, 6, 9, 0] of 2, 3, 1, 1 bytes -> reads of [4, 10) and [0, 1)
    firsts = np.flatnonzero(np.concatenate(([True], begins[1:] != begins[:-1] + sizes[:-1])))
    stops = np.append(firsts[1:], len(begins))
    with error_path(path), open(path, "rb", buffering=0) as file:
        for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
            file.seek(int(begins[first]))
            _fill(file, into[int(ends[first] - sizes[first]) : int(ends[stop - 1])])
    return into


def _fill(file: RawIOBase, memory: npt.NDArray[np.uint8]) -> None:
    while len(memory):
        count = file.readinto(memory.data)
        if not count:
            raise OSError(errno.EIO, "it ends before the manifest says")
        memory = memory[count:]
