"""Rows of one raw file, read ahead of their use: large reads in file order, several at once, nothing left to page faults.

Rows that will be asked for one after the other are read together as a chunk into staging memory, while those of the
chunk before are handed out. Knows files and rows; who asks for which row is the caller's plan.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from reader.buffers import gather
from reader.manifest import StoreError
from reader.order import Rows, Steps

# Sequential to any disk.
_READ_BYTES = 8 << 20
# Reading through a gap this small costs less than another read.
_GAP_BYTES = 128 << 10
# Enough to keep an SSD's queue filled; a disk with a head reads 8 MiB between two seeks.
_READERS = 4

# first row, rows, first slot
_Read = tuple[int, int, int]


class ReadAhead:
    """Reads the rows of a plan in its order; iterating it gives the plan's steps, `take` their rows.

    Args:
        path: a raw file of rows.
        row_bytes: of one row.
        steps: the plan.
        chunk_rows: rows read together, at most; two chunks are in memory.
        window_end: global position at which a chunk that holds this position must end, since the rows after it lie elsewhere.
        forget: let the page cache drop what was read.

    For one thread. `close` ends the readers.
    """

    def __init__(
        self,
        path: Path,
        row_bytes: int,
        steps: Iterator[Steps],
        *,
        chunk_rows: int,
        window_end: Callable[[int], int],
        forget: bool,
    ) -> None:
        self._path, self._row_bytes, self._steps = path, row_bytes, steps
        self._chunk_rows, self._window_end, self._forget = max(1, chunk_rows), window_end, forget
        self._waiting: deque[Steps] = deque()
        self._chunks: deque[_Chunk] = deque()
        self._spare: list[torch.Tensor] = []
        self._rows = self._cut_rows()
        self._file = open_for_rows(path)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="pixpack-reader")

    def __iter__(self) -> Iterator[Steps]:
        while True:
            self._start()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def take(self, out: torch.Tensor) -> None:
        """Copy the plan's next rows into out, uint8[B, ...], contiguous.

        Raises:
            StoreError: the file is shorter than it was.
            OSError: it cannot be read; names it.
        """
        flat = out.view(len(out), self._row_bytes)
        done = 0
        while done < len(flat):
            chunk = self._chunks[0]
            for read in chunk.reads:
                read.result()
            chunk.reads.clear()
            count = min(len(flat) - done, len(chunk.slots) - chunk.taken)
            slots = chunk.slots[chunk.taken : chunk.taken + count]
            gather(chunk.staged, slots, flat[done : done + count])
            chunk.taken, done = chunk.taken + count, done + count
            if chunk.taken == len(chunk.slots):
                self._spare.append(self._chunks.popleft().staged)
                self._start()

    def close(self) -> None:
        """End the readers; what they read is lost."""
        self._readers.shutdown(cancel_futures=True)
        os.close(self._file)

    def _start(self) -> None:
        """Have one chunk to hand out and one under way."""
        while len(self._chunks) < 2 and (rows := next(self._rows, None)) is not None:
            self._chunks.append(self._begin(rows))

    def _cut_rows(self) -> Iterator[Rows]:
        """Cut the plan's rows into chunks: small ones first, so that the first batch need not wait for a whole one."""
        held: list[Rows] = []
        most, window = 0, 0
        for rows, end in self._parts():
            most = most or len(rows)
            if held and (end != window or sum(map(len, held)) + len(rows) > most):
                yield np.concatenate(held)
                most, held = min(2 * most, self._chunk_rows), []
            held.append(rows)
            window = end
        if held:
            yield np.concatenate(held)

    def _parts(self) -> Iterator[tuple[Rows, int]]:
        """Yield the plan's rows, and the end of the window that they are in."""
        for steps in self._steps:
            self._waiting.append(steps)
            for rows, start in zip(steps.batches, steps.starts, strict=True):
                while len(rows):
                    end = self._window_end(start)
                    yield rows[: end - start], end
                    rows, start = rows[end - start :], end

    def _begin(self, rows: Rows) -> _Chunk:
        """Start the reads of a chunk."""
        reads, slots, count = plan_reads(rows, self._row_bytes)
        staged = self._staging(count)
        memory = staged.numpy().data.cast("B")
        futures = [
            self._readers.submit(_read, self._file, self._path, memory, task, self._row_bytes, self._forget)
            for task in _tasks(reads, self._row_bytes)
        ]
        return _Chunk(staged, slots, futures)

    def _staging(self, count: int) -> torch.Tensor:
        while self._spare:
            spare = self._spare.pop()
            if len(spare) >= count:
                return spare
        # numpy asks for huge pages where torch does not
        return torch.from_numpy(np.empty((count, self._row_bytes), np.uint8))


@dataclass
class _Chunk:
    """Rows read together: the row at position i of the plan's order lies in staged[slots[i]] once all reads are done."""

    staged: torch.Tensor
    slots: Rows
    reads: list[Future[None]]
    taken: int = 0


def open_for_rows(path: Path) -> int:
    """Open a file for reads whose size and place the caller decides: no read-ahead by the system."""
    descriptor = os.open(path, os.O_RDONLY)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    return descriptor


def read_rows(descriptor: int, path: Path, into: memoryview, offset: int) -> None:
    """Fill memory from a byte offset on.

    Raises:
        StoreError: the file ends before.
        OSError: it cannot be read; names it.
    """
    while len(into):
        try:
            count = os.preadv(descriptor, [into], offset)
        except OSError as e:
            raise OSError(e.errno, e.strerror, str(path)) from e
        if count == 0:
            raise StoreError(f"{path} ends at byte {offset}: it was cut short while it was read. Copy the store again.")
        into, offset = into[count:], offset + count


def read_all(path: Path, row_bytes: int, count: int, *, forget: bool) -> torch.Tensor:
    """Read a file's rows into memory of this process that may use huge pages: uint8[count, row_bytes].

    Raises:
        StoreError, OSError: as `read_rows`.
    """
    rows = np.empty((count, row_bytes), np.uint8)
    memory = rows.data.cast("B")
    most = max(1, _READ_BYTES // row_bytes)
    reads = [[(row, min(most, count - row), row)] for row in range(0, count, most)]
    descriptor = open_for_rows(path)
    try:
        with ThreadPoolExecutor(_READERS) as readers:
            list(readers.map(lambda read: _read(descriptor, path, memory, read, row_bytes, forget), reads))
    finally:
        os.close(descriptor)
    return torch.from_numpy(rows)


def plan_reads(rows: Rows, row_bytes: int) -> tuple[list[_Read], Rows, int]:
    """Plan the reads that bring rows, in any order and some twice, into as few pieces of a file as pays.

    Returns: reads (first row, rows, first slot) in file order, the slot of each of rows, and the number of slots.

    Example:
        >>> reads, slots, count = plan_reads(np.array([9, 2, 3, 9]), row_bytes=1 << 20)
        >>> reads, slots.tolist(), count
        ([(2, 2, 0), (9, 1, 2)], [2, 0, 1, 2], 3)
    """
    wanted = np.unique(rows)
    gaps = np.diff(wanted) - 1
    # small gaps first, and no more of them in all than there are rows
    order = np.argsort(gaps, kind="stable")
    bridged = np.zeros(len(gaps), dtype=bool)
    bridged[order] = (np.cumsum(gaps[order]) <= len(wanted)) & (gaps[order] * row_bytes <= _GAP_BYTES)
    first = np.concatenate([[0], np.flatnonzero(~bridged) + 1])
    starts = wanted[first]
    stops = wanted[np.append(first[1:], len(wanted)) - 1] + 1
    slots = np.concatenate([[0], np.cumsum(stops - starts)])
    run = np.searchsorted(starts, rows, side="right") - 1
    most = max(1, _READ_BYTES // row_bytes)
    reads = [
        (row, min(most, stop - row), slot + row - start)
        for start, stop, slot in zip(starts.tolist(), stops.tolist(), slots.tolist(), strict=False)
        for row in range(start, stop, most)
    ]
    return reads, slots[run] + rows - starts[run], int(slots[-1])


def _tasks(reads: list[_Read], row_bytes: int) -> Iterator[list[_Read]]:
    """Group small reads, so that handing one to a thread stays small beside it."""
    task: list[_Read] = []
    size_bytes = 0
    for read in reads:
        task.append(read)
        size_bytes += read[1] * row_bytes
        if size_bytes >= _READ_BYTES // 8:
            yield task
            task, size_bytes = [], 0
    if task:
        yield task


def _read(descriptor: int, path: Path, memory: memoryview, reads: list[_Read], row_bytes: int, forget: bool) -> None:
    for row, count, slot in reads:
        into = memory[slot * row_bytes : (slot + count) * row_bytes]
        read_rows(descriptor, path, into, row * row_bytes)
        if forget and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, row * row_bytes, len(into), os.POSIX_FADV_DONTNEED)
