"""Offsets of rows and tensors in the files of a finished store, for code that reads without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from packer.store.sealed.checked_rows import CheckedPixels, Ints, read_spans
from reader import jpeg_frames
from reader.format.blocks import Block
from reader.format.errors import StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS, SAMPLES, Manifest, read_manifest
from reader.format.row_values import wrong_extents, wrong_frames


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


class EqualRows:
    """Rows of one size."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        self._row_bytes, self._largest = manifest.row_bytes, manifest.largest

    def sides(self, row: int) -> tuple[int, int]:
        """Return height and width of a row."""
        return self._largest

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the pixels of a row begin in the file, and how many bytes they are."""
        return row * self._row_bytes, self._row_bytes

    def pixels(self, row: int, stored: bytes) -> bytes:
        """Return the pixels of a row by the bytes that it has in the file."""
        return stored


class RaggedRows:
    """Rows with sizes of their own, as views uint8[H, W, C] of the mapped file, and their masks."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        self._out, self._channels = out, manifest.channels
        self._pixels = np.memmap(out / PIXELS, np.uint8, "r")
        self._offsets, self._shapes = (mapped_tensor(out, manifest, name) for name in ("offsets", "shapes"))
        self._masks = mapped_tensor(out, manifest, "mask_offsets") if manifest.has_own_masks else None

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        offset, size_bytes = self.extent(row)
        return np.asarray(self._pixels[offset : offset + size_bytes]).reshape(self._shapes[row].tolist())

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the pixels of a row begin in the file, and how many bytes they are.

        Raises:
            StoreError: they are not in it.
        """
        row_masks = None if self._masks is None else self._masks[row : row + 1]
        _, wrong = wrong_extents(
            self._offsets[row : row + 1], self._shapes[row : row + 1], row_masks, self._pixels.size
        )
        if wrong[0] or self._shapes[row, 2] != self._channels:
            raise StoreError(f"{self._out}: row {row} is not within the pixels: the store is damaged. Copy it again.")
        return int(self._offsets[row]), int(np.prod(self._shapes[row].tolist(), dtype=np.int64))

    def pixels(self, row: int, stored: bytes) -> bytes:
        """Return the pixels of a row by the bytes that it has in the file."""
        return stored

    def sides(self, row: int) -> tuple[int, int]:
        """Return height and width of a row."""
        height, width, _ = self._shapes[row].tolist()
        return height, width

    def mask(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a row, uint8[H, W], in a store with masks: it follows the row's pixels."""
        height, width, _ = self._shapes[row].tolist()
        start = sum(self.extent(row))
        return np.asarray(self._pixels[start : start + height * width]).reshape(height, width)


class FrameRows:
    """Compressed rows, of one size or of their own, unpacked one by one, and their masks."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        jpeg_frames.check_library()
        self._out, self._manifest, self._file = out, manifest, out / PIXELS
        self._table = mapped_tensor(out, manifest, "frames")
        self._shapes = mapped_tensor(out, manifest, "shapes") if "shapes" in manifest.tensors else None

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        return self.decoded(row, self._stored(row)).reshape(*self.sides(row), -1)

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the frame of a row begins in the file, and how many bytes it has.

        Raises:
            StoreError: it is not there, or is none of such a row.
        """
        height, width = self.sides(row)
        size = np.array([height * width * self._manifest.channels])
        span = self._table[row : row + 1]
        if wrong_frames(span, size, self._manifest.files[PIXELS].size_bytes)[0]:
            raise self._error(row, "its frame is not within the pixels")
        return int(span[0, 0]), int(span[0, 1] - span[0, 0])

    def pixels(self, row: int, stored: bytes) -> bytes:
        """Return the pixels of a row by its frame.

        Raises:
            StoreError: the frame is damaged.
        """
        return self.decoded(row, stored).tobytes()

    def decoded(self, row: int, frame: bytes) -> npt.NDArray[np.uint8]:
        """Return the pixels of a row, uint8[n], by its frame.

        Raises:
            StoreError: the frame is damaged.
        """
        (height, width), channels = self.sides(row), self._manifest.channels
        pixels = np.empty(height * width * channels, np.uint8)
        if what := jpeg_frames.decode(memoryview(frame), height, width, channels, pixels):
            raise self._error(row, what)
        return pixels

    def _stored(self, row: int) -> bytes:
        begin, size_bytes = self.extent(row)
        with error_path(self._file), open(self._file, "rb") as file:
            file.seek(begin)
            return file.read(size_bytes)

    def sides(self, row: int) -> tuple[int, int]:
        """Return height and width of a row."""
        if self._shapes is None:
            return self._manifest.height, self._manifest.width
        height, width, channels = self._shapes[row].tolist()
        most = self._manifest.height, self._manifest.width, self._manifest.channels
        if not (0 < height <= most[0] and 0 < width <= most[1] and channels == most[2]):
            raise self._error(row, f"its shape is {[height, width, channels]}, expected up to {[*most]}")
        return height, width

    def _error(self, row: int, what: str) -> StoreError:
        return StoreError(f"{self._out}: row {row}: {what}. The store is damaged: copy it again.")


def stored_rows(out: Path, manifest: Manifest) -> EqualRows | RaggedRows | FrameRows:
    """Return where the rows of a store are."""
    if manifest.jpeg:
        return FrameRows(out, manifest)
    return RaggedRows(out, manifest) if manifest.has_own_sizes else EqualRows(out, manifest)


class SealedRows:
    """The rows of a finished store, and their lines, for those who make rows of another store of them; for one thread.

    Opened before the manifest is read, so that they agree, whatever replaces the store meanwhile.

    Raises:
        StoreError: the store is not the one whose manifest has this digest.
    """

    def __init__(self, out: Path, digest: str) -> None:
        self._lines = open(out / SAMPLES, "rb")  # noqa: SIM115 (open as long as this is)
        self._pixels = CheckedPixels(out)
        self._line_begin = -1
        self.manifest = read_manifest(out)
        if self.manifest.digest != digest:
            raise StoreError(f"{out} is another store than that of which rows were to be taken.")
        self._rows = stored_rows(out, self.manifest)
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

    def block_of(self, row: int) -> Block:
        """Return the block that a row is in."""
        return self._pixels.block_of(row)

    def is_intact(self, row: int) -> bool:
        """Whether the block that a row is in has the bytes that were packed; each is read once."""
        return self._pixels.is_intact(row)

    def row(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return the pixels of a row, its mask and its frame; those that it does not have are empty.

        Raises:
            StoreError: they are not what a row can be.
        """
        begin, size_bytes = self._rows.extent(number)
        stored = self._pixels.read(begin, size_bytes)
        if len(stored) != size_bytes:
            raise StoreError(f"row {number} is not within the pixels: the store is damaged. Copy it again.")
        mask = b""
        if self._masks is not None:
            mask = self._masks[number].tobytes()
        elif isinstance(self._rows, RaggedRows) and self.manifest.has_own_masks:
            mask = self._rows.mask(number).tobytes()
        return self._rows.pixels(number, stored), mask, stored if self.manifest.jpeg else b""

    def content(self, number: int) -> tuple[int, int, int, int]:
        """Return where the image is in a row: y0, x0, y1, x1, half-open."""
        if self._content is not None:
            y0, x0, y1, x1 = self._content[number].tolist()
            return y0, x0, y1, x1
        return 0, 0, *self._rows.sides(number)

    def close(self) -> None:
        """Let the files go."""
        self._lines.close()
        self._pixels.close()
