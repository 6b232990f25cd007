"""Rows read to memory of their own, past the page cache: straight where a read goes to few pieces of memory, else by way of a
little memory that stays in the caches.

A disk is handed a read in as many pieces as its memory has. 8 MiB to 55 rows took 1.3 times as long as 8 MiB to one piece, and as
reads of 2 MiB and copies of their rows (2 cores, virtual disk, in turns on a busy machine, 2026-11-23).
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from reader.memory.raw_file import RawFile, ReadMemory
from reader.memory.spans import Bytes, Read, Spans, laid_out
from reader.memory.threads import kept
from reader.tuning import tuning

# Pieces of memory of this size on average are read straight into.
_LEAST_PIECE_BYTES = 1 << 20


class Destinations:
    """Where spans of a file go that are read together: one after the other to memories, each of which holds whole spans."""

    def __init__(self, spans: Spans, memories: Sequence[memoryview]) -> None:
        self._memories = list(memories)
        # of each memory, the place of its first byte
        self._firsts = [*itertools.accumulate((len(memory) for memory in memories), initial=0)]
        places, order = laid_out(spans.sizes), np.argsort(spans.begins, kind="stable")
        begins, sizes, places = spans.begins[order], spans.sizes[order], places[order]
        # of equal spans the first is read, the others are copies of it
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
        # of rows in random order nearly all: beside other threads each line of Python counts
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
