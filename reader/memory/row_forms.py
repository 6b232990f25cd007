"""The two forms of rows, unpacked: of one size, and each of its own size with its mask behind it. Knows no file and no place.

Whoever would ask which form a store has asks its form here for what follows from it: where rows are, their shapes, their batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.row_values import wrong_extents
from reader.memory.spans import Spans, equal_spans, laid_out
from reader.rows import Locate, Rows
from reader.store import Batch, ImageBatch, RaggedBatch, batch_around

# All that some rows have but their pixels: [B, ...] of each tensor, by its name in the manifest.
Columns = Mapping[str, torch.Tensor]


class RowForm(Protocol):
    """What follows from the sizes of rows.

    located_by: the columns that say where a row is.
    """

    located_by: tuple[str, ...]

    def spans(self, rows: Rows, columns: Columns) -> tuple[Spans, Rows]:
        """Return where rows are among all pixels, and where each begins in a batch: int64[B].

        Raises:
            StoreError: one is not within the pixels; names it.
        """
        ...

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return height, width and channels of rows: int32[B, 3]."""
        ...

    def batch(self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows, *, is_one: bool = False) -> Batch:
        """Make the batch of rows, around their pixels: uint8[n], in which each begins at its place.

        is_one: of a single row of one size, without a batch dimension.
        """
        ...

    def blank_pixels(self, count: int) -> torch.Tensor:
        """Return pixels for so many rows that take no memory: zeros, in which each begins at 0."""
        ...


class EqualRows:
    """Rows of one size, one after the other."""

    located_by: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest) -> None:
        self._shape, self._row_bytes = manifest.sides, manifest.row_bytes

    def spans(self, rows: Rows, columns: Columns) -> tuple[Spans, Rows]:
        """Return where rows are, by arithmetic."""
        return equal_spans(rows, self._row_bytes)

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return the same shape for each."""
        return np.full((len(rows), 3), self._shape, np.int32)

    def batch(
        self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows, *, is_one: bool = False
    ) -> ImageBatch:
        """Make an ImageBatch."""
        numbers = torch.from_numpy(rows)
        if is_one:
            numbers, columns = numbers[0], {name: column.squeeze(0) for name, column in columns.items()}
        fields = _fields(columns, numbers.shape)
        return batch_around(pixels.view(*numbers.shape, *self._shape), rows=numbers, **fields)

    def blank_pixels(self, count: int) -> torch.Tensor:
        """Return one byte, repeated."""
        return torch.zeros(1, dtype=torch.uint8).expand(count * self._row_bytes)


class OwnSizeRows:
    """Rows that have a size of their own each, and where there are masks, that of each behind its pixels.

    Args:
        locate: names a row, for errors.
        pixel_bytes: of the pixels of all rows, unpacked.
    """

    def __init__(self, manifest: Manifest, locate: Locate, pixel_bytes: int) -> None:
        self.located_by = tuple(name for name in manifest.tensors if name in ("offsets", "shapes", "mask_offsets"))
        self._locate, self._pixel_bytes = locate, pixel_bytes

    def spans(self, rows: Rows, columns: Columns) -> tuple[Spans, Rows]:
        """Return where rows are, masks included, as their columns say."""
        masks = columns.get("mask_offsets")
        offsets, shapes = columns["offsets"].numpy(), columns["shapes"].numpy()
        sizes, wrong = wrong_extents(offsets, shapes, None if masks is None else masks.numpy(), self._pixel_bytes)
        if wrong.any():
            where, number = self._locate(int(rows[wrong.argmax()]))
            raise StoreError(f"{where}: row {number} is not within the pixels: the store is damaged. Copy it again.")
        return Spans(offsets, sizes), laid_out(sizes)

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return what their column says."""
        return columns["shapes"].numpy()

    def batch(
        self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows, *, is_one: bool = False
    ) -> RaggedBatch:
        """Make a RaggedBatch, of a single row too."""
        numbers, offsets = torch.from_numpy(rows), torch.from_numpy(places)
        fields = _fields(columns, numbers.shape)
        if "mask_offsets" in fields:
            fields["mask_offsets"] = fields["mask_offsets"] - fields["offsets"] + offsets
        return RaggedBatch(**{**fields, "offsets": offsets}, pixels=pixels, rows=numbers, batch_size=[])

    def blank_pixels(self, count: int) -> torch.Tensor:
        """Return one byte: no image is within the pixels."""
        return torch.zeros(1, dtype=torch.uint8)


def row_form(manifest: Manifest, locate: Locate) -> RowForm:
    """Return the form of a store's rows; locate names one of them, for errors."""
    if not manifest.kind.has_own_sizes:
        return EqualRows(manifest)
    return OwnSizeRows(manifest, locate, manifest.pixel_bytes)


def _fields(columns: Columns, batch_size: torch.Size) -> dict[str, Any]:
    """Return columns as the fields of a batch class: extras together."""
    extras = {name.removeprefix("extras/"): column for name, column in columns.items() if "/" in name}
    fields: dict[str, Any] = {name: column for name, column in columns.items() if "/" not in name}
    return fields | {"extras": TensorDict(extras, batch_size=batch_size) if extras else None}


def viewed(batch: RaggedBatch, start: int, stop: int) -> RaggedBatch:
    """Return rows [start, stop) of a batch whose rows follow each other in its pixels, as views."""
    names = ("targets", "shapes", "extras", "rows", "origin")
    columns = {name: column[start:stop] for name in names if (column := getattr(batch, name)) is not None}
    offsets = batch.offsets[start:stop]
    first = int(offsets[0]) if len(offsets) else 0
    end = int(batch.offsets[stop]) if stop < len(batch) else len(batch.pixels)
    masks = None if batch.mask_offsets is None else batch.mask_offsets[start:stop] - first
    return RaggedBatch(
        pixels=batch.pixels[first:end], offsets=offsets - first, mask_offsets=masks, batch_size=[], **columns
    )


def parted(batch: Batch, counts: list[int]) -> list[Batch]:
    """Cut a batch into batches of so many rows, which share its memory."""
    if len(counts) == 1:
        return [batch]
    if isinstance(batch, ImageBatch):
        return list(batch.split(counts))
    stops = np.cumsum(counts).tolist()
    return [viewed(batch, stop - count, stop) for count, stop in zip(counts, stops, strict=True)]


def row_of(store: RaggedBatch, row: int) -> ImageBatch:
    """Return one row, as a view: an ImageBatch without a batch dimension."""
    extras, mask = None if store.extras is None else store.extras[row], store.mask(row)
    if mask is not None:
        extras = TensorDict({**({} if extras is None else extras), "masks": mask}, batch_size=[])
    return ImageBatch(
        pixels=store.image(row), targets=store.targets[row], extras=extras, text_file=store.text_file, batch_size=[]
    )
