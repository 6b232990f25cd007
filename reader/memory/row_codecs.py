"""How rows are kept in their file: as they are, or as frames, which threads unpack straight into the memory of a batch.

Knows what bytes a row has; a table says where they are. No frame is believed: it has to unpack to exactly the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch

from reader import frames
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.memory.places import Located, Place, bytes_of
from reader.memory.row_forms import Columns, RowForm
from reader.memory.spans import Bytes, Layout, Spans
from reader.memory.threads import Copies, kept, on_threads
from reader.rows import Locate, Rows

# Gives uint8[size_bytes].
Memory = Callable[[int], torch.Tensor]

# A thread unpacks so many bytes of rows at once: enough that a call for each line of them costs little beside it
# (scripts/benchmarks/packing/bench_compress.py), few enough that two batches are shared by all threads.
_PIECE_BYTES = 2 << 20


class RowCodec(Protocol):
    """How a table's rows are kept.

    is_raw: as they are: a mapping of the file shows them, and a device takes them from there.
    """

    is_raw: ClassVar[bool]

    def begin(
        self, rows: Rows, columns: Columns, layout: Layout, place: Place, memory: Memory
    ) -> tuple[torch.Tensor, Copies | None]:
        """Begin to bring rows from a place: uint8[n], complete when the copies, if there are any, were waited for.

        Args:
            rows: int64[B] of the table.
            columns: of these rows.
            memory: gives the pixels their memory, where they are not on a device, or in memory that a batch may have.

        Raises:
            StoreError: a file was cut short, or something cannot be had.
        """
        ...


class RawRows:
    """Rows that are in their file as they are."""

    is_raw: ClassVar[bool] = True

    def begin(
        self, rows: Rows, columns: Columns, layout: Layout, place: Place, memory: Memory
    ) -> tuple[torch.Tensor, Copies | None]:
        """Begin to copy rows, or to send them to the device that the place is for."""
        pixels = place.send(layout.spans, layout.places)
        if pixels is None:
            pixels = place.view(layout.spans)
        if pixels is not None:
            return pixels, None
        pixels = memory(int(layout.sizes.sum()))
        return pixels, place.read(layout.spans, pixels, layout.places)


class FrameRows:
    """Rows that are a frame each, of zstd or a JPEG.

    Args:
        form: of the rows, unpacked.
        locate: names a row, for errors.
    """

    is_raw: ClassVar[bool] = False

    def __init__(self, form: RowForm, locate: Locate, codec: str, *, has_masks: bool, channels: int) -> None:
        frames.check_library(codec)
        self.codec, self._form, self._locate = codec, form, locate
        self._channels, self._has_masks = channels, has_masks

    def begin(
        self, rows: Rows, columns: Columns, layout: Layout, place: Place, memory: Memory
    ) -> tuple[torch.Tensor, Copies]:
        """Begin to unpack rows; what is wrong with a frame, waiting raises."""
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
        return out, on_threads("unpack", torch.get_num_threads(), self._unpack, each)

    def _unpack(
        self, rows: Rows, shapes: npt.NDArray[np.int64], spans: Spans, source: Place | Located, out: Bytes
    ) -> None:
        """Read where they are not in memory, unpack and restore some rows: out has exactly their bytes."""
        memory, begins = bytes_of(source, spans, _scratch) if isinstance(source, Place) else source
        ends = begins + spans.sizes
        each = [memory.data[start:stop] for start, stop in zip(begins.tolist(), ends.tolist(), strict=True)]
        damage = frames.unpack_rows(each, shapes, self._channels, out, has_masks=self._has_masks, codec=self.codec)
        if damage:
            raise self.error(int(rows[damage[0]]), damage[1])

    def error(self, row: int, what: str) -> StoreError:
        """Return the error of a row whose frame is damaged."""
        where, number = self._locate(row)
        return StoreError(f"{where}: row {number}: {what}. The store is damaged: run pack verify {where}")


def row_codec(manifest: Manifest, form: RowForm, locate: Locate) -> RawRows | FrameRows:
    """Return how a store's rows are kept; locate names one of them, for errors."""
    if manifest.compression is None:
        return RawRows()
    codec, has_masks = manifest.compression.codec, manifest.has_own_masks
    return FrameRows(form, locate, codec, has_masks=has_masks, channels=manifest.channels)


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
