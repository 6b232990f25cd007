"""Rows of a finished store as bytes, for what makes other stores of them: none is believed before its checksum was compared.

Reads plainly: of a mapped file, a page that cannot be read would end the process. Knows no sources and writes nothing.
"""

from __future__ import annotations

import bisect
import itertools
import threading
import zlib
from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packer.checksums import sha256_file
from reader.manifest import PIXELS, SAMPLES, Block, Manifest, naming, read_blocks

# Read and checked at once: while they are in the CPU's cache.
_CHECK_BYTES = 256 << 10

Ints = npt.NDArray[np.int64]


class CheckedPixels:
    """The file of rows, whose blocks are compared with their checksums, each once."""

    def __init__(self, out: Path) -> None:
        # opened before the manifest is read, so that it is theirs, whatever takes OUT's place meanwhile
        self._file = open(out / PIXELS, "rb", buffering=0)  # noqa: SIM115 (open as long as this is)
        self._path = out / PIXELS
        self._blocks = read_blocks(out)
        self._starts = [block.start for block in self._blocks]
        self._begins = list(itertools.accumulate((block.size_bytes for block in self._blocks), initial=0))
        self._whole: dict[int, bool] = {}
        self._one_at_a_time = threading.Lock()

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Return these bytes of the file; fewer where it ends."""
        with naming(self._path), self._one_at_a_time:
            self._file.seek(begin)
            return self._file.read(size_bytes)

    def block(self, row: int) -> Block:
        """Return the block that a row is in."""
        return self._blocks[self._number(row)]

    def is_whole(self, row: int) -> bool:
        """Whether the block that a row is in has the bytes that were packed; may be asked by several threads."""
        number = self._number(row)
        if number not in self._whole:
            crc32, begin, end = 0, self._begins[number], self._begins[number + 1]
            for start in range(begin, end, _CHECK_BYTES):
                crc32 = zlib.crc32(self.read(start, min(_CHECK_BYTES, end - start)), crc32)
            self._whole[number] = crc32 == self._blocks[number].crc32
        return self._whole[number]

    def close(self) -> None:
        """Let the file go."""
        self._file.close()

    def _number(self, row: int) -> int:
        return bisect.bisect_right(self._starts, row) - 1


def line_begins(out: Path) -> array[int]:
    """Return the byte of samples.jsonl where each row's line begins, and behind them that where the last one ends."""
    begins = array("q", [0])
    with naming(out / SAMPLES), open(out / SAMPLES, "rb") as file:
        for line in file:
            begins.append(begins[-1] + len(line))
    return begins


def damaged_file(out: Path, manifest: Manifest) -> Path | None:
    """Return the first file, pixels left out, that is not what was packed."""
    for name, entry in sorted(manifest.files.items()):
        if name != PIXELS and sha256_file(out / name) != entry.digest:
            return out / name
    return None


def read_spans(
    path: Path, begins: Ints, sizes: Ints, into: npt.NDArray[np.uint8] | None = None
) -> npt.NDArray[np.uint8]:
    """Read pieces of a file, one behind the other; what lies together there is read at once.

    Args:
        begins, sizes: int64[n], the byte where each piece begins and how many bytes it has.
        into: uint8[m], memory to fill, of which a view comes back; a fresh one costs a page fault every 4 KiB.

    Raises:
        OSError: the file cannot be read, or ends before a piece does.
    """
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    into = np.empty(total, np.uint8) if into is None else into[:total]
    # [4, 6, 9, 0] of 2, 3, 1, 1 bytes -> reads of [4, 10) and [0, 1)
    firsts = np.flatnonzero(np.concatenate(([True], begins[1:] != begins[:-1] + sizes[:-1])))
    stops = np.append(firsts[1:], len(begins))
    with naming(path), open(path, "rb", buffering=0) as file:
        for first, stop in zip(firsts.tolist(), stops.tolist(), strict=True):
            start, end = int(ends[first] - sizes[first]), int(ends[stop - 1])
            file.seek(int(begins[first]))
            while start < end:
                count = file.readinto(into[start:end].data)
                if not count:
                    raise OSError(0, "it ends too early")
                start += count
    return into
