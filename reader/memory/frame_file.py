"""The file of compressed rows: frames are read and unpacked by threads straight into the memory of a batch.

Knows where frames are and what a row has of bytes; which rows are wanted, and in what memory, is said by the caller. No frame is
believed: it has to be in the file, be of a size that its row can have, and unpack to exactly the row.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from reader import frames
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.tensors import wrong_frames
from reader.memory.gather import Copies, on_threads
from reader.memory.pages import extents
from reader.memory.row_file import Read
from reader.rows import Rows
from reader.store import RaggedBatch, map_tensor

# A thread unpacks so many bytes of rows at once: enough that a call for each line of them costs little beside it
# (scripts/benchmarks/packing/bench_compress.py), few enough that two batches are shared by all threads.
_PIECE_BYTES = 2 << 20

# Brings bytes of the file into memory: (first byte, how many, first byte of memory) each, as a `RowFile` of bytes.
ReadBytes = Callable[[memoryview, Sequence[Read]], None]


class HeldFrames(NamedTuple):
    """Frames of some rows in memory: uint8[n], and where each begins there, int64[B]."""

    memory: npt.NDArray[np.uint8]
    begins: Rows


# What frames are taken from: what reads the file, all of its bytes, uint8[n], in memory, or those of the rows that are asked for.
FrameSource = ReadBytes | npt.NDArray[np.uint8] | HeldFrames
# Names a row: the path of its store, and its number there.
Locate = Callable[[int], tuple[str, int]]


class FrameFile:
    """The frames of a store.

    Args:
        locate: of a row, the path of its store and its number there, for errors.
        table: int64[N, 2], where each row's frame begins and ends in the file.
        size_bytes: of the file.
        read: reads the file.
    """

    def __init__(
        self, locate: Locate, manifest: Manifest, table: torch.Tensor, size_bytes: int, read: ReadBytes
    ) -> None:
        assert manifest.compression is not None
        self._codec = manifest.compression.codec
        frames.check_library(self._codec)
        self._locate, self._channels, self._has_masks = locate, manifest.channels, manifest.has_own_masks
        self._read = read
        self._sides = np.array([manifest.height, manifest.width])
        self.table, self.size_bytes = table, size_bytes

    def extents(self, rows: Rows, sizes: Rows) -> tuple[Rows, Rows]:
        """Return where in the file the frames of rows begin, and how many bytes they have: int64[B] each.

        sizes: int64[B], bytes of the rows unpacked.

        Raises:
            StoreError: one is not in the file, or is not a frame of such a row; names it.
        """
        spans = self.table.numpy()[rows]
        wrong = wrong_frames(self._codec, spans, sizes, self.size_bytes)
        if wrong.any():
            raise self.error(int(rows[wrong.argmax()]), "its frame is not within the pixels")
        return spans[:, 0], spans[:, 1] - spans[:, 0]

    def begin_equal(
        self, rows: Rows, memory: Callable[[int], torch.Tensor], source: FrameSource | None = None
    ) -> tuple[torch.Tensor, Copies]:
        """Begin to unpack rows of one size; as `begin`."""
        return self.begin(rows, np.broadcast_to(self._sides, (len(rows), 2)), memory, source)

    def begin_ragged(
        self,
        some: RaggedBatch,
        positions: Rows,
        rows: Rows,
        memory: Callable[[int], torch.Tensor],
        source: FrameSource | None = None,
    ) -> tuple[RaggedBatch, Copies]:
        """Begin to unpack rows of the store, which stand at these positions of what is known of them; as `begin`."""
        _, sizes = extents(some, positions)
        shapes = some.shapes.index_select(0, torch.from_numpy(positions))[:, :2].numpy().astype(np.int64)
        pixels, copies = self.begin(rows, shapes, memory, source)
        return some.chosen(positions, pixels, torch.from_numpy(np.cumsum(sizes) - sizes)), copies

    def begin(
        self,
        rows: Rows,
        shapes: npt.NDArray[np.int64],
        memory: Callable[[int], torch.Tensor],
        source: FrameSource | None = None,
    ) -> tuple[torch.Tensor, Copies]:
        """Begin to unpack rows, one after the other; the memory is complete when the copies were waited for.

        Args:
            rows: int64[B].
            shapes: int64[B, 2], height and width of each.
            memory: gives uint8[n], n the bytes of all of them with masks; asked once the frames are known to be in the file.
            source: in place of the file, such as a copy of it.
        """
        sizes = shapes[:, 0] * shapes[:, 1] * (self._channels + self._has_masks)
        begins, lengths = self.extents(rows, sizes)
        if isinstance(source, HeldFrames):
            source, begins = source
        ends = np.cumsum(sizes)
        out = memory(int(sizes.sum()))
        pixels = out.numpy()
        each = [
            (
                self._read if source is None else source,
                rows[a:b],
                shapes[a:b],
                begins[a:b],
                lengths[a:b],
                pixels[int(ends[a] - sizes[a]) : int(ends[b - 1])],
            )
            for a, b in _pieces(ends)
        ]
        return out, on_threads("unpack", torch.get_num_threads(), self._unpack, each)

    def _unpack(
        self,
        source: ReadBytes | npt.NDArray[np.uint8],
        rows: Rows,
        shapes: npt.NDArray[np.int64],
        begins: Rows,
        lengths: Rows,
        out: npt.NDArray[np.uint8],
    ) -> None:
        """Read where they are not in memory, unpack and restore some rows: out has exactly their bytes."""
        if isinstance(source, np.ndarray):
            memory, firsts = source.data, begins
        else:
            memory, firsts = _own_memory(int(lengths.sum())).data, np.cumsum(lengths) - lengths
            source(memory, _joined(begins, lengths, firsts))
        spans = zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)
        each = [memory[start:stop] for start, stop in spans]
        damage = frames.unpack_rows(each, shapes, self._channels, out, has_masks=self._has_masks, codec=self._codec)
        if damage:
            raise self.error(int(rows[damage[0]]), damage[1])

    def error(self, row: int, what: str) -> StoreError:
        """Return the error of a row whose frame is damaged."""
        where, number = self._locate(row)
        return StoreError(f"{where}: row {number}: {what}. The store is damaged: run pack verify {where}")


def _own_memory(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Return uint8[size_bytes], the same memory of this thread each time; fresh memory costs a page fault every 4 KiB."""
    if size_bytes > _PIECE_BYTES:
        return np.empty(size_bytes, np.uint8)
    if not hasattr(_mine, "packed"):
        _mine.packed = np.empty(_PIECE_BYTES, np.uint8)
    packed: npt.NDArray[np.uint8] = _mine.packed[:size_bytes]
    return packed


_mine = threading.local()


def mapped_bytes(path: Path, size_bytes: int) -> ReadBytes:
    """Return what reads a file where the system has no reads at an offset: by mapping it."""
    mapped = map_tensor(path, torch.uint8, (size_bytes,)).numpy()

    def read(memory: memoryview, reads: Sequence[Read]) -> None:
        into = np.frombuffer(memory, np.uint8)
        for start, count, offset in reads:
            into[offset : offset + count] = mapped[start : start + count]

    return read


def _pieces(ends: Rows) -> list[tuple[int, int]]:
    """Cut rows that end at these bytes into pieces that one thread does: [(first, stop), ...]."""
    if not len(ends):
        return []
    numbers = (ends - 1) // _PIECE_BYTES
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    bounds = [0, *cuts.tolist(), len(ends)]
    return list(itertools.pairwise(bounds))


def _joined(begins: Rows, lengths: Rows, offsets: Rows) -> list[Read]:
    """Plan the reads of frames; those that are together are read at once: (first byte, bytes, offset in memory)."""
    starts_run = begins[1:] != begins[:-1] + lengths[:-1]
    if starts_run.all():
        return list(zip(begins.tolist(), lengths.tolist(), offsets.tolist(), strict=True))
    firsts = np.append(0, np.flatnonzero(starts_run) + 1)
    stops = np.append(offsets, offsets[-1] + lengths[-1])
    counts = stops[np.append(firsts[1:], len(begins))] - offsets[firsts]
    return list(zip(begins[firsts].tolist(), counts.tolist(), offsets[firsts].tolist(), strict=True))
