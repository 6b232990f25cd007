"""Where the rows and tensors of a finished store are in its files, for what reads without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, Manifest
from reader.format.row_values import wrong_extents


def mapped_tensor(out: Path, manifest: Manifest, name: str) -> npt.NDArray[Any]:
    """Map a tensor beside the pixels, [N, *row_shape], such as "targets" or "extras/boxes"; one without bytes is empty."""
    spec = manifest.tensors[name]
    shape = (manifest.rows, *spec.row_shape)
    return (
        np.memmap(out / manifest.tensor_paths()[name], spec.dtype, "r", shape=shape) if all(shape) else np.empty(shape)
    )


class EqualRows:
    """Rows of one size."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        self._row_bytes = manifest.row_bytes

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the pixels of a row begin in the file, and how many bytes they are."""
        return row * self._row_bytes, self._row_bytes


class RaggedRows:
    """Rows with sizes of their own, as views uint8[H, W, C] of the mapped file, and their masks."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        paths, rows = manifest.tensor_paths(), manifest.rows
        self._out, self._channels = out, manifest.channels
        self._masks = None
        if manifest.has_own_masks:
            self._masks = np.memmap(out / paths["mask_offsets"], np.int64, "r", shape=(rows,))
        self._pixels = np.memmap(out / PIXELS, np.uint8, "r")
        self._offsets = np.memmap(out / paths["offsets"], np.int64, "r", shape=(rows,))
        self._shapes = np.memmap(out / paths["shapes"], np.int32, "r", shape=(rows, 3))

    def __getitem__(self, row: int) -> npt.NDArray[np.uint8]:
        offset, size_bytes = self.extent(row)
        return np.asarray(self._pixels[offset : offset + size_bytes]).reshape(self._shapes[row].tolist())

    def extent(self, row: int) -> tuple[int, int]:
        """Return where the pixels of a row begin in the file, and how many bytes they are.

        Raises:
            StoreError: they do not lie in it.
        """
        row_masks = None if self._masks is None else self._masks[row : row + 1]
        _, wrong = wrong_extents(
            self._offsets[row : row + 1], self._shapes[row : row + 1], row_masks, self._pixels.size
        )
        if wrong[0] or self._shapes[row, 2] != self._channels:
            raise StoreError(
                f"{self._out}: row {row} does not lie within the pixels: the store is damaged. Copy it again."
            )
        return int(self._offsets[row]), int(np.prod(self._shapes[row].tolist(), dtype=np.int64))

    def mask(self, row: int) -> npt.NDArray[np.uint8]:
        """Return the mask of a row, uint8[H, W], in a store that has them: it stands behind the row's pixels."""
        height, width, _ = self._shapes[row].tolist()
        start = sum(self.extent(row))
        return np.asarray(self._pixels[start : start + height * width]).reshape(height, width)


def stored_rows(out: Path, manifest: Manifest) -> EqualRows | RaggedRows:
    """Return where the rows of a store are."""
    return RaggedRows(out, manifest) if manifest.has_own_sizes else EqualRows(out, manifest)
