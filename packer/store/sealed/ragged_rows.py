"""Offsets of rows and tensors in the files of a finished store, for code that reads without torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.store.sealed.checked_rows import CheckedPixels, Ints, read_spans
from reader import jpeg_frames
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, SAMPLES, Manifest, read_manifest
from reader.format.row_values import wrong_frames


class RowSizes(NamedTuple):
    """Of n rows: the bytes of each with its mask behind it, int64[n], and those that it has in the file."""

    sizes: Ints
    stored_sizes: Ints


def mapped_tensor(out: Path, manifest: Manifest, name: str) -> npt.NDArray[Any]:
    """Map a tensor beside the pixels, [N, *row_shape], such as "targets" or "extras/boxes"; one without bytes is empty."""
    spec = manifest.tensors[name]
    shape = (manifest.rows, *spec.row_shape)
    return (
        np.memmap(out / manifest.tensor_paths()[name], spec.dtype, "r", shape=shape) if all(shape) else np.empty(shape)
    )


def tensor_rows(out: Path, manifest: Manifest, name: str, rows: Ints) -> npt.NDArray[Any]:
    """Read rows of a tensor beside the pixels, [n, *row_shape], and nothing of the others."""
    spec = manifest.tensors[name]
    sizes = np.full(len(rows), spec.row_bytes)
    data = read_spans(out / manifest.tensor_paths()[name], rows * spec.row_bytes, sizes)
    return data.view(np.dtype(spec.dtype).newbyteorder("<")).reshape(len(rows), *spec.row_shape)


def row_sizes(out: Path, manifest: Manifest, rows: Ints) -> RowSizes:
    """Return the sizes of rows, as the store has them, unchecked."""
    sizes = np.full(len(rows), manifest.row_bytes)
    if manifest.has_own_sizes:
        sides = tensor_rows(out, manifest, "shapes", rows)[:, :2].astype(np.int64)
        sizes = sides.prod(axis=1) * (manifest.channels + manifest.has_own_masks)
    if not manifest.jpeg:
        return RowSizes(sizes, sizes)
    spans = tensor_rows(out, manifest, "frames", rows)
    return RowSizes(sizes, spans[:, 1] - spans[:, 0])


class StoredRows:
    """Where the rows of a finished store are in its file, and what they are: raw or JPEGs, of one size or of their own.

    Raises:
        MissingLibraryError: rows are JPEGs, and nothing here decodes them.
    """

    def __init__(self, out: Path, manifest: Manifest) -> None:
        if manifest.jpeg:
            jpeg_frames.check_library()
        self._out, self.manifest = out, manifest
        self._shapes, self._offsets, self._frames = (
            mapped_tensor(out, manifest, name) if name in manifest.tensors else None
            for name in ("shapes", "offsets", "frames")
        )

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
        """Return where a row begins in the file, and how many bytes it has there, without its mask.

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

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        begin, size_bytes = self.extent(row)
        return self.pixels(row, self._read(row, begin, size_bytes))

    def mask(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a row with a size of its own, uint8[H, W]: it is behind the row's pixels."""
        sides = self.sides(row)
        return np.frombuffer(self._read(row, sum(self.extent(row)), math.prod(sides)), np.uint8).reshape(sides)

    @property
    def _file_bytes(self) -> int:
        return self.manifest.files[PIXELS].size_bytes

    def _read(self, row: int, begin: int, size_bytes: int) -> bytes:
        with error_path(self._out / PIXELS), open(self._out / PIXELS, "rb") as file:
            file.seek(begin)
            stored = file.read(size_bytes)
        if len(stored) < size_bytes:
            raise self._error(row, "it is not within the pixels")
        return stored

    def _error(self, row: int, what: str) -> StoreError:
        return StoreError(f"{self._out}: row {row}: {what}. The store is damaged: copy it again.")


class SealedRows(CheckedPixels):
    """The rows of a finished store, and their lines, for those who make rows of another store of them; for one thread.

    Opened before the manifest is read, so that they agree, whatever replaces the store meanwhile.

    Raises:
        StoreError: the store is not the one whose manifest has this digest.
    """

    def __init__(self, out: Path, digest: str) -> None:
        self._lines = open(out / SAMPLES, "rb")  # noqa: SIM115 (open as long as this is)
        super().__init__(out)
        self._line_begin = -1
        self.manifest = read_manifest(out)
        if self.manifest.digest != digest:
            raise StoreError(f"{out} is another store than that of which rows were to be taken.")
        self._rows = StoredRows(out, self.manifest)
        tensors = self.manifest.tensors
        self._content = mapped_tensor(out, self.manifest, "content") if "content" in tensors else None
        self._masks = mapped_tensor(out, self.manifest, "extras/masks") if "masks" in self.manifest.extras else None

    def line(self, begin: int) -> str:
        """Return the line of samples.jsonl that begins at this byte; in order none is looked for."""
        if begin != self._line_begin:
            self._lines.seek(begin)
        text = self._lines.readline()
        self._line_begin = begin + len(text)
        return text.decode("ascii")

    def row(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return the pixels of a row, its mask and its frame; those that it does not have are empty.

        Raises:
            StoreError: they are not what a row can be.
        """
        begin, size_bytes = self._rows.extent(number)
        stored = self.read(begin, size_bytes)
        if len(stored) != size_bytes:
            raise StoreError(f"row {number} is not within the pixels: the store is damaged. Copy it again.")
        mask = b""
        if self._masks is not None:
            mask = self._masks[number].tobytes()
        elif self.manifest.has_own_masks:
            mask = self._rows.mask(number).tobytes()
        if not self.manifest.jpeg:
            return stored, mask, b""
        return self._rows.pixels(number, stored).tobytes(), mask, stored

    def content(self, number: int) -> tuple[int, int, int, int]:
        """Return where the image is in a row: y0, x0, y1, x1, half-open."""
        if self._content is not None:
            y0, x0, y1, x1 = self._content[number].tolist()
            return y0, x0, y1, x1
        return 0, 0, *self._rows.sides(number)

    def close(self) -> None:
        """Let the files go."""
        self._lines.close()
        super().close()
