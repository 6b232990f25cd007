"""Compressed rows: frames unpacked by threads straight into the memory of a batch.

Knows what bytes a row has; its caller says where frames are. No frame is believed: it has to unpack to exactly the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from reader import frames
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.memory.places import Located, Place, bytes_of
from reader.memory.spans import Bytes, Spans
from reader.memory.threads import Copies, kept, on_threads
from reader.rows import Rows

# A thread unpacks so many bytes of rows at once: enough that a call for each line of them costs little beside it
# (scripts/benchmarks/packing/bench_compress.py), few enough that two batches are shared by all threads.
_PIECE_BYTES = 2 << 20

# Names a row: the path of its store, and its number there.
Locate = Callable[[int], tuple[str, int]]


class FrameCodec:
    """Unpacks the rows of a store.

    Args:
        locate: of a row, the path of its store and its number there, for errors.
    """

    def __init__(self, locate: Locate, manifest: Manifest) -> None:
        assert manifest.compression is not None
        self._codec = manifest.compression.codec
        frames.check_library(self._codec)
        self._locate, self._channels, self._has_masks = locate, manifest.channels, manifest.has_own_masks

    def begin(
        self, rows: Rows, shapes: npt.NDArray[np.int64], sizes: Rows, spans: Spans, place: Place, out: torch.Tensor
    ) -> Copies:
        """Begin to unpack rows to out, uint8[n], one after the other; complete when the copies were waited for.

        Args:
            rows: int64[B].
            shapes: int64[B, 2], height and width of each.
            sizes: int64[B], the bytes that each has, unpacked.
            spans: the frames in their file.
            place: where the file is.
        """
        ends, pixels, located = np.cumsum(sizes), out.numpy(), place.locate(spans)
        each = [
            (
                rows[a:b],
                shapes[a:b],
                Spans(spans.begins[a:b], spans.sizes[a:b]),
                place if located is None else Located(located.memory, located.begins[a:b]),
                pixels[int(ends[a] - sizes[a]) : int(ends[b - 1])],
            )
            for a, b in _pieces(ends)
        ]
        return on_threads("unpack", torch.get_num_threads(), self._unpack, each)

    def _unpack(
        self, rows: Rows, shapes: npt.NDArray[np.int64], spans: Spans, source: Place | Located, out: Bytes
    ) -> None:
        """Read where they are not in memory, unpack and restore some rows: out has exactly their bytes."""
        memory, begins = bytes_of(source, spans, _scratch) if isinstance(source, Place) else source
        ends = begins + spans.sizes
        each = [memory.data[start:stop] for start, stop in zip(begins.tolist(), ends.tolist(), strict=True)]
        damage = frames.unpack_rows(each, shapes, self._channels, out, has_masks=self._has_masks, codec=self._codec)
        if damage:
            raise self.error(int(rows[damage[0]]), damage[1])

    def error(self, row: int, what: str) -> StoreError:
        """Return the error of a row whose frame is damaged."""
        where, number = self._locate(row)
        return StoreError(f"{where}: row {number}: {what}. The store is damaged: run pack verify {where}")


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
