"""Rows of a store: their form, how the file keeps them, where they are in it, and the one way from rows to a batch.

A table is a form (of one size, or of a size each), of rows that are raw or JPEGs. Callers ask these two instead of asking which
kind of store it is. Raw rows, frames, rows of several stores and rows copied to a device differ in one thing here: the span of
bytes that a row is. Knows no place; see `places.py`. No frame is believed: it has to decode to exactly the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from reader import jpeg_frames
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.row_values import wrong_extents, wrong_frames
from reader.memory.places import Located, Memory, Place, bytes_of
from reader.memory.spans import Bytes, Layout, Spans, equal_spans, laid_out
from reader.memory.threads import Copies, kept, on_threads
from reader.rows import Locate, Rows
from reader.store import Batch, ImageBatch, RaggedBatch, batch_around

# All that some rows have but their pixels: [B, ...] of each tensor, by its name in the manifest.
Columns = Mapping[str, torch.Tensor]
# A thread decodes so many bytes of rows at once: few enough that two batches are shared by all threads.
_PIECE_BYTES = 2 << 20


class EqualRows:
    """Rows of one size, one after the other.

    located_by: the columns that say where a row is.
    """

    located_by: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest) -> None:
        self._shape, self._row_bytes = manifest.sides, manifest.row_bytes

    def spans(self, rows: Rows, columns: Columns) -> tuple[Spans, Rows]:
        """Return where rows are among all pixels, by arithmetic, and where each begins in a batch: int64[B]."""
        return equal_spans(rows, self._row_bytes)

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return height, width and channels of each, which are the same: int32[B, 3]."""
        return np.full((len(rows), 3), self._shape, np.int32)

    def batch(
        self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows, *, is_one: bool = False
    ) -> ImageBatch:
        """Make the batch of rows around their pixels: uint8[n], in which each begins at its place.

        is_one: of a single row, without a batch dimension.
        """
        numbers = torch.from_numpy(rows)
        if is_one:
            numbers, columns = numbers[0], {name: column.squeeze(0) for name, column in columns.items()}
        fields = _fields(columns, numbers.shape)
        return batch_around(pixels.view(*numbers.shape, *self._shape), rows=numbers, **fields)


class OwnSizeRows:
    """Rows that have a size of their own each, and where there are masks, that of each behind its pixels.

    Args:
        locate: names a row, for errors.
    """

    def __init__(self, manifest: Manifest, locate: Locate) -> None:
        self.located_by = tuple(name for name in manifest.tensors if name in ("offsets", "shapes", "mask_offsets"))
        self._locate, self._pixel_bytes = locate, manifest.pixel_bytes

    def spans(self, rows: Rows, columns: Columns) -> tuple[Spans, Rows]:
        """Return where rows are among all pixels, masks included, and where each begins in a batch: int64[B].

        Raises:
            StoreError: one is not within the pixels; names it.
        """
        masks = columns.get("mask_offsets")
        offsets, shapes = columns["offsets"].numpy(), columns["shapes"].numpy()
        sizes, wrong = wrong_extents(offsets, shapes, None if masks is None else masks.numpy(), self._pixel_bytes)
        if wrong.any():
            where, number = self._locate(int(rows[wrong.argmax()]))
            raise StoreError(f"{where}: row {number} is not within the pixels: the store is damaged. Copy it again.")
        return Spans(offsets, sizes), laid_out(sizes)

    def shapes(self, rows: Rows, columns: Columns) -> npt.NDArray[np.int32]:
        """Return height, width and channels of each, as the column says: int32[B, 3]."""
        return columns["shapes"].numpy()

    def batch(
        self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows, *, is_one: bool = False
    ) -> RaggedBatch:
        """Make the batch of rows, of a single one too, around their pixels: uint8[n], in which each begins at its place."""
        numbers, offsets = torch.from_numpy(rows), torch.from_numpy(places)
        fields = _fields(columns, numbers.shape)
        if "mask_offsets" in fields:
            fields["mask_offsets"] = fields["mask_offsets"] - fields["offsets"] + offsets
        return RaggedBatch(**{**fields, "offsets": offsets}, pixels=pixels, rows=numbers, batch_size=[])


# The form of rows, unpacked: of one size, or of a size each.
RowForm = EqualRows | OwnSizeRows


class FrameRows:
    """Decodes rows that are JPEGs, by threads, straight into the memory of a batch.

    Args:
        manifest: of a store whose rows are JPEGs.
        form: of the rows, decoded.
        locate: names a row, for errors.
    """

    def __init__(self, manifest: Manifest, form: RowForm, locate: Locate) -> None:
        jpeg_frames.check_library()
        self._form, self._locate, self._channels = form, locate, manifest.channels

    def begin(
        self, rows: Rows, columns: Columns, layout: Layout, place: Place, memory: Memory
    ) -> tuple[torch.Tensor, Copies]:
        """Begin to decode rows: uint8[n], complete when the copies were waited for; what is wrong with a frame, waiting raises.

        Args:
            rows: int64[B] of the table.
            columns: of these rows.

        Raises:
            StoreError: a file was cut short, or something cannot be had.
        """
        out = memory(int(layout.sizes.sum()))
        shapes = self._form.shapes(rows, columns)[:, :2].astype(np.int64)
        ends, pixels, located = np.cumsum(layout.sizes), out.numpy(), place.locate(layout.spans)
        each = [
            (
                rows[a:b],
                shapes[a:b],
                Spans(layout.spans.begins[a:b], layout.spans.sizes[a:b]),
                place if located is None else Located(located.memory, located.begins[a:b]),
                pixels[int(ends[a] - layout.sizes[a]) : int(ends[b - 1])],
            )
            for a, b in _pieces(ends)
        ]
        return out, on_threads("decode", torch.get_num_threads(), self._decode, each)

    def _decode(
        self, rows: Rows, shapes: npt.NDArray[np.int64], spans: Spans, source: Place | Located, out: Bytes
    ) -> None:
        """Read some rows where they are not in memory, and decode them: out has exactly their bytes."""
        memory, begins = bytes_of(source, spans, _scratch) if isinstance(source, Place) else source
        ends, stop = (begins + spans.sizes).tolist(), 0
        for number, (height, width) in enumerate(shapes.tolist()):
            start, stop = stop, stop + height * width * self._channels
            frame = memory.data[int(begins[number]) : ends[number]]
            if what := jpeg_frames.decode(frame, height, width, self._channels, out[start:stop]):
                raise self.error(int(rows[number]), what)

    def error(self, row: int, what: str) -> StoreError:
        """Return the error of a row whose frame is damaged."""
        where, number = self._locate(row)
        return StoreError(f"{where}: row {number}: {what}. The store is damaged: run pack verify {where}")


class RowTable:
    """Rows of a file.

    form: what follows from their sizes. is_raw: a mapping of the file shows the rows, and a device takes them from there.

    Args:
        codec: what unpacks them; None: the file has them raw.
    """

    def __init__(self, form: RowForm, codec: FrameRows | None = None) -> None:
        self.form, self.is_raw, self._unpacker = form, codec is None, codec

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are, int64[B], and what they are.

        Raises:
            StoreError: one is not in the file, or its frame is none of such a row; names it.
        """
        spans, places = self.form.spans(rows, columns)
        return Layout(spans, spans.sizes, places)

    def begin(
        self, rows: Rows, columns: Columns, place: Place, memory: Memory, *, is_one: bool = False
    ) -> tuple[Batch, Copies | None]:
        """Begin to bring rows to memory; the batch is complete when the copies, if there are any, were waited for.

        From a place that is for a device the pixels go there, on its current stream; the columns stay on the host.

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
        layout = self.layout(rows, columns)
        copies: Copies | None
        if self._unpacker is None:
            pixels, copies = place.bring(layout.spans, layout.places, memory)
        else:
            pixels, copies = self._unpacker.begin(rows, columns, layout, place, memory)
        return self.form.batch(rows, columns, pixels, layout.places, is_one=is_one), copies


class FrameTable(RowTable):
    """Rows that are a frame each.

    Args:
        frames: int64[N, 2], where the frame of each row begins and ends in the file.
        file_bytes: of the file of frames.
    """

    def __init__(self, form: RowForm, codec: FrameRows, frames: torch.Tensor, file_bytes: int) -> None:
        super().__init__(form, codec)
        self._codec, self._frames, self._file_bytes = codec, frames.numpy(), file_bytes

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where frames are, and what rows are unpacked."""
        raw, places = self.form.spans(rows, columns)
        frames = self._frames[rows]
        wrong = wrong_frames(frames, raw.sizes, self._file_bytes)
        if wrong.any():
            raise self._codec.error(int(rows[wrong.argmax()]), "its frame is not within the pixels")
        return Layout(Spans(frames[:, 0], frames[:, 1] - frames[:, 0]), raw.sizes, places)


class CopiedTable(RowTable):
    """Some rows of a store that were unpacked to memory, one after the other.

    Args:
        form: that they have in the store.
        rows: int64[n], sorted and each once.
        sizes: int64[n], the bytes of each.
    """

    def __init__(self, form: RowForm, rows: Rows, sizes: Rows) -> None:
        super().__init__(form)
        self._rows, self._begins = rows, np.append(0, np.cumsum(sizes))

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are in the memory."""
        at = np.searchsorted(self._rows, rows)
        begins, ends = self._begins[at], self._begins[at + 1]
        sizes = ends - begins
        return Layout(Spans(begins, sizes), sizes, laid_out(sizes))


def row_table(manifest: Manifest, locate: Locate, frames: torch.Tensor | None, file_bytes: int) -> RowTable:
    """Return the table of a store.

    Args:
        locate: names a row, for errors.
        frames: as of `FrameTable`, where rows are that.
        file_bytes: of the file of pixels.
    """
    form: RowForm = OwnSizeRows(manifest, locate) if manifest.has_own_sizes else EqualRows(manifest)
    codec = FrameRows(manifest, form, locate) if manifest.jpeg else None
    return RowTable(form) if codec is None or frames is None else FrameTable(form, codec, frames, file_bytes)


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
    return ImageBatch(pixels=store.image(row), targets=store.targets[row], extras=extras, batch_size=[])


def _fields(columns: Columns, batch_size: torch.Size) -> dict[str, Any]:
    """Return columns as the fields of a batch class: extras together."""
    extras = {name.removeprefix("extras/"): column for name, column in columns.items() if "/" in name}
    fields: dict[str, Any] = {name: column for name, column in columns.items() if "/" not in name}
    return fields | {"extras": TensorDict(extras, batch_size=batch_size) if extras else None}


def _scratch(size_bytes: int) -> torch.Tensor:
    """Return uint8[size_bytes], the same memory of this thread each time; fresh memory costs a page fault every 4 KiB."""
    if size_bytes > _PIECE_BYTES:
        return torch.from_numpy(np.empty(size_bytes, np.uint8))
    if not hasattr(kept, "packed"):
        kept.packed = torch.from_numpy(np.empty(_PIECE_BYTES, np.uint8))
    packed: torch.Tensor = kept.packed[:size_bytes]
    return packed


def _pieces(ends: Rows) -> list[tuple[int, int]]:
    """Cut rows that end at these bytes into pieces that one thread does: [(first, stop), ...]."""
    if not len(ends):
        return []
    numbers = (ends - 1) // _PIECE_BYTES
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *cuts.tolist(), len(ends)]
    return list(itertools.pairwise(bounds))
