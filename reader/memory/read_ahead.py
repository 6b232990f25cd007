"""Reads spans of one file, or of several as one, ahead of their use: large reads in file order, several at once, no page faults.

Spans that will be asked for one after the other are read together as a chunk, while those of the chunk before are handed out:
straight into the memory of the steps that they belong to, where file and row size allow, otherwise into staging memory. Knows
files and spans; who asks for which rows is the plan of the caller.

A disk is handed a read in as many pieces as its memory has. 8 MiB to 55 rows took 1.3 times as long as 8 MiB to one piece, and as
reads of 2 MiB and copies of their rows (2 cores, virtual disk, in turns on a busy machine, 2026-11-23). So a read goes straight
to few pieces of memory, and to many by way of a little memory that stays in the caches.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from reader.buffers import FittingPool
from reader.memory.places import Located, Memory, Place
from reader.memory.raw_file import GAP_BYTES, READ_BYTES, RawFile, RawReader, ReadMemory, begin_reads, open_raw
from reader.memory.spans import Bytes, Read, Runs, Spans, copy, laid_out
from reader.memory.threads import Copies, kept
from reader.profiling import stage
from reader.rows import Rows, Steps
from reader.tuning import tuning

# The share of free memory of one chunk that is read ahead from a disk; two of them are in memory.
AHEAD_SHARE = 1 / 16
# Idle buffers of chunks, and of spans that are located.
_KEPT = 2
# Pieces of memory of this size on average are read straight into.
_LEAST_PIECE_BYTES = 1 << 20


_Part = TypeVar("_Part")


class Chunk(Place):
    """Spans that are read together, into staging memory.

    lease: gives memory for them, as `ReadMemory` takes it.
    """

    def __init__(self, file: RawReader, spans: Spans, lease: Memory | None = None) -> None:
        self._runs = Runs.holding(spans, align=file.align, most_gap_bytes=GAP_BYTES)
        self._memory = ReadMemory(self._runs.size_bytes, lease)

        def read(memory: memoryview, group: Sequence[Read]) -> None:
            with stage("read"):
                file.read(memory, group)

        self.reads = begin_reads(read, self._memory.room, self._runs.reads(READ_BYTES, file.align))

    def locate(self, spans: Spans) -> Located | None:
        """Return where spans are; None: they are not all of the chunk."""
        begins = self._runs.find(spans)
        if begins is None:
            return None
        self.wait()
        return Located(self._memory.bytes.numpy(), begins)

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        _wait_for(self.reads)

    def cancel(self) -> None:
        """End the reads."""
        self.reads.cancel()


class ReadAhead(Place):
    """Reads the spans of a pass in its order.

    Args:
        paths: the file, or several, whose bytes begin at bases among those of all.
        spans_of: where rows of the pass are in the file.
        chunk_bytes: read together, at most; two chunks are in memory.
        window_end: global position at which a chunk that holds this position must end, since the rows after it are elsewhere.
        past_cache: leave nothing in the page cache, see `RawFile`.
        row_bytes: of rows that may be read straight into memory of their step; 0: they may not.
        lease: gives memory of so many bytes for a step's rows, uint8[bytes] that begins at a page, see `bring`.

    For one thread. `close` ends the reads.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        spans_of: Callable[[Rows], Spans],
        *,
        bases: Sequence[int] = (0,),
        chunk_bytes: int,
        window_end: Callable[[int], int],
        past_cache: bool,
        row_bytes: int = 0,
        lease: Memory | None = None,
    ) -> None:
        self._spans_of = spans_of
        self._chunk_bytes, self._window_end = max(1, chunk_bytes), window_end
        self._waiting: deque[Steps] = deque()
        # bytes of the first steps, which are taken together
        self._first_bytes = 0
        self._chunks: deque[tuple[Chunk | _Scattered, deque[_StepSpans]]] = deque()
        self._pool, self._located = (FittingPool(keep=_KEPT) for _ in range(2))
        self._cut: Iterator[list[_StepSpans]] = iter(())
        self._file = open_raw(paths, bases, past_cache=past_cache)
        self._lease = lease if row_bytes and self._file.can_scatter(row_bytes) else None
        # memory of the steps that are being read
        self._leased: deque[torch.Tensor] = deque()

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps, each of which is taken before the next."""
        sizes, first = operator.attrgetter("size_bytes"), lambda: self._first_bytes
        self._cut = cut_in_chunks(self._parts(steps), sizes, operator.attrgetter("end"), self._chunk_bytes, first)
        while True:
            self._start()
            if not self._waiting:
                return
            yield self._waiting.popleft()

    def bring(self, spans: Spans, places: Rows, memory: Memory) -> tuple[torch.Tensor, Copies | None]:
        """Return the rows of the next step in the memory they were read into, or copied to from staging memory."""
        if self._lease is None:
            return super().bring(spans, places, memory)
        self._take(spans)
        return self._leased.popleft(), None

    def locate(self, spans: Spans) -> Located:
        """Copy the spans of the next step to memory that stays."""
        memory, places = self._located.lease(int(spans.sizes.sum())), laid_out(spans.sizes)
        self.read(spans, memory, places)
        return Located(memory.numpy(), places)

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Copy the spans of the next step to their places in out."""
        self._take(spans, out, places)

    def close(self) -> None:
        """End the reads; what they read is lost."""
        for chunk, _ in reversed(self._chunks):
            chunk.cancel()
        self._file.close()

    def _take(self, spans: Spans, out: torch.Tensor | None = None, places: Rows | None = None) -> None:
        """Wait for the next spans, and copy them to their places in out."""
        done = 0
        while done < len(spans.begins):
            left = Spans(spans.begins[done:], spans.sizes[done:])
            done += self._take_some(left, out, None if places is None else places[done:])
            # here, where nothing names a chunk that is done: its memory is used again
            self._start()

    def _take_some(self, spans: Spans, out: torch.Tensor | None, places: Rows | None) -> int:
        """Take those that the first chunk has of one step and window, and return how many."""
        chunk, parts = self._chunks[0]
        count = min(len(spans.begins), parts[0].left)
        chunk.wait()
        if out is not None and places is not None and isinstance(chunk, Chunk):
            some = Spans(spans.begins[:count], spans.sizes[:count])
            located = chunk.locate(some)
            assert located is not None
            copy(located.memory, Spans(located.begins, some.sizes), out, places[:count])
        parts[0].left -= count
        if not parts[0].left:
            parts.popleft()
        if not parts:
            self._chunks.popleft()
        return count

    def _start(self) -> None:
        """Have one chunk to hand out and one in progress."""
        while len(self._chunks) < 2 and (parts := next(self._cut, None)) is not None:
            spans = Spans(*(np.concatenate(each) for each in zip(*(part.spans for part in parts), strict=True)))
            chunk: Chunk | _Scattered
            if self._lease is None:
                chunk = Chunk(self._file, spans, self._pool.lease)
            else:
                assert isinstance(self._file, RawFile)
                chunk = _Scattered(self._file, spans, [part.memory() for part in parts])
            self._chunks.append((chunk, deque(parts)))

    def _parts(self, groups: Iterator[Steps]) -> Iterator[_StepSpans]:
        """Cut the spans of the steps where a window ends."""
        for steps in groups:
            each = [self._spans_of(rows) for rows in steps.batches]
            size_bytes = sum(int(spans.sizes.sum()) for spans in each)
            self._first_bytes = self._first_bytes or size_bytes
            self._waiting.append(steps)
            into: torch.Tensor | None = None
            if self._lease is not None:
                into = self._lease(size_bytes)
                self._leased.append(into)
            done = 0
            for spans, start in zip(each, steps.starts, strict=True):
                first, count = 0, len(spans.begins)
                while first < count:
                    end = self._window_end(start + first)
                    stop = min(count, end - start)
                    part = Spans(spans.begins[first:stop], spans.sizes[first:stop])
                    room = int(part.sizes.sum())
                    yield _StepSpans(part, end, room, stop - first, None if into is None else into[done : done + room])
                    done += room
                    first = stop


class _Scattered:
    """Rows of one size that are read together, straight into the memory of their steps."""

    def __init__(self, file: RawFile, spans: Spans, memories: list[memoryview]) -> None:
        self._destinations = Destinations(spans, memories)

        def read(destinations: Destinations, group: Sequence[Read]) -> None:
            with stage("read"):
                scatter(file, destinations, group)

        row_bytes = int(spans.sizes[0])
        reads = Runs.holding(spans, most_gap_bytes=GAP_BYTES).reads(max(1, READ_BYTES // row_bytes) * row_bytes)
        self._reads = begin_reads(read, self._destinations, reads)

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        _wait_for(self._reads)
        self._destinations.copy_repeated()
        self._destinations.clear()

    def cancel(self) -> None:
        """End the reads."""
        self._reads.cancel()
        self._destinations.clear()


@dataclass
class _StepSpans:
    """Spans of one step within one window, which ends at a position.

    left: how many were not taken yet. into: the memory they are read into, where that is the step's.
    """

    spans: Spans
    end: int
    size_bytes: int
    left: int
    into: torch.Tensor | None

    def memory(self) -> memoryview:
        """Return the memory they are read into."""
        assert self.into is not None
        return self.into.numpy().data


def cut_in_chunks(
    parts: Iterator[_Part],
    size: Callable[[_Part], int],
    window: Callable[[_Part], int],
    most: int,
    first: Callable[[], int] = int,
) -> Iterator[list[_Part]]:
    """Cut what is read in order into chunks, each within one window: small ones first, so that the first batches do not wait.

    Args:
        size: of a part, in whatever unit.
        window: where the window of a part ends.
        most: the size of a chunk of several parts, which doubles up to that.
        first: the size of the first chunk, asked for once there is a part; no less than that part's.
    """
    chunk: list[_Part] = []
    limit = total = 0
    for part in parts:
        limit = limit or max(size(part), first())
        if chunk and (window(part) != window(chunk[-1]) or total + size(part) > limit):
            yield chunk
            limit, chunk, total = min(2 * limit, most), [], 0
        chunk.append(part)
        total += size(part)
    if chunk:
        yield chunk


def _wait_for(reads: Copies) -> None:
    if not reads.are_done:
        with stage("wait"):
            reads.wait()
    reads.wait()


class Destinations:
    """Where spans that are read together go: one after the other to memories, each of which has whole spans."""

    def __init__(self, spans: Spans, memories: Sequence[memoryview]) -> None:
        self._memories = list(memories)
        # the place of the first byte of each memory
        self._firsts = [*itertools.accumulate((len(memory) for memory in memories), initial=0)]
        places, order = laid_out(spans.sizes), np.argsort(spans.begins, kind="stable")
        begins, sizes, places = spans.begins[order], spans.sizes[order], places[order]
        # the first of equal spans is read, the others are copies of it
        is_first = np.diff(begins, prepend=-1) != 0
        first = places[is_first][np.cumsum(is_first) - 1]
        self._copies = list(
            zip(first[~is_first].tolist(), places[~is_first].tolist(), sizes[~is_first].tolist(), strict=True)
        )
        self._begins, self._sizes, self._places = begins[is_first], sizes[is_first], places[is_first]
        self._whole = dict(
            zip(zip(self._begins.tolist(), self._sizes.tolist(), strict=True), self._places.tolist(), strict=True)
        )
        which = np.searchsorted(self._firsts, self._places, side="right")
        # does not follow the span before it, in the file and in one memory
        self._is_cut = np.append(
            True,
            (self._begins[1:] != self._begins[:-1] + self._sizes[:-1])
            | (self._places[1:] != self._places[:-1] + self._sizes[:-1])
            | (which[1:] != which[:-1]),
        )

    def memory(self, start: int, size: int) -> memoryview | None:
        """Return the memory of one span; None: these bytes are not one."""
        place = self._whole.get((start, size))
        return None if place is None else self._memory(place, size)

    def pieces(self, start: int, size: int) -> Iterator[tuple[int, memoryview | None]]:
        """Yield the memory of bytes of the file in as few pieces as it has: (bytes, memory); None: they go nowhere."""
        first, stop = np.searchsorted(self._begins, [start, start + size]).tolist()
        cuts = first + 1 + np.flatnonzero(self._is_cut[first + 1 : stop])
        done = start
        for a, b in itertools.pairwise([first, *cuts.tolist(), stop]):
            begin, end = self._begins.item(a), self._begins.item(b - 1) + self._sizes.item(b - 1)
            if begin > done:
                yield begin - done, None
            yield end - begin, self._memory(self._places.item(a), end - begin)
            done = end

    def copy_repeated(self) -> None:
        """Copy what was read once and goes to several places."""
        for read, place, size in self._copies:
            self._memory(place, size)[:] = self._memory(read, size)

    def clear(self) -> None:
        """Leave the memory to those who have it: a thread that reads nothing more may still name this."""
        self._memories.clear()
        self._copies.clear()

    def _memory(self, place: int, size: int) -> memoryview:
        which = bisect.bisect_right(self._firsts, place) - 1
        start = place - self._firsts[which]
        return self._memories[which][start : start + size]


def scatter(file: RawFile, destinations: Destinations, reads: Sequence[Read]) -> None:
    """Bring bytes to their destinations; raises as `RawFile.read`."""
    for start, size, _ in reads:
        # nearly all rows in random order come here: beside other threads each line of Python counts
        if (memory := destinations.memory(start, size)) is not None:
            file.read_into((memory,), start, size)
            continue
        pieces = list(destinations.pieces(start, size))
        wanted = [memory for _, memory in pieces if memory is not None]
        is_coarse = len(pieces) == 1 or size >= len(pieces) * _LEAST_PIECE_BYTES
        if is_coarse and len(wanted) == len(pieces):
            file.read_into(wanted, start, size)
        else:
            _read_staged(file, start, pieces)


def _read_staged(file: RawFile, start: int, pieces: Sequence[tuple[int, memoryview | None]]) -> None:
    """Read bytes that follow each other some at a time, and copy them to the memory of each piece."""
    end = start + sum(size for size, _ in pieces)
    staged: Bytes = np.empty(0, np.uint8)
    # the bytes of the file that are staged
    first = stop = start
    for size, memory in pieces:
        into, done = None if memory is None else np.frombuffer(memory, np.uint8), 0
        while done < size:
            if start + done == stop:
                first, stop = stop, min(stop + tuning().staged_read_bytes, end)
                staged = _staging(stop - first)
                file.read_into([staged.data], first, stop - first)
            some = min(size - done, stop - start - done)
            if into is not None:
                # releases the interpreter, as slices of memoryviews do not
                np.copyto(into[done : done + some], staged[start + done - first : start + done - first + some])
            done += some
        start += size


def _staging(size_bytes: int) -> Bytes:
    """Return uint8[size_bytes] of this thread, the same memory each time."""
    memory: Bytes | None = getattr(kept, "staging", None)
    if memory is None or len(memory) < size_bytes:
        memory = kept.staging = ReadMemory(max(size_bytes, tuning().staged_read_bytes)).bytes.numpy()
    return memory[:size_bytes]
