"""Reads spans of one file ahead of their use: large reads in file order, several at once, no page faults.

Spans of successive steps are read together as a chunk, into the memory of their steps. Meanwhile those of the previous chunk
are handed out. Knows files and spans; the caller's plan chooses the rows.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from reader.memory.places import Memory, Place
from reader.memory.raw_file import RawFile, begin_reads
from reader.memory.spans import Bytes, Spans, begin_copy, joined, laid_out
from reader.memory.threads import Copies
from reader.rows import Rows, Steps

# The share of free memory for one chunk that is read ahead from a disk; two chunks are in memory.
AHEAD_SHARE = 1 / 16


class ReadAhead(Place):
    """Reads the spans of a pass in its order.

    Args:
        path: the file.
        spans_of: returns the spans of rows in the file.
        chunk_bytes: the most bytes to read together; two chunks are in memory.
        window_end: global position at which a chunk that holds this position must end, since the rows after it are elsewhere.
        past_cache: leave nothing in the page cache, see `RawFile`.
        lease: returns memory for a step's rows, uint8[bytes].
        is_batch: this is also the memory of their batch, see `load`; else rows are copied from it.

    For one thread. `close` ends the reads.
    """

    def __init__(
        self,
        path: Path,
        spans_of: Callable[[Rows], Spans],
        *,
        chunk_bytes: int,
        window_end: Callable[[int], int],
        past_cache: bool,
        lease: Memory,
        is_batch: bool = True,
    ) -> None:
        self._spans_of, self._lease, self._is_batch = spans_of, lease, is_batch
        self._chunk_bytes, self._window_end = max(1, chunk_bytes), window_end
        self._waiting: deque[Steps] = deque()
        # bytes of the first steps, which are read together
        self._first_bytes = 0
        self._chunks: deque[tuple[Copies, deque[_StepSpans]]] = deque()
        # memory of the steps in progress
        self._leased: deque[torch.Tensor] = deque()
        self._cut: Iterator[list[_StepSpans]] = iter(())
        self._file = RawFile(path, past_cache=past_cache)

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps; the caller takes each before the next."""
        self._cut = self._chunks_of(self._parts(steps))
        while True:
            self._start()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def load(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, Copies | None]:
        """Return the spans of the next step, in the memory they were read into or copied from there."""
        return (self._take(spans), None) if self._is_batch else super().load(spans, places, memory)

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Copy the spans of the next step to their places in out."""
        memory = self._take(spans).numpy()
        if (copies := begin_copy(memory, Spans(laid_out(spans.sizes), spans.sizes), out, places)) is not None:
            copies.wait()

    def close(self) -> None:
        """End the reads and drop their bytes."""
        for reads, _ in reversed(self._chunks):
            reads.cancel()
        self._file.close()

    def _take(self, spans: Spans) -> torch.Tensor:
        """Wait for the spans of the next step, and return their memory."""
        left = len(spans.begins)
        while left:
            reads, parts = self._chunks[0]
            reads.wait()
            left -= len(parts.popleft().spans.begins)
            if not parts:
                self._chunks.popleft()
                self._start()
        return self._leased.popleft()

    def _start(self) -> None:
        """Keep one chunk ready and one in progress."""
        while len(self._chunks) < 2 and (parts := next(self._cut, None)) is not None:
            reads = begin_reads(self._file, joined([part.spans for part in parts]), [part.memory for part in parts])
            self._chunks.append((reads, deque(parts)))

    def _chunks_of(self, parts: Iterator[_StepSpans]) -> Iterator[list[_StepSpans]]:
        """Cut ordered reads into chunks, each within one window: small ones first, so that the first batches do not wait.

        The first has the steps that are taken together; each further one is twice as large, up to the limit.
        """
        chunk: list[_StepSpans] = []
        limit = total = 0
        for part in parts:
            limit = limit or max(len(part.memory), self._first_bytes)
            if chunk and (part.end != chunk[-1].end or total + len(part.memory) > limit):
                yield chunk
                limit, chunk, total = min(2 * limit, self._chunk_bytes), [], 0
            chunk.append(part)
            total += len(part.memory)
        if chunk:
            yield chunk

    def _parts(self, groups: Iterator[Steps]) -> Iterator[_StepSpans]:
        """Cut the spans of the steps at the ends of windows."""
        for steps in groups:
            each = [self._spans_of(rows) for rows in steps.batches]
            size_bytes = sum(int(spans.sizes.sum()) for spans in each)
            self._first_bytes = self._first_bytes or size_bytes
            self._waiting.append(steps)
            self._leased.append(self._lease(size_bytes))
            memory, done, cut = self._leased[-1].numpy(), 0, list[tuple[int, Spans]]()
            for spans, start in zip(each, steps.starts, strict=True):
                first, count = 0, len(spans.begins)
                while first < count:
                    end = self._window_end(start + first)
                    stop = min(count, end - start)
                    cut.append((end, Spans(spans.begins[first:stop], spans.sizes[first:stop])))
                    first = stop
            # small batches in order are one large part of the file, which is read directly into its memory
            for end, parts in itertools.groupby(cut, operator.itemgetter(0)):
                spans = joined([part for _, part in parts])
                size_bytes = int(spans.sizes.sum())
                yield _StepSpans(spans, end, memory[done : done + size_bytes])
                done += size_bytes


class _StepSpans(NamedTuple):
    """Spans of one step within one window, which ends at a position, and the memory they are read into."""

    spans: Spans
    end: int
    memory: Bytes
