"""Files read without mapping them: any bytes through the page cache, and spans of pixels by several large reads at once.

Spans are read past the page cache, if requested and possible. They go through a small buffer that stays in the CPU's caches.
The compiled part reads large parts of one span directly to their place. A disk gets the pages of memory to read into one by
one, and a virtual disk copies to them. Knows files, offsets and blocks of a disk; `read_ahead.py` decides which bytes are
read when.
"""

from __future__ import annotations

import contextlib
import errno
import os
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reader.buffers import allocated
from reader.compiled import span_reader
from reader.format.errors import StoreError
from reader.memory.spans import Bytes, Piece, Read, Spans, laid_out, merged, pieces_of, runs_of
from reader.memory.threads import Copies, kept, on_threads
from reader.rows import Rows

# Bytes read from a disk and copied at a time. They are still in the caches for the copy, and in one huge page, which small
# pages do not replace. Each reading thread keeps a buffer of this size.
STAGED_READ_BYTES = 2 << 20

# Reads of 150 kB in random order need a deep queue; reads in order do not.
READERS = 32
# Reading through a gap this small costs less than another read.
GAP_BYTES = 128 << 10
# O_DIRECT needs offset, length and memory at multiples of the disk's logical block: 512 bytes, on some disks 4096.
_BLOCKS = (512, 4096)
# Small reads go to a thread in groups of this many bytes, so that passing them costs little.
_TASK_BYTES = 1 << 20

_OPEN_FILES = Path("/proc/self/fd")


class Targets(NamedTuple):
    """The targets of spans of a file in memory.

    table: int64[S, 4] first byte, size, number of the memory and place in it, sorted by the first byte; spans that are
        contiguous in both are one.
    memories: uint8[n] each.
    """

    table: Rows
    memories: tuple[Bytes, ...]

    @classmethod
    def from_spans(cls, spans: Spans, memories: Sequence[Bytes]) -> Targets:
        """Place spans one after the other in memories, each with room for whole spans."""
        places, sizes = laid_out(spans.sizes), np.array([len(memory) for memory in memories], np.int64)
        which = np.searchsorted(laid_out(sizes), places, side="right") - 1
        order = np.argsort(spans.begins, kind="stable")
        # as if a byte were between two memories, so that spans of both are not joined
        spans, places = merged(Spans(*(each[order] for each in spans)), (places + which)[order])
        firsts = laid_out(sizes + 1)
        which = np.searchsorted(firsts, places, side="right") - 1
        table = np.stack([*spans, which, places - firsts[which]], axis=1)
        return cls(table, tuple(memories))

    def copy(self, start: int, piece: Bytes) -> None:
        """Copy the spans in a piece of the file, which begins at a byte, to their places."""
        end = start + len(piece)
        begins = self.table[:, 0]
        reaches = np.maximum.accumulate(begins + self.table[:, 1])
        first, stop = np.searchsorted(reaches, start, "right"), np.searchsorted(begins, end)
        for begin, size, which, place in self.table[first:stop].tolist():
            a, b = max(begin, start), min(begin + size, end)
            if a < b:
                # releases the GIL, unlike slices of memoryviews
                np.copyto(self.memories[which][place + a - begin : place + b - begin], piece[a - start : b - start])


class RawFile:
    """A file, open for reads at any offset from any thread.

    Args:
        path: the file.
        past_cache: `read_pieces` leaves nothing in the page cache. It reads past the cache (O_DIRECT) if the file system
            allows it; otherwise it asks the cache to drop the bytes.

    align: reads are in whole blocks of this many bytes.
    """

    def __init__(self, path: Path, *, past_cache: bool) -> None:
        # a path through an open file's descriptor would be unreadable in errors
        self.path = path.resolve() if path.parent == _OPEN_FILES else path
        self._descriptor, self.align = _open_direct(path) if past_cache else (-1, 1)
        self._forget = past_cache and self._descriptor < 0 and hasattr(os, "posix_fadvise")
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(path, os.O_RDONLY)
            except OSError as e:
                raise self._named(e) from e
            if hasattr(os, "posix_fadvise"):  # this code chooses the sizes of reads: no read-ahead by the system
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    @property
    def opened(self) -> Path:
        """A path that opens this very file again, even after another one has taken its name.

        Raises:
            StoreError: the file is gone from its server (NFS); or this system has no such paths, and another file has taken
                the name.
        """
        if _OPEN_FILES.is_dir():
            path = _OPEN_FILES / str(self._descriptor)
            try:
                os.close(os.open(path, os.O_RDONLY))  # asks its server
            except OSError as e:
                raise self._named(e) from e
            return path
        if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
            raise self._replaced()
        return self.path

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Read bytes to their places in memory, through the page cache; only for a file that is not read past it.

        Raises:
            StoreError: the file ends early, or is gone from its server (NFS).
            OSError: it cannot be read; names it.
        """
        for start, size, place in reads:
            self._fill(memory[place : place + size], start, size)

    def read_pieces(self, pieces: Sequence[Piece], targets: Targets) -> None:
        """Read pieces of the file, each at most `STAGED_READ_BYTES`, and copy the spans in them; raises as `read`."""
        staging = _staging()
        if (read_spans := span_reader()) is not None:
            table = np.array(pieces, np.int64)
            try:
                end = read_spans(self._descriptor, table, self.align, 0, staging, *targets)
            except OSError as e:
                raise self._named(e) from e
            if end >= 0:
                raise self._cut_short(end)
        else:
            for start, size in pieces:
                before = start % self.align
                whole = -(-(before + size) // self.align) * self.align
                self._fill(staging[:whole].data, start - before, before + size)
                targets.copy(start, staging[before : before + size])
        if self._forget:
            for start, size in pieces:
                os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_DONTNEED)

    def check_size(self, expected: int) -> None:
        """Raise StoreError if the file no longer has this size: access to missing mapped bytes ends the process (SIGBUS)."""
        try:
            size_bytes = os.fstat(self._descriptor).st_size
        except OSError as e:
            raise self._named(e) from e
        if size_bytes != expected:
            raise StoreError(
                f"{self.path} has {size_bytes} bytes, it had {expected} when it was opened. Copy the store again."
            )

    def _named(self, error: OSError) -> Exception:
        # on NFS, a file that another host has replaced is gone for processes that have it open here
        return self._replaced() if error.errno == errno.ESTALE else OSError(error.errno, error.strerror, str(self.path))

    def _replaced(self) -> StoreError:
        return StoreError(f"{self.path} was packed again since it was opened. Open the dataset again.")

    def _cut_short(self, end: int) -> StoreError:
        return StoreError(f"{self.path} ends at byte {end}: it was cut short while it was read. Copy the store again.")

    def _fill(self, memory: memoryview, offset: int, needed: int) -> None:
        """Fill memory from a file offset: at least the needed bytes, since the last block of a file may be short."""
        done = 0
        while done < needed:
            try:
                count = os.preadv(self._descriptor, [memory[done:]], offset + done)
            except OSError as e:
                raise self._named(e) from e
            done += count
            if count == 0 or (done < needed and done % self.align):
                raise self._cut_short(offset + done)


def begin_reads(file: RawFile, spans: Spans, memories: Sequence[Bytes]) -> Copies:
    """Begin to read spans of a file, in any order and possibly repeated, by large concurrent reads in file order.

    They go one after the other into memories, uint8[n], each with whole spans.
    """
    targets = Targets.from_spans(spans, memories)
    pieces = pieces_of(runs_of(spans, GAP_BYTES), STAGED_READ_BYTES, file.align)
    return on_threads("read", READERS, file.read_pieces, [(group, targets) for group in _tasks(pieces)])


def _tasks(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Group small reads."""
    group: list[Piece] = []
    size_bytes = 0
    for piece in pieces:
        group.append(piece)
        size_bytes += piece[1]
        if size_bytes >= _TASK_BYTES:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _staging() -> Bytes:
    """Return this thread's memory for a piece, the same each time; it is aligned to blocks of any disk."""
    size_bytes = -(-STAGED_READ_BYTES // _BLOCKS[-1]) * _BLOCKS[-1]
    memory: Bytes | None = getattr(kept, "staging", None)
    if memory is None or len(memory) != size_bytes:
        memory = kept.staging = allocated(size_bytes)
    return memory


def _open_direct(path: Path) -> tuple[int, int]:
    """Open a file for reads past the page cache; returns (descriptor, alignment), or (-1, 1) if that is impossible."""
    for align in _BLOCKS if hasattr(os, "O_DIRECT") else ():
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                os.preadv(
                    descriptor, [allocated(align).data], align if os.fstat(descriptor).st_size >= 2 * align else 0
                )
                return descriptor, align
            except OSError:
                os.close(descriptor)
    return -1, 1
