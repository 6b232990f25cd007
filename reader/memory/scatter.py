"""Rows read to memory of their own, past the page cache: straight where a read goes to few pieces of memory, else by way of a
little memory that stays in the caches.

A disk is handed a read in as many pieces as its memory has. 8 MiB to 55 rows took 1.3 times as long as 8 MiB to one piece, and as
reads of 2 MiB and copies of their rows (2 cores, virtual disk, in turns on a busy machine, 2026-11-23).
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from reader.memory.row_file import Read, RowFile, RowMemory
from reader.rows import Rows
from reader.tuning import tuning

# Pieces of memory of this size on average are read straight into.
_LEAST_PIECE_BYTES = 1 << 20
_NOWHERE = -1


class Destinations:
    """Where rows go that are read together.

    Args:
        memories: of whole rows each.
        row_bytes: of one row.
        slots: int64[n], of each row of the memories, one after the other: which of the rows that are read it gets.
        count: of slots; one that no row gets is not wanted.
    """

    def __init__(self, memories: Sequence[memoryview], row_bytes: int, slots: Rows, count: int) -> None:
        self._memories, self._row_bytes = list(memories), row_bytes
        # of each memory, the number of its first row
        self._firsts = [*itertools.accumulate((len(memory) // row_bytes for memory in memories), initial=0)]
        numbers = np.arange(len(slots))
        self._places = np.full(count, _NOWHERE)
        # of rows with one slot the first is read, the others are copies of it
        self._places[slots[::-1]] = numbers[::-1]
        first = self._places[slots]
        self._copies = [(int(first[n]), int(n)) for n in np.flatnonzero(first != numbers)]

    def memory(self, slot: int) -> memoryview:
        """Return the memory of a slot that is wanted."""
        return self._memory(self._places.item(slot), 1)

    def pieces(self, slot: int, count: int) -> Iterator[tuple[int, memoryview | None]]:
        """Yield the memory of slots [slot, slot + count) in as few pieces as it has: (slots, memory); None: not wanted."""
        places = self._places[slot : slot + count]
        which = np.searchsorted(self._firsts, places, side="right")
        cuts = np.flatnonzero((np.diff(places) != 1) | (np.diff(which) != 0)) + 1
        for start, stop in itertools.pairwise([0, *cuts.tolist(), count]):
            place = places.item(start)
            yield stop - start, None if place == _NOWHERE else self._memory(place, stop - start)

    def copy_repeated(self) -> None:
        """Copy what was read once and goes to several places."""
        for read, place in self._copies:
            self._memory(place, 1)[:] = self._memory(read, 1)

    def clear(self) -> None:
        """Leave the memory to those who have it: a thread that reads nothing more may still name this."""
        self._memories.clear()
        self._copies.clear()

    def _memory(self, place: int, count: int) -> memoryview:
        which = bisect.bisect_right(self._firsts, place) - 1
        start = (place - self._firsts[which]) * self._row_bytes
        return self._memories[which][start : start + count * self._row_bytes]


def scatter(file: RowFile, destinations: Destinations, reads: Sequence[Read]) -> None:
    """Bring rows to their destinations; raises as `RowFile.read`."""
    for row, count, slot in reads:
        # of rows in random order nearly all: beside other threads each line of Python counts
        if count == 1:
            file.read_into((destinations.memory(slot),), row, 1)
            continue
        pieces = list(destinations.pieces(slot, count))
        wanted = [memory for _, memory in pieces if memory is not None]
        is_coarse = len(pieces) == 1 or count * file.row_bytes >= len(pieces) * _LEAST_PIECE_BYTES
        if is_coarse and len(wanted) == len(pieces):
            file.read_into(wanted, row, count)
        else:
            _read_staged(file, row, pieces)


def _read_staged(file: RowFile, row: int, pieces: Sequence[tuple[int, memoryview | None]]) -> None:
    """Read consecutive rows some at a time, and copy them to the memory of each piece."""
    most = max(1, tuning().staged_read_bytes // file.row_bytes)
    staged = _staging(most * file.row_bytes)
    rows = np.frombuffer(staged, np.uint8)
    start, stop = row, row
    count = sum(count for count, _ in pieces)
    end = row + count
    for length, memory in pieces:
        into, done = None if memory is None else np.frombuffer(memory, np.uint8), 0
        while done < length:
            if row + done == stop:
                start, stop = stop, min(stop + most, end)
                file.read_into([staged[: (stop - start) * file.row_bytes]], start, stop - start)
            some = min(length - done, stop - row - done)
            if into is not None:
                first = (row + done - start) * file.row_bytes
                # releases the interpreter, as slices of memoryviews do not
                np.copyto(
                    into[done * file.row_bytes : (done + some) * file.row_bytes],
                    rows[first : first + some * file.row_bytes],
                )
            done += some
        row += length


def _staging(size_bytes: int) -> memoryview:
    """Return memory of this thread, the same each time; at least so many bytes."""
    memory: memoryview | None = getattr(_mine, "memory", None)
    if memory is None or len(memory) < size_bytes:
        memory = _mine.memory = RowMemory(1, max(size_bytes, tuning().staged_read_bytes)).bytes
    return memory


_mine = threading.local()
