"""Rows of one raw file, read ahead of their use: large reads in file order, several at once, nothing left to page faults.

Rows that will be asked for one after the other are read together as a chunk, while those of the chunk before are handed out:
straight into the memory of the steps that they belong to, where file and row size allow, otherwise into staging memory. Knows
files and rows; who asks for which row is the caller's plan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from reader.memory.gather import Copies, gather, on_threads
from reader.memory.joined_file import RowSource, open_rows
from reader.memory.row_file import READERS, Read, RowFile, RowMemory, RowReader, plan_reads, tasks
from reader.memory.scatter import Destinations, scatter
from reader.profiling import stage
from reader.rows import Rows, Steps


class ReadAhead:
    """Reads the rows of a plan in its order; iterating it gives the plan's steps, `next_rows` or `take` their rows.

    Args:
        source: a raw file of rows, or several.
        row_bytes: of one row.
        steps: the plan.
        chunk_rows: rows read together, at most; two chunks are in memory.
        window_end: global position at which a chunk that holds this position must end, since the rows after it are elsewhere.
        past_cache: leave nothing in the page cache, see `RowFile`.
        units: what to read of the file for rows of the plan, where its "rows" are pages, see `pages.py`.
        lease: gives memory of so many bytes for a step's rows, uint8[bytes] that begins at a page, see `next_rows`.

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
        lease: Callable[[int], torch.Tensor] | None = None,
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
        self._lease = lease if isinstance(self._file, RowFile) and self._file.can_scatter else None
        # of the steps whose reads have begun
        self._leased: deque[torch.Tensor] = deque()

    def __iter__(self) -> Iterator[Steps]:
        while True:
            self._start()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def next_rows(self) -> torch.Tensor | None:
        """Return the rows of the plan's next step in the memory they were read into: uint8[B, row_bytes], the caller's.

        None: they are in staging memory, from where `take` copies them. Raises as `take`.
        """
        if self._lease is None:
            return None
        rows = self._leased.popleft()
        for _ in self._taken(len(rows)):
            pass
        return rows

    def take(self, out: torch.Tensor) -> None:
        """Copy the plan's next rows into out, uint8[B, ...], contiguous.

        Raises:
            StoreError: the file is shorter than it was.
            OSError: it cannot be read; names it.
        """
        flat = out.view(len(out), self._row_bytes)
        done = 0
        for memory, slots in self._taken(len(flat)):
            assert memory is not None
            gather(memory.rows, slots, flat[done : done + len(slots)])
            done += len(slots)

    def close(self) -> None:
        """End the reads; what they read is lost."""
        for chunk in reversed(self._chunks):
            chunk.reads.cancel()
            chunk.let_go()
        self._file.close()

    def _taken(self, count: int) -> Iterator[tuple[RowMemory | None, Rows]]:
        """Wait for the plan's next rows; yields the staging memory and the slots that they are in, in pieces."""
        while count:
            chunk = self._chunks[0]
            chunk.wait()
            slots = chunk.slots[chunk.taken : chunk.taken + count]
            yield chunk.memory, slots
            chunk.taken, count = chunk.taken + len(slots), count - len(slots)
            if chunk.taken == len(chunk.slots):
                self._chunks.popleft()
                if chunk.memory is not None:
                    self._spare.append(chunk.memory)
                self._start()

    def _start(self) -> None:
        """Have one chunk to hand out and one in progress."""
        while len(self._chunks) < 2 and (parts := next(self._rows, None)) is not None:
            rows = np.concatenate([part.rows for part in parts])
            self._chunks.append(self._begin(rows) if self._lease is None else self._scatter(rows, parts))

    def _cut_rows(self) -> Iterator[list[_StepRows]]:
        """Cut the plan's rows into chunks: small ones first, so that the first batches need not wait for a whole one."""
        held: list[_StepRows] = []
        most = 0
        for part in self._parts():
            most = most or max(len(part.rows), self._first_rows)
            if held and (part.end != held[-1].end or sum(len(p.rows) for p in held) + len(part.rows) > most):
                yield held
                most, held = min(2 * most, self._chunk_rows), []
            held.append(part)
        if held:
            yield held

    def _parts(self) -> Iterator[_StepRows]:
        """Cut the rows of the plan's steps where a window ends."""
        for steps in self._steps:
            count = sum(map(len, steps.batches))
            self._first_rows = self._first_rows or count
            self._waiting.append(steps)
            into: torch.Tensor | None = None
            if self._lease is not None:
                into = self._lease(count * self._row_bytes).view(count, self._row_bytes)
                self._leased.append(into)
            done = 0
            for rows, start in zip(steps.batches, steps.starts, strict=True):
                while len(rows):
                    end = self._window_end(start)
                    units = self._units(rows[: end - start])
                    yield _StepRows(units, end, None if into is None else into[done : done + len(units)])
                    done += len(units)
                    rows, start = rows[end - start :], end

    def _begin(self, rows: Rows) -> _Chunk:
        """Start the reads of a chunk into staging memory."""
        reads, slots, count = plan_reads(rows, self._row_bytes, self._file.align)
        memory = self._memory(count)
        each = [(memory.bytes, group) for group in tasks(reads, self._row_bytes)]
        return _Chunk(memory, slots, on_threads("read", READERS, self._read, each))

    def _scatter(self, rows: Rows, parts: Sequence[_StepRows]) -> _Chunk:
        """Start the reads of a chunk into the memory of its steps."""
        reads, slots, count = plan_reads(rows, self._row_bytes)
        destinations = Destinations([part.memory() for part in parts], self._row_bytes, slots, count)
        each = [(destinations, group) for group in tasks(reads, self._row_bytes)]
        return _Chunk(None, slots, on_threads("read", READERS, self._read_scattered, each), destinations)

    def _read_scattered(self, destinations: Destinations, group: Sequence[Read]) -> None:
        assert isinstance(self._file, RowFile)
        with stage("read"):
            scatter(self._file, destinations, group)

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
class _StepRows:
    """Rows of one step, or pages, within one window, which ends at a position; into: the memory they are read into."""

    rows: Rows
    end: int
    into: torch.Tensor | None = None

    def memory(self) -> memoryview:
        """Return the memory they are read into, flat."""
        assert self.into is not None
        return self.into.view(-1).numpy().data


@dataclass
class _Chunk:
    """Rows read together: once all reads are done, the i-th is in memory.rows[slots[i]], or where its step's rows are."""

    memory: RowMemory | None
    slots: Rows
    reads: Copies
    destinations: Destinations | None = None
    taken: int = 0

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        if not self.reads.are_done:
            with stage("wait"):
                self.reads.wait()
        self.reads.wait()
        if self.destinations is not None:
            self.destinations.copy_repeated()
        self.let_go()

    def let_go(self) -> None:
        """Leave the memory to those who have it: a thread that reads nothing more still names the destinations."""
        if self.destinations is not None:
            self.destinations.clear()
