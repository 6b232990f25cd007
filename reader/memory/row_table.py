"""Where the rows of a store are in its file, and the one way from rows to a batch. Knows no place; see `places.py`.

A table has the form of its rows and their codec. Raw rows, frames, rows of several stores and rows that were unpacked to memory
differ in one thing here: the span of bytes that a row is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.tensors import wrong_frames
from reader.memory.places import Place
from reader.memory.row_codecs import FrameRows, Memory, RawRows, RowCodec, row_codec
from reader.memory.row_forms import Columns, RowForm, row_form
from reader.memory.spans import Layout, Spans, laid_out
from reader.memory.threads import Copies
from reader.rows import Locate, Rows, routed
from reader.store import Batch, RaggedBatch


class RowTable:
    """Rows that are in their file as they are.

    form: what follows from their sizes. codec: how they are kept.
    """

    def __init__(self, form: RowForm, codec: RowCodec) -> None:
        self.form, self.codec = form, codec

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are, int64[B], and what they are.

        Raises:
            StoreError: one is not in the file, or its frame is none of such a row; names it.
        """
        spans, places = self.form.spans(rows, columns)
        return Layout(spans, spans.sizes, places)

    def mask_spans(self, rows: Rows, columns: Columns) -> Spans:
        """Return where the masks of raw rows are in the file, behind their pixels; raises StoreError as `layout`."""
        spans = self.layout(rows, columns).spans
        areas = self.form.shapes(rows, columns)[:, :2].prod(axis=1, dtype=np.int64)
        return Spans(spans.ends - areas, areas)

    def views(self, rows: Rows, columns: Columns, spans: Spans, place: Place) -> RaggedBatch | None:
        """Make a batch of rows where they are in memory, with what a crop needs of them; None: they have to be brought there.

        Raises:
            StoreError, OSError: as `Place.locate`.
        """
        located = place.locate(spans) if self.codec.is_raw else None
        if located is None:
            return None
        return RaggedBatch(
            pixels=torch.from_numpy(located.memory),
            targets=columns["targets"],
            offsets=torch.from_numpy(located.begins),
            shapes=torch.from_numpy(self.form.shapes(rows, columns)),
            rows=torch.from_numpy(rows),
            batch_size=[],
        )


class FrameTable(RowTable):
    """Rows that are a frame each.

    Args:
        frames: int64[N, 2], where the frame of each row begins and ends in the file.
        file_bytes: of the file of frames.
        locate: names a row, for errors.
    """

    def __init__(self, form: RowForm, codec: FrameRows, frames: torch.Tensor, file_bytes: int, locate: Locate) -> None:
        super().__init__(form, codec)
        self._name, self._frames, self._file_bytes, self._locate = codec.codec, frames.numpy(), file_bytes, locate

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where frames are, and what rows are unpacked."""
        raw, places = self.form.spans(rows, columns)
        frames = self._frames[rows]
        wrong = wrong_frames(self._name, frames, raw.sizes, self._file_bytes)
        if wrong.any():
            where, number = self._locate(int(rows[wrong.argmax()]))
            raise StoreError(
                f"{where}: row {number}: its frame is not within the pixels. The store is damaged: run pack verify {where}"
            )
        return Layout(Spans(frames[:, 0], frames[:, 1] - frames[:, 0]), raw.sizes, places)


class JoinedTable(RowTable):
    """The rows of several stores, one store behind the other.

    Args:
        tables: of the stores.
        firsts: int64[S], the number of each store's first row.
        bases: where the bytes of each store's file of pixels begin among those of all.
    """

    def __init__(
        self, form: RowForm, codec: RowCodec, tables: Sequence[RowTable], firsts: Rows, bases: Sequence[int]
    ) -> None:
        super().__init__(form, codec)
        self._tables, self._firsts, self._bases = tables, firsts, bases

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return where rows are among the bytes of all files, and what they are; an error names the row's own store."""
        begins, sizes, unpacked = (np.empty(len(rows), np.int64) for _ in range(3))
        for n, at, own in routed(self._firsts, rows):
            index = at if isinstance(at, slice) else torch.from_numpy(at)
            part = self._tables[n].layout(own, {name: columns[name][index] for name in self.form.located_by})
            begins[at], sizes[at], unpacked[at] = part.spans.begins + self._bases[n], part.spans.sizes, part.sizes
        return Layout(Spans(begins, sizes), unpacked, laid_out(unpacked))


class CopiedTable(RowTable):
    """Some rows of a store that were unpacked to memory, one after the other.

    Args:
        form: that they have in the store.
        rows: int64[n], sorted and each once.
        sizes: int64[n], the bytes of each.
    """

    def __init__(self, form: RowForm, rows: Rows, sizes: Rows) -> None:
        super().__init__(form, RawRows())
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
    form = row_form(manifest, locate)
    codec = row_codec(manifest, form, locate)
    if frames is None:
        return RowTable(form, codec)
    assert isinstance(codec, FrameRows)
    return FrameTable(form, codec, frames, file_bytes, locate)


def joined_table(
    manifest: Manifest, locate: Locate, tables: Sequence[RowTable], firsts: Rows, bases: Sequence[int]
) -> JoinedTable:
    """Return the table of several stores as one, as of `JoinedTable`; manifest: theirs together."""
    form = row_form(manifest, locate)
    return JoinedTable(form, row_codec(manifest, form, locate), tables, firsts, bases)


def begin_batch(
    table: RowTable, rows: Rows, columns: Columns, place: Place, memory: Memory, *, is_one: bool = False
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
    layout = table.layout(rows, columns)
    pixels, copies = table.codec.begin(rows, columns, layout, place, memory)
    return table.form.batch(rows, columns, pixels, layout.places, is_one=is_one), copies
