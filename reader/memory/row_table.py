"""Rows of a store: their spans in its file, and the one way from rows to a batch.

Callers use a table instead of a test for the kind of store. Raw rows, JPEGs and rows copied to a device differ only in a
row's span of bytes. Knows no place; see `places.py`. Frames are untrusted: each must decode to exactly the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from tensordict import TensorDict

from reader import jpeg_frames
from reader.buffers import own_memory
from reader.format.errors import StoreError
from reader.format.manifest import PIXELS, Manifest
from reader.format.row_values import wrong_extents, wrong_frames
from reader.memory.places import Memory, Place
from reader.memory.spans import Bytes, Layout, Spans, equal_spans, laid_out
from reader.memory.threads import Copies, on_threads
from reader.rows import Rows
from reader.store import Batch, ImageBatch, RaggedBatch, batch_around

# The tensors of some rows except the pixels: [B, ...] each, by name in the manifest.
Columns = Mapping[str, torch.Tensor]
# Bytes of rows that a thread decodes at once: few enough to divide two batches among all threads.
_PIECE_BYTES = 2 << 20


class RowTable:
    """Rows in the file of a store.

    located_by: the columns that locate a row. is_raw: the file holds the pixels as they are.

    Args:
        where: the path of the store, for errors.
    """

    def __init__(self, manifest: Manifest, where: Path) -> None:
        self._manifest, self._where, self.is_raw = manifest, where, manifest.jpeg is None
        names = ("offsets", "shapes", "mask_offsets", "frames")
        self.located_by = [name for name in manifest.tensors if name in names]
        if manifest.jpeg:
            jpeg_frames.check_library()

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return the layout of rows in the file, masks included, and their values.

        Args:
            columns: those of `located_by`.

        Raises:
            StoreError: a row is not in the file, or its frame is invalid; names it.
        """
        m = self._manifest
        if m.has_own_sizes:
            arrays = {name: columns[name].numpy() for name in self.located_by}
            offsets, masks = arrays["offsets"], arrays.get("mask_offsets")
            sizes, wrong = wrong_extents(offsets, arrays["shapes"], masks, m.pixel_bytes)
            self._refuse(rows, wrong, "it is not within the pixels")
            spans, places = Spans(offsets, sizes), laid_out(sizes)
        else:
            spans, places = equal_spans(rows, m.row_bytes)
        if not m.jpeg:
            return Layout(spans, spans.sizes, places)
        frames = columns["frames"].numpy()
        wrong = wrong_frames(frames, spans.sizes, m.files[PIXELS].size_bytes)
        self._refuse(rows, wrong, "its frame is not within the pixels")
        begins, ends = np.ascontiguousarray(frames.T)
        return Layout(Spans(begins, ends - begins), spans.sizes, places)

    def begin(self, rows: Rows, columns: Columns, place: Place, memory: Memory) -> tuple[Batch, Copies | None]:
        """Begin to read rows into memory; the batch is complete after a wait for the copies, if any.

        For a place on a device, the pixels go there, on its current stream; the columns stay on the host.

        Args:
            rows: int64[B] of the store.
            columns: columns of these rows.
            place: place of the pixel file.
            memory: returns the batch's memory; called once all rows are known to be in the file.

        Raises:
            StoreError: a row is not in the file, a file was cut short, or a block cannot be fetched. Other errors of a JPEG
                are raised by the wait.
        """
        layout = self.layout(rows, columns)
        copies: Copies | None
        if self.is_raw:
            pixels, copies = place.load(layout.spans, layout.places, memory)
        else:
            pixels, copies = self._decoded(rows, columns, layout, place, memory)
        return self.batch(rows, columns, pixels, layout.places), copies

    def batch(self, rows: Rows, columns: Columns, pixels: torch.Tensor, places: Rows) -> Batch:
        """Make the batch of rows around their pixels: uint8[n], with the start of each in places, int64[B]."""
        numbers = torch.from_numpy(rows)
        extras = {name.removeprefix("extras/"): column for name, column in columns.items() if "/" in name}
        fields: dict[str, Any] = {name: each for name, each in columns.items() if "/" not in name and name != "frames"}
        fields |= {"rows": numbers, "extras": TensorDict(extras, batch_size=numbers.shape) if extras else None}
        if not self._manifest.has_own_sizes:
            return batch_around(pixels.view(len(rows), *self._manifest.sides), **fields)
        offsets = torch.from_numpy(places)
        if "mask_offsets" in fields:
            fields["mask_offsets"] = fields["mask_offsets"] - fields["offsets"] + offsets
        return RaggedBatch(**{**fields, "offsets": offsets}, pixels=pixels, batch_size=[])

    def _decoded(
        self, rows: Rows, columns: Columns, layout: Layout, place: Place, memory: Memory
    ) -> tuple[torch.Tensor, Copies]:
        """Begin to decode rows on threads, directly into the memory of a batch: uint8[n]."""
        frames, reads = place.load(layout.spans, laid_out(layout.spans.sizes), own_memory)
        if reads is not None:
            reads.wait()
        out, ends = memory(int(layout.sizes.sum())), np.cumsum(layout.sizes)
        sides = np.broadcast_to(self._manifest.largest, (len(rows), 2))
        if self._manifest.has_own_sizes:
            sides = columns["shapes"].numpy()[:, :2]
        packed, pixels, stops = frames.numpy(), out.numpy(), np.cumsum(layout.spans.sizes)
        starts = stops - layout.spans.sizes
        each = [
            (rows[a:b], sides[a:b], packed, starts[a:b], stops[a:b], pixels[ends[a] - layout.sizes[a] : ends[b - 1]])
            for a, b in _pieces(ends)
        ]
        return out, on_threads("decode", torch.get_num_threads(), self._decode, each)

    def _decode(
        self, rows: Rows, sides: npt.NDArray[np.int32], frames: Bytes, starts: Rows, stops: Rows, out: Bytes
    ) -> None:
        """Decode the frames [start, stop) of some rows into out, which has exactly their bytes."""
        channels, done = self._manifest.channels, 0
        for row, (height, width), start, stop in zip(rows, sides.tolist(), starts, stops, strict=True):
            size = height * width * channels
            if what := jpeg_frames.decode(frames.data[start:stop], height, width, channels, out[done : done + size]):
                raise self._error(row, what)
            done += size

    def _refuse(self, rows: Rows, wrong: npt.NDArray[np.bool_], what: str) -> None:
        if wrong.any():
            raise self._error(rows[wrong.argmax()], what)

    def _error(self, row: int, what: str) -> StoreError:
        return StoreError(f"{self._where}: row {row}: {what}. The store is damaged: run pack verify {self._where}")


class CopiedTable(RowTable):
    """Some rows of a store, decoded to memory one after the other.

    Args:
        rows: int64[n], sorted and unique.
        sizes: int64[n], the bytes of each.
    """

    def __init__(self, manifest: Manifest, where: Path, rows: Rows, sizes: Rows) -> None:
        super().__init__(manifest, where)
        self.is_raw, self._rows, self._begins = True, rows, np.append(0, np.cumsum(sizes))

    def layout(self, rows: Rows, columns: Columns) -> Layout:
        """Return the layout of rows in memory."""
        at = np.searchsorted(self._rows, rows)
        begins, ends = self._begins[at], self._begins[at + 1]
        sizes = ends - begins
        return Layout(Spans(begins, sizes), sizes, laid_out(sizes))


def parted(batch: Batch, counts: list[int]) -> list[Batch]:
    """Cut a batch into batches of these numbers of rows, which share its memory."""
    if len(counts) == 1:
        return [batch]
    if isinstance(batch, ImageBatch):
        return list(batch.split(counts))
    stops = np.cumsum(counts).tolist()
    return [_viewed(batch, stop - count, stop) for count, stop in zip(counts, stops, strict=True)]


def _viewed(batch: RaggedBatch, start: int, stop: int) -> RaggedBatch:
    """Return rows [start, stop) of a batch with contiguous rows, as views."""
    names = ("targets", "shapes", "extras", "rows", "origin")
    columns = {name: column[start:stop] for name in names if (column := getattr(batch, name)) is not None}
    offsets = batch.offsets[start:stop]
    first = int(offsets[0]) if len(offsets) else 0
    end = int(batch.offsets[stop]) if stop < len(batch) else len(batch.pixels)
    masks = None if batch.mask_offsets is None else batch.mask_offsets[start:stop] - first
    return RaggedBatch(
        pixels=batch.pixels[first:end], offsets=offsets - first, mask_offsets=masks, batch_size=[], **columns
    )


def _pieces(ends: Rows) -> list[tuple[int, int]]:
    """Cut rows that end at these bytes into pieces for one thread each: [(first, stop), ...]."""
    if not len(ends):
        return []
    numbers = (ends - 1) // _PIECE_BYTES
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *cuts.tolist(), len(ends)]
    return list(itertools.pairwise(bounds))
