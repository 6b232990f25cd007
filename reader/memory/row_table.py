"""What the rows of a store are, and the one way from rows to a batch. Knows no place; see `places.py` for where bytes are.

Raw rows of one size, rows of their own sizes with masks behind them and compressed rows differ in two things alone: which span
of the file a row is, and what that unpacks to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.row_values import wrong_extents
from reader.format.tensors import wrong_frames
from reader.memory.frame_codec import FrameCodec, Locate
from reader.memory.places import Located, Place, begin_sending
from reader.memory.spans import Spans, equal_spans, laid_out
from reader.memory.threads import Copies
from reader.rows import Rows, routed
from reader.store import Batch, ImageBatch, RaggedBatch, batch_around

# Gives uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]
# All that some rows have but their pixels: [B, ...] of each tensor, by its name in the manifest.
Columns = Mapping[str, torch.Tensor]


# Columns that say where a row with a size of its own is.
_PLACES = ("offsets", "shapes", "mask_offsets")


class Layout(NamedTuple):
    """Of some rows: where they are in the file, and, int64[B] each, the bytes of each unpacked and where it begins in a batch."""

    spans: Spans
    sizes: Rows
    places: Rows


class RowTable:
    """What the rows of a store are.

    Args:
        locate: of a row, the path of its store and its number there, for errors.
        pixel_bytes: of the pixels of all rows, unpacked.
        frames: int64[N, 2], where the frame of each row begins and ends in the file; None: rows are not compressed.
        file_bytes: of the file of frames.
    """

    def __init__(
        self,
        manifest: Manifest,
        locate: Locate,
        pixel_bytes: int,
        frames: torch.Tensor | None = None,
        file_bytes: int = 0,
    ) -> None:
        self._row_shape = manifest.height, manifest.width, manifest.channels
        self._row_bytes, self.has_own_sizes = manifest.row_bytes, manifest.has_own_sizes
        self._pixel_bytes, self._file_bytes, self.frames = pixel_bytes, file_bytes, frames
        self._locate = locate
        self.codec = None if manifest.compression is None else FrameCodec(locate, manifest)
        self._codec_name = "" if manifest.compression is None else manifest.compression.codec

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are, int64[B], and what they are.

        Raises:
            StoreError: one is not in the file, or its frame is none of such a row; names it.
        """
        if self.has_own_sizes:
            raw = self._own_spans(rows, columns)
            places = laid_out(raw.sizes)
        else:
            raw, places = equal_spans(rows, self._row_bytes)
        if self.frames is None:
            return Layout(raw, raw.sizes, places)
        assert self.codec is not None
        frames = self.frames.numpy()[rows]
        wrong = wrong_frames(self._codec_name, frames, raw.sizes, self._file_bytes)
        if wrong.any():
            raise self.codec.error(int(rows[wrong.argmax()]), "its frame is not within the pixels")
        return Layout(Spans(frames[:, 0], frames[:, 1] - frames[:, 0]), raw.sizes, places)

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return height, width and channels of rows: int32[B, 3]."""
        if self.has_own_sizes:
            return columns["shapes"].numpy()
        return np.full((len(rows), 3), self._row_shape, np.int32)

    def mask_spans(self, rows: Rows, columns: Columns) -> Spans:
        """Return where the masks of raw rows are in the file, behind their pixels; raises StoreError as `layout`."""
        spans = self._own_spans(rows, columns)
        areas = columns["shapes"][:, :2].numpy().prod(axis=1, dtype=np.int64)
        return Spans(spans.ends - areas, areas)

    def batch(self, rows: torch.Tensor, columns: Columns, pixels: torch.Tensor, places: Rows) -> Batch:
        """Make the batch of rows, around their pixels: uint8[n], in which each begins at its place.

        rows: int64[B], what the batch calls them; int64[] of one row of one size: without a batch dimension.
        """
        own: dict[str, Any] = {name: column for name, column in columns.items() if "/" not in name}
        extras = {name.removeprefix("extras/"): column for name, column in columns.items() if "/" in name}
        if not rows.ndim:
            own, extras = ({name: column.squeeze(0) for name, column in each.items()} for each in (own, extras))
        own["extras"] = TensorDict(extras, batch_size=rows.shape) if extras else None
        if not self.has_own_sizes:
            return batch_around(pixels.view(*rows.shape, *self._row_shape), rows=rows, **own)
        offsets = torch.from_numpy(places)
        if "mask_offsets" in own:
            own["mask_offsets"] = own["mask_offsets"] - own["offsets"] + offsets
        return RaggedBatch(**{**own, "offsets": offsets}, pixels=pixels, rows=rows, batch_size=[])

    def views(self, rows: Rows, columns: Columns, located: Located) -> RaggedBatch:
        """Make a batch of raw rows where they are in memory, with what a crop needs of them."""
        return RaggedBatch(
            pixels=torch.from_numpy(located.memory),
            targets=columns["targets"],
            offsets=torch.from_numpy(located.begins),
            shapes=torch.from_numpy(self.shapes(rows, columns)),
            rows=torch.from_numpy(rows),
            batch_size=[],
        )

    def _own_spans(self, rows: Rows, columns: Columns) -> Spans:
        """Return where rows with sizes of their own are in the pixels, masks included."""
        masks = columns.get("mask_offsets")
        offsets, shapes = columns["offsets"].numpy(), columns["shapes"].numpy()
        sizes, wrong = wrong_extents(offsets, shapes, None if masks is None else masks.numpy(), self._pixel_bytes)
        if wrong.any():
            where, number = self._locate(int(rows[wrong.argmax()]))
            raise StoreError(f"{where}: row {number} is not within the pixels: the store is damaged. Copy it again.")
        return Spans(offsets, sizes)


class JoinedTable(RowTable):
    """The rows of several stores, one store behind the other.

    Args:
        tables: of the stores.
        firsts: int64[S], the number of each store's first row.
        bases: where the bytes of each store's file of pixels begin among those of all.
    """

    def __init__(
        self, manifest: Manifest, locate: Locate, tables: Sequence[RowTable], firsts: Rows, bases: Sequence[int]
    ) -> None:
        super().__init__(manifest, locate, 0)
        self._tables, self._firsts, self._bases = tables, firsts, bases

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are among the bytes of all files, and what they are; an error names the row's own store."""
        begins, sizes, unpacked = (np.empty(len(rows), np.int64) for _ in range(3))
        for n, at, own in routed(self._firsts, rows):
            part = self._tables[n].layout(own, _some(columns, at))
            begins[at], sizes[at], unpacked[at] = part.spans.begins + self._bases[n], part.spans.sizes, part.sizes
        return Layout(Spans(begins, sizes), unpacked, laid_out(unpacked))

    def mask_spans(self, rows: Rows, columns: Columns) -> Spans:
        """Return where masks are among the bytes of all files."""
        begins, sizes = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        for n, at, own in routed(self._firsts, rows):
            spans = self._tables[n].mask_spans(own, _some(columns, at))
            begins[at], sizes[at] = spans.begins + self._bases[n], spans.sizes
        return Spans(begins, sizes)


def _some(columns: Columns, at: Rows | slice) -> Columns:
    """Return what says where some rows are."""
    index = at if isinstance(at, slice) else torch.from_numpy(at)
    return {name: columns[name][index] for name in _PLACES if name in columns}


def begin_batch(
    table: RowTable, rows: Rows, columns: Columns, place: Place, memory: Memory, *, is_one: bool = False
) -> tuple[Batch, Copies | None]:
    """Begin to bring rows to memory; the batch is complete when the copies, if there are any, were waited for.

    From a place that is pinned for a device the pixels go there, on its current stream; the columns stay on the host.

    Args:
        rows: int64[B] of the table.
        columns: of these rows.
        place: where the file of pixels is.
        memory: gives the batch its memory; asked once all rows are known to be in the file.
        is_one: the batch of a single row of one size has no batch dimension.

    Raises:
        StoreError: a row is not in the file, or a file was cut short, or something cannot be had. What else is wrong with a
            compressed row, waiting raises.
    """
    layout = table.layout(rows, columns)
    copies = None
    pixels = None
    if table.codec is None:
        pixels = begin_sending(place, layout.spans, layout.places)
        pixels = place.view(layout.spans) if pixels is None else pixels
    if pixels is None:
        pixels = memory(int(layout.sizes.sum()))
        if table.codec is None:
            copies = place.read(layout.spans, pixels, layout.places)
        else:
            shapes = table.shapes(rows, columns)[:, :2].astype(np.int64)
            copies = table.codec.begin(rows, shapes, layout.sizes, layout.spans, place, pixels)
    numbers = torch.from_numpy(rows)
    return table.batch(
        numbers[0] if is_one and not table.has_own_sizes else numbers, columns, pixels, layout.places
    ), copies


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
