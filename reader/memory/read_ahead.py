"""Rows of one raw file, read ahead of their use: large reads in file order, several at once, nothing left to page faults.

Rows that will be asked for one after the other are read together as a chunk into staging memory, while those of the
chunk before are handed out. Knows files and rows; who asks for which row is the caller's plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reader.memory.gather import Copies, gather, on_threads
from reader.memory.joined_file import RowSource, open_rows
from reader.memory.row_file import READERS, Read, RowMemory, RowReader, plan_reads, tasks
from reader.profiling import stage
from reader.rows import Rows, Steps


class ReadAhead:
    """Reads the rows of a plan in its order; iterating it gives the plan's steps, `take` their rows.

    Args:
        source: a raw file of rows, or several.
        row_bytes: of one row.
        steps: the plan.
        chunk_rows: rows read together, at most; two chunks are in memory.
        window_end: global position at which a chunk that holds this position must end, since the rows after it are elsewhere.
        past_cache: leave nothing in the page cache, see `RowFile`.
        units: what to read of the file for rows of the plan, where its "rows" are pages, see `pages.py`.

    For one thread. `close` ends the reads.
    """

    def __init__(
        self,
        source: RowSource,
        row_bytes: int,
        steps: Iterator[Steps],
        *,
        chunk_rows: int,
        window_end: Callable[[int], int],
        past_cache: bool,
        units: Callable[[Rows], Rows] = lambda rows: rows,
    ) -> None:
        self._row_bytes, self._steps, self._units = row_bytes, steps, units
        self._chunk_rows, self._window_end = max(1, chunk_rows), window_end
        self._waiting: deque[Steps] = deque()
        # rows of the first steps, which are taken together
        self._first_rows = 0
        self._chunks: deque[_Chunk] = deque()
        self._spare: list[RowMemory] = []
        self._rows = self._cut_rows()
        self._file: RowReader = open_rows(source, row_bytes, past_cache=past_cache)

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
            chunk.wait()
            count = min(len(flat) - done, len(chunk.slots) - chunk.taken)
            slots = chunk.slots[chunk.taken : chunk.taken + count]
            gather(chunk.memory.rows, slots, flat[done : done + count])
            chunk.taken, done = chunk.taken + count, done + count
            if chunk.taken == len(chunk.slots):
                self._spare.append(self._chunks.popleft().memory)
                self._start()

    def close(self) -> None:
        """End the reads; what they read is lost."""
        for chunk in reversed(self._chunks):
            chunk.reads.cancel()
        self._file.close()

    def _start(self) -> None:
        """Have one chunk to hand out and one in progress."""
        while len(self._chunks) < 2 and (rows := next(self._rows, None)) is not None:
            self._chunks.append(self._begin(rows))

    def _cut_rows(self) -> Iterator[Rows]:
        """Cut the plan's rows into chunks: small ones first, so that the first batches need not wait for a whole one."""
        held: list[Rows] = []
        most, window = 0, 0
        for rows, end in self._parts():
            most = most or max(len(rows), self._first_rows)
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
            self._first_rows = self._first_rows or sum(map(len, steps.batches))
            self._waiting.append(steps)
            for rows, start in zip(steps.batches, steps.starts, strict=True):
                while len(rows):
                    end = self._window_end(start)
                    yield self._units(rows[: end - start]), end
                    rows, start = rows[end - start :], end

    def _begin(self, rows: Rows) -> _Chunk:
        """Start the reads of a chunk."""
        reads, slots, count = plan_reads(rows, self._row_bytes, self._file.align)
        memory = self._memory(count)
        each = [(memory.bytes, group) for group in tasks(reads, self._row_bytes)]
        return _Chunk(memory, slots, on_threads("read", READERS, self._read, each))

    def _read(self, memory: memoryview, group: Sequence[Read]) -> None:
        with stage("read"):
            self._file.read(memory, group)

    def _memory(self, count: int) -> RowMemory:
        while self._spare:
            spare = self._spare.pop()
            if len(spare.rows) >= count:
                return spare
        return RowMemory(count, self._row_bytes)


@dataclass
class _Chunk:
    """Rows read together: the i-th in the plan's order is in memory.rows[slots[i]] once all reads are done."""

    memory: RowMemory
    slots: Rows
    reads: Copies
    taken: int = 0

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        if not self.reads.are_done:
            with stage("wait"):
                self.reads.wait()
        self.reads.wait()
