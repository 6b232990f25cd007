"""Rows with sizes of their own, gathered by pages: where in the flat file each one is, and what holds it in memory.

A flat file of bytes is read as a file of equal pages, so that buffers, reads ahead and copies are those of rows of one size.
A batch then has up to a page too many at either end of each image, which its offsets leave out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from tensordict import TensorDict

from reader.format.errors import StoreError
from reader.format.manifest import PAGE_BYTES
from reader.format.row_values import wrong_extents
from reader.memory.gather import gather
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch


class PagedRows(NamedTuple):
    """Where rows are in a file, and where in memory that holds the pages of each, one row after the other.

    begins, sizes: int64[B], of each row the first byte in the file and how many.
    pages: int64[P], of the file.
    at: int64[B], of each row the first byte in memory.
    """

    begins: Rows
    sizes: Rows
    pages: Rows
    at: Rows


def paged(store: RaggedBatch, rows: Rows) -> PagedRows:
    """Return where these rows of a store are; raises as `extents`."""
    begins, sizes = extents(store, rows)
    return PagedRows(begins, sizes, *pages_of(begins, sizes))


def extents(store: RaggedBatch, rows: Rows) -> tuple[Rows, Rows]:
    """Return where in the pixels of a store or batch these rows begin, and how many bytes they have with masks: int64[B] each.

    Raises:
        StoreError: one is not within the pixels.
    """
    index = torch.from_numpy(rows)
    offsets, shapes = store.offsets.index_select(0, index).numpy(), store.shapes.index_select(0, index).numpy()
    masks = None if store.mask_offsets is None else store.mask_offsets.index_select(0, index).numpy()
    sizes, wrong = wrong_extents(offsets, shapes, masks, len(store.pixels))
    if wrong.any():
        row = int(rows[wrong.argmax()])
        row = row if store.rows is None else int(store.rows[row])
        raise StoreError(f"row {row} is not within the pixels: the store is damaged. Copy it again.")
    return offsets, sizes


def pages_of(offsets: Rows, sizes: Rows) -> tuple[Rows, Rows]:
    """Return the pages that hold these bytes, row after row, and where each row begins in those pages one after the other.

    Example:
        >>> pages, begins = pages_of(np.array([4000, 100]), np.array([200, 50]))
        >>> pages.tolist(), begins.tolist()
        ([0, 1, 0], [4000, 8292])
    """
    first = offsets // PAGE_BYTES
    counts = -(-(offsets + sizes) // PAGE_BYTES) - first
    before = np.cumsum(counts) - counts
    pages = np.arange(counts.sum()) + np.repeat(first - before, counts)
    return pages, before * PAGE_BYTES + offsets % PAGE_BYTES


def gathered(
    store: RaggedBatch,
    rows: Rows,
    memory: Callable[[int], torch.Tensor],
    fill: Callable[[PagedRows, torch.Tensor], object] | None = None,
) -> RaggedBatch:
    """Copy rows of a store into memory of their own.

    Args:
        memory: gives uint8[size_bytes].
        fill: brings rows, or the pages that hold them, into uint8[P, PAGE_BYTES]; without it they are copied from the store.
    """
    wanted = paged(store, rows)
    pixels = memory(len(wanted.pages) * PAGE_BYTES).view(-1, PAGE_BYTES)
    if fill is not None:
        fill(wanted, pixels)
    else:
        gather(store.pixels.view(-1, PAGE_BYTES), wanted.pages, pixels)
    return store.chosen(rows, pixels.view(-1), torch.from_numpy(wanted.at))


def mapped_rows(store: RaggedBatch, rows: Rows) -> RaggedBatch:
    """Return any rows of a store, as views of all of its pixels."""
    offsets, _ = extents(store, rows)
    return store.chosen(rows, store.pixels, torch.from_numpy(offsets))


def rows_in(store: ImageBatch, rows: Rows, pixels: torch.Tensor, slots: Rows) -> RaggedBatch:
    """Return rows of one size as views of pixels, uint8[n, ...] of rows like the store's, where they are in these slots."""
    index, shape = torch.from_numpy(rows), store.pixels.shape[1:]
    return RaggedBatch(
        pixels=pixels.view(-1),
        targets=store.targets.index_select(0, index),
        offsets=torch.from_numpy(slots) * shape.numel(),
        shapes=torch.tensor(shape, dtype=torch.int32).expand(len(rows), -1),
        rows=index,
        batch_size=[],
    )


def viewed(store: RaggedBatch, rows: Rows) -> RaggedBatch:
    """Return consecutive rows of a store, as views of its pixels."""
    offsets, sizes = extents(store, rows)
    start, stop = (int(offsets.min()), int((offsets + sizes).max())) if len(rows) else (0, 0)
    return store.chosen(rows, store.pixels[start:stop], torch.from_numpy(offsets - start))


def parted(batch: RaggedBatch, counts: list[int]) -> list[RaggedBatch]:
    """Cut a batch into batches of so many rows, which share its memory."""
    parts, start = [], 0
    for count in counts:
        parts.append(viewed(batch, np.arange(start, start + count)))
        start += count
    return parts


def row_of(store: RaggedBatch, row: int) -> ImageBatch:
    """Return one row, as a view: an ImageBatch without a batch dimension."""
    extras, mask = None if store.extras is None else store.extras[row], store.mask(row)
    if mask is not None:
        extras = TensorDict({**({} if extras is None else extras), "masks": mask}, batch_size=[])
    return ImageBatch(
        pixels=store.image(row), targets=store.targets[row], extras=extras, text_file=store.text_file, batch_size=[]
    )
