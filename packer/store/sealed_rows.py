"""Rows of a finished store as bytes, for code without torch that makes other stores from them.

Uses plain reads for large data: an unreadable page of a mapped file would end the process. Knows no sources and writes
nothing.
"""

from __future__ import annotations

import bisect
import errno
import itertools
import math
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.checksums import sha256_file
from packer.progress import CountedBytes
from reader import jpeg_frames
from reader.format.blocks import Block, read_blocks
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, SAMPLES, Manifest, read_manifest
from reader.format.row_values import wrong_frames

# Bytes read and checked at once: they stay in the CPU's cache.
_CHECK_BYTES = 256 << 10

Ints = npt.NDArray[np.int64]


def damage(out: Path, manifest: Manifest, names: Iterable[str]) -> str:
    """Describe the first damaged file among these, pixels left out; "" if all are intact."""
    names = sorted(names)
    read = CountedBytes(sum(manifest.files[name].size_bytes for name in names))
    for name in names:
        if sha256_file(out / name, read) != manifest.files[name].digest:
            return f"{out / name} is damaged: its content has changed since it was packed."
    return ""


def line_begins(out: Path, rows: int) -> Ints:
    """Return the offset of each row's line in samples.jsonl, int64[rows].

    Raises:
        OSError: the file cannot be read, or has not a line a row.
    """
    found, done = [np.zeros(1, np.int64)], 0
    with error_path(out / SAMPLES), open(out / SAMPLES, "rb") as file:
        while data := file.read(_CHECK_BYTES):
            found.append(done + 1 + np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")))
            done += len(data)
        begins = np.concatenate(found)[:-1]
        if len(begins) != rows:
            raise OSError(errno.EIO, f"it has {len(begins)} lines, the manifest says {rows} rows")
    return begins


def mapped_tensor(out: Path, manifest: Manifest, name: str) -> npt.NDArray[Any]:
    """Map a tensor beside the pixels, [N, *row_shape], such as "targets" or "extras/boxes"; one without bytes is empty."""
    spec = manifest.tensors[name]
    shape = (manifest.rows, *spec.row_shape)
    return (
        np.memmap(out / manifest.tensor_paths()[name], spec.dtype, "r", shape=shape) if all(shape) else np.empty(shape)
    )


def tensor_rows(out: Path, manifest: Manifest, name: str, rows: Ints) -> npt.NDArray[Any]:
    """Read rows of a tensor beside the pixels, [n, *row_shape], and nothing of the others.

    Raises:
        OSError: the file cannot be read, or ends before a row does.
    """
    spec, path = manifest.tensors[name], out / manifest.tensor_paths()[name]
    size_bytes = spec.row_bytes
    with error_path(path), open(path, "rb") as file:
        data = b"".join(os.pread(file.fileno(), size_bytes, row * size_bytes) for row in rows.tolist())
        if len(data) != size_bytes * len(rows):
            raise OSError(errno.EIO, "it ends before the manifest says")
    return np.frombuffer(data, np.dtype(spec.dtype).newbyteorder("<")).reshape(len(rows), *spec.row_shape)


def rows_bytes(out: Path, manifest: Manifest, rows: Ints) -> tuple[int, int]:
    """Return the total bytes of rows: decoded, including masks after them, and in the file."""
    unpacked = len(rows) * manifest.row_bytes
    if manifest.has_own_sizes:
        sides = tensor_rows(out, manifest, "shapes", rows)[:, :2].astype(np.int64)
        unpacked = int(sides.prod(axis=1).sum()) * (manifest.channels + manifest.has_own_masks)
    if not manifest.jpeg:
        return unpacked, unpacked
    begins, ends = tensor_rows(out, manifest, "frames", rows).T
    return unpacked, int((ends - begins).sum())


class StoredRows:
    """The rows of a finished store in its file: raw or JPEGs, of one size or of their own.

    Raises:
        MissingLibraryError: rows are JPEGs, and no decoder is installed.
    """

    def __init__(self, out: Path, manifest: Manifest) -> None:
        if manifest.jpeg:
            jpeg_frames.check_library()
        self._out, self.manifest = out, manifest
        self._shapes, self._offsets, self._frames = (
            mapped_tensor(out, manifest, name) if name in manifest.tensors else None
            for name in ("shapes", "offsets", "frames")
        )

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Return these bytes of the file, fewer at its end."""
        with error_path(self._out / PIXELS), open(self._out / PIXELS, "rb") as file:
            file.seek(begin)
            return file.read(size_bytes)

    def sides(self, row: int) -> tuple[int, int]:
        """Return height and width of a row.

        Raises:
            StoreError: no row of the store can have these.
        """
        manifest = self.manifest
        if self._shapes is None:
            return manifest.height, manifest.width
        height, width, channels = self._shapes[row].tolist()
        most = manifest.height, manifest.width, manifest.channels
        if not (0 < height <= most[0] and 0 < width <= most[1] and channels == most[2]):
            raise self._error(row, f"its shape is {[height, width, channels]}, expected up to {[*most]}")
        return height, width

    def extent(self, row: int) -> tuple[int, int]:
        """Return a row's offset and size in the file, without its mask.

        Raises:
            StoreError: they are not in the file, or cannot be such a row.
        """
        size_bytes = math.prod(self.sides(row)) * self.manifest.channels
        begin, stop = row * size_bytes, (row + 1) * size_bytes
        if self._frames is not None:
            begin, stop = self._frames[row].tolist()
            if wrong_frames(self._frames[row : row + 1], np.array([size_bytes]), self._file_bytes)[0]:
                raise self._error(row, "its frame is not within the pixels")
        elif self._offsets is not None:
            begin = int(self._offsets[row])
            stop = begin + size_bytes
            if not 0 <= begin <= self._file_bytes - size_bytes:
                raise self._error(row, "it is not within the pixels")
        return begin, stop - begin

    def stored(self, row: int) -> bytes:
        """Return the bytes of a row in the file, without its mask."""
        return self._whole(row, *self.extent(row))

    def pixels(self, row: int, stored: bytes) -> npt.NDArray[np.uint8]:
        """Return a row, uint8[H, W, C], by its bytes in the file.

        Raises:
            StoreError: its JPEG is damaged.
        """
        (height, width), channels = self.sides(row), self.manifest.channels
        if not self.manifest.jpeg:
            return np.frombuffer(stored, np.uint8).reshape(height, width, channels)
        pixels = np.empty(height * width * channels, np.uint8)
        if what := jpeg_frames.decode(memoryview(stored), height, width, channels, pixels):
            raise self._error(row, what)
        return pixels.reshape(height, width, channels)

    def mask(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a row with a size of its own, uint8[H, W]: it follows the row's pixels."""
        sides = self.sides(row)
        return np.frombuffer(self._whole(row, sum(self.extent(row)), math.prod(sides)), np.uint8).reshape(sides)

    @property
    def _file_bytes(self) -> int:
        return self.manifest.files[PIXELS].size_bytes

    def _whole(self, row: int, begin: int, size_bytes: int) -> bytes:
        stored = self.read(begin, size_bytes)
        if len(stored) < size_bytes:
            raise self._error(row, "it is not within the pixels")
        return stored

    def _error(self, row: int, what: str) -> StoreError:
        return StoreError(f"{self._out}: row {row}: {what}. The store is damaged: copy it again.")


class SealedRows(StoredRows):
    """The rows of a finished store, with their lines and blocks, to make rows of another store; for one thread.

    Raises:
        StoreError: the store is not the one whose manifest has this digest.
    """

    def __init__(self, out: Path, digest: str) -> None:
        # opened before the manifest is read, so that they belong together even if OUT is replaced meanwhile
        self._lines = open(out / SAMPLES, "rb")  # noqa: SIM115 (open as long as this is)
        self._file = open(out / PIXELS, "rb", buffering=0)  # noqa: SIM115
        self._line_begin = -1
        super().__init__(out, manifest := read_manifest(out))
        if manifest.digest != digest:
            raise StoreError(f"{out} is another store than the one to take rows from.")
        self._blocks = read_blocks(out)
        self._starts = [block.start for block in self._blocks]
        # the byte where each block begins, then that where the last one ends
        self._begins = list(itertools.accumulate((block.size_bytes for block in self._blocks), initial=0))
        self._intact: dict[int, bool] = {}
        self._content = mapped_tensor(out, manifest, "content") if manifest.has_content else None
        self._masks = mapped_tensor(out, manifest, "extras/masks") if "masks" in manifest.extras else None

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Return these bytes of the file, fewer at its end."""
        with error_path(self._out / PIXELS):
            return os.pread(self._file.fileno(), size_bytes, begin)

    def damaged_block(self, row: int) -> Block | None:
        """Return the block that a row is in if it has other bytes than were packed; each is read once."""
        number = bisect.bisect_right(self._starts, row) - 1
        block = self._blocks[number]
        if number not in self._intact:
            crc32, end = 0, self._begins[number + 1]
            for start in range(self._begins[number], end, _CHECK_BYTES):
                crc32 = zlib.crc32(self.read(start, min(_CHECK_BYTES, end - start)), crc32)
            self._intact[number] = crc32 == block.crc32
        return None if self._intact[number] else block

    def line(self, begin: int) -> str:
        """Return the line of samples.jsonl at this byte; reading lines in order needs no seek."""
        if begin != self._line_begin:
            self._lines.seek(begin)
        text = self._lines.readline()
        self._line_begin = begin + len(text)
        return text.decode("ascii")

    def row(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return the pixels of a row, its mask and its frame; empty if it has none.

        Raises:
            StoreError: they cannot be those of a row.
        """
        stored, mask = self.stored(number), b""
        if self._masks is not None:
            mask = self._masks[number].tobytes()
        elif self.manifest.has_own_masks:
            mask = self.mask(number).tobytes()
        if not self.manifest.jpeg:
            return stored, mask, b""
        return self.pixels(number, stored).tobytes(), mask, stored

    def content(self, number: int) -> tuple[int, int, int, int]:
        """Return the place of the image in a row: y0, x0, y1, x1, half-open."""
        if self._content is not None:
            y0, x0, y1, x1 = self._content[number].tolist()
            return y0, x0, y1, x1
        return 0, 0, *self.sides(number)

    def close(self) -> None:
        """Close the files."""
        self._lines.close()
        self._file.close()
