"""A raw file of equal rows, read without mapping it: large reads, past the page cache where asked and possible.

Knows files, offsets and alignment; which rows are wanted when is `read_ahead.py`'s.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from reader.buffers import allocated
from reader.format.errors import StoreError
from reader.memory.gather import on_threads
from reader.rows import Rows
from reader.store import MAP_NORESERVE

# Sequential to any disk: one with a head reads 8 MiB between two seeks.
READ_BYTES = 8 << 20
# Reads of 150 kB in random order need a deep queue: a full shuffle had 0.89 of the disk's best rate for them with 32 in progress,
# 0.77 with 16 (medians of 7 epochs in turns on a busy machine, 2026-11-23).
READERS = 32
# Reading through a gap this small costs less than another read.
_GAP_BYTES = 128 << 10
# O_DIRECT wants offset, length and memory at multiples of the disk's logical block: 512 bytes, on some disks 4096.
_BLOCKS = (512, 4096)
# Rows of this size and more are read past the page cache, each to its own destination: 0.02 s of CPU a GB, like reads of 8 MiB
# into one destination (150 kB rows, 2026-11-23). Smaller ones would make the list of destinations long.
_LEAST_SCATTERED_BYTES = 16 << 10
# Rows whose size shares few factors with a block leave up to this much room between two reads in memory.
_MOST_PADDING_BYTES = 256 << 10

_OPEN_FILES = Path("/proc/self/fd")

# First row, rows, first slot: rows [row, row + count) of the file go to slots [slot, slot + count) of memory.
Read = tuple[int, int, int]


class RowReader(Protocol):
    """What rows are read from: one file, or several as one."""

    row_bytes: int
    align: int

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring rows to their slots of memory."""

    def close(self) -> object:
        """Let go of what is open."""


class RowFile:
    """A file of rows, open for reads at any offset from any thread.

    Args:
        path: the file.
        row_bytes: of one row.
        past_cache: leave nothing in the page cache. Read past it (O_DIRECT) where file system and row size allow: into huge
            pages that took 0.03 s of CPU for 3 GB, where reads through the cache took 0.2 to 5 (bench_disk.py,
            2026-11-21). Elsewhere the cache is asked to drop what was read.

    align: where memory[slot * row_bytes] is must be congruent to row * row_bytes modulo this, see `plan_reads`.
    """

    def __init__(self, path: Path, row_bytes: int, *, past_cache: bool) -> None:
        # a path through an open file's descriptor says nothing to a person
        self.path = path.resolve() if path.parent == _OPEN_FILES else path
        self.row_bytes = row_bytes
        self._descriptor, self.align = _open_direct(path, row_bytes) if past_cache else (-1, 1)
        self._forget = past_cache and self._descriptor < 0 and hasattr(os, "posix_fadvise")
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(path, os.O_RDONLY)
            except OSError as e:
                raise self._named(e) from e
            if hasattr(os, "posix_fadvise"):  # the sizes of reads are ours, no read-ahead by the system
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        self.close = weakref.finalize(self, os.close, self._descriptor)

    @property
    def opened(self) -> Path:
        """A path that opens this very file again, also after another one has taken its name.

        Raises:
            StoreError: the file is gone from its server (NFS); or this system has no such paths, and the name is another
                file's by now.
        """
        if _OPEN_FILES.is_dir():
            path = _OPEN_FILES / str(self._descriptor)
            try:
                os.close(os.open(path, os.O_RDONLY))  # so that its server is asked
            except OSError as e:
                raise self._named(e) from e
            return path
        if not os.path.samestat(os.stat(self.path), os.fstat(self._descriptor)):
            raise self._replaced()
        return self.path

    @property
    def is_direct(self) -> bool:
        """Say whether reads go past the page cache."""
        return self.align > 1

    @property
    def can_scatter(self) -> bool:
        """Say whether rows may be read to memory wherever it is, by `read_into`."""
        return self.is_direct and self.row_bytes % self.align == 0 and self.row_bytes >= _LEAST_SCATTERED_BYTES

    def read_into(self, memories: Sequence[memoryview], row: int, count: int) -> None:
        """Bring rows [row, row + count) to pieces of memory, one after the other, where `can_scatter`; raises as `read`.

        memories: each of whole rows, aligned to `align`.
        """
        self._fill(memories, row * self.row_bytes, count * self.row_bytes)

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring rows to their slots of memory.

        Raises:
            StoreError: the file ends before, or is gone from its server (NFS).
            OSError: it cannot be read; names it.
        """
        for row, count, slot in reads:
            start, size = row * self.row_bytes, count * self.row_bytes
            before, behind = start % self.align, -(start + size) % self.align
            offset = slot * self.row_bytes
            self._fill([memory[offset - before : offset + size + behind]], start - before, before + size)
            if self._forget:
                os.posix_fadvise(self._descriptor, start, size, os.POSIX_FADV_DONTNEED)

    def check_size(self, expected: int) -> None:
        """Raise StoreError if the file has no longer this many bytes: mapped ones that are gone end the process (SIGBUS)."""
        try:
            size_bytes = os.fstat(self._descriptor).st_size
        except OSError as e:
            raise self._named(e) from e
        if size_bytes != expected:
            raise StoreError(
                f"{self.path} has {size_bytes} bytes, it had {expected} when it was opened. Copy the store again."
            )

    def _named(self, error: OSError) -> Exception:
        # on NFS a file that another host has replaced is gone for those who have it open here
        return self._replaced() if error.errno == errno.ESTALE else OSError(error.errno, error.strerror, str(self.path))

    def _replaced(self) -> StoreError:
        return StoreError(f"{self.path} was packed again since it was opened. Open the dataset again.")

    def _fill(self, into: Sequence[memoryview], offset: int, needed: int) -> None:
        """Read into memory from an offset on: at least the needed bytes, since the last block of a file may be short."""
        done = 0
        while done < needed:
            try:
                count = os.preadv(self._descriptor, _behind(into, done), offset + done)
            except OSError as e:
                raise self._named(e) from e
            done += count
            if count == 0 or (done < needed and done % self.align):
                raise StoreError(
                    f"{self.path} ends at byte {offset + done}: it was cut short while it was read. Copy the store again."
                )


def read_all(path: Path, row_bytes: int, count: int, *, past_cache: bool) -> torch.Tensor:
    """Read a file's rows into memory of this process that may use huge pages: uint8[count, row_bytes].

    Raises:
        StoreError, OSError: as `RowFile.read`.
    """
    memory = RowMemory(count, row_bytes)
    most = max(1, READ_BYTES // row_bytes)
    reads = [(row, min(most, count - row), row) for row in range(0, count, most)]
    read_rows(path, row_bytes, memory.bytes, reads, past_cache=past_cache)
    return memory.rows


def read_rows(path: Path, row_bytes: int, memory: memoryview, reads: Sequence[Read], *, past_cache: bool) -> None:
    """Bring rows of a file to their slots of memory, several reads at once.

    Raises:
        StoreError, OSError: as `RowFile.read`.
    """
    with contextlib.closing(RowFile(path, row_bytes, past_cache=past_cache)) as file:
        bring_rows(file, memory, reads)


def bring_rows(file: RowReader, memory: memoryview, reads: Sequence[Read]) -> None:
    """Bring rows of what is open to their slots of memory, as `read_rows` does."""
    under_way = on_threads("read", READERS, file.read, [(memory, group) for group in tasks(reads, file.row_bytes)])
    try:
        under_way.wait()
    finally:
        # none may write to memory later, which other rows may have by then
        under_way.cancel()


class RowMemory:
    """Memory for rows to be read into, of undefined content.

    rows:  uint8[count, row_bytes]
    bytes: the same memory and room for the rest of a block behind it

    is_reserved: more rows than the machine has memory for may be asked for: what is not written takes none.
    lease: gives memory of so many bytes that is used again, uint8[bytes] that begins at a page.
    """

    def __init__(
        self,
        count: int,
        row_bytes: int,
        *,
        is_reserved: bool = False,
        lease: Callable[[int], torch.Tensor] | None = None,
    ) -> None:
        size = count * row_bytes
        if lease is not None:
            leased = lease(size + _BLOCKS[-1])
            self.bytes, self.rows = leased.numpy().data, leased[:size].view(count, row_bytes)
            return
        memory = allocated(size + _BLOCKS[-1], MAP_NORESERVE if is_reserved else 0)
        self.bytes, self.rows = memory.data, torch.from_numpy(memory[:size].reshape(count, row_bytes))


def plan_reads(rows: Rows, row_bytes: int, align: int = 1) -> tuple[list[Read], Rows, int]:
    """Plan the reads that bring rows, in any order and some twice, into as few pieces of a file as pays.

    Returns: the reads in file order, the slot of each of rows, and the number of slots.

    Example:
        >>> reads, slots, count = plan_reads(np.array([9, 2, 3, 9]), row_bytes=1 << 20)
        >>> reads, slots.tolist(), count
        ([(2, 2, 0), (9, 1, 2)], [2, 0, 1, 2], 3)
    """
    starts, stops = _runs(rows, row_bytes)
    slots, count = _slots(starts, stops - starts, row_bytes, align)
    run = np.searchsorted(starts, rows, side="right") - 1
    most = max(1, READ_BYTES // row_bytes)
    reads = [
        (row, min(most, stop - row), slot + row - start)
        for start, stop, slot in zip(starts.tolist(), stops.tolist(), slots.tolist(), strict=True)
        for row in range(start, stop, most)
    ]
    return reads, slots[run] + rows - starts[run], count


def reads_in_order(rows: Rows) -> list[Read]:
    """Plan the reads that bring rows one after the other: [4, 5, 9] -> [(4, 2, 0), (9, 1, 2)]."""
    begins = np.append(0, np.flatnonzero(np.diff(rows) != 1) + 1)
    counts = np.diff(np.append(begins, len(rows)))
    return list(zip(rows[begins].tolist(), counts.tolist(), begins.tolist(), strict=True)) if len(rows) else []


def tasks(reads: Sequence[Read], row_bytes: int) -> Iterator[list[Read]]:
    """Group small reads, so that handing a group to a thread costs little beside it."""
    group: list[Read] = []
    size_bytes = 0
    for read in reads:
        group.append(read)
        size_bytes += read[1] * row_bytes
        if size_bytes >= READ_BYTES // 8:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _runs(rows: Rows, row_bytes: int) -> tuple[Rows, Rows]:
    """Return start and stop of the runs that hold these rows; small gaps are read through: [2, 3, 9] -> [2, 9], [4, 10]."""
    wanted = np.unique(rows)
    gaps = np.diff(wanted) - 1
    # small gaps first, and no more of them in all than there are rows
    order = np.argsort(gaps, kind="stable")
    bridged = np.zeros(len(gaps), dtype=bool)
    bridged[order] = (np.cumsum(gaps[order]) <= len(wanted)) & (gaps[order] * row_bytes <= _GAP_BYTES)
    cuts = np.flatnonzero(~bridged) + 1
    return wanted[np.append(0, cuts)], wanted[np.append(cuts, len(wanted)) - 1] + 1


def _behind(destinations: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """Return the memory behind the first bytes of all destinations."""
    left = []
    for destination in destinations if done else ():
        if done < len(destination):
            left.append(destination[done:])
        done = max(0, done - len(destination))
    return left or destinations


def _slots(starts: Rows, counts: Rows, row_bytes: int, align: int) -> tuple[Rows, int]:
    """Return the first slot of each run, and how many slots all need.

    A row may be only where its offset in memory is its offset in the file, modulo align: its slot is its number, modulo
    `period`. The blocks that a run begins and ends with reach into `padding` slots before and behind it.
    """
    period = align // math.gcd(row_bytes, align)
    padding = -(-align // row_bytes) if period > 1 else 0
    rooms = -(-(counts + 2 * padding + period - 1) // period) * period
    begins = np.append(0, np.cumsum(rooms))
    return begins[:-1] + padding + (starts - padding) % period, int(begins[-1])


def _open_direct(path: Path, row_bytes: int) -> tuple[int, int]:
    """Open a file for reads past the page cache; returns (descriptor, alignment), or (-1, 1) where that is not possible."""
    for align in _BLOCKS:
        if not hasattr(os, "O_DIRECT") or math.lcm(row_bytes, align) > max(row_bytes, _MOST_PADDING_BYTES):
            break
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                probe = RowMemory(1, 2 * align).bytes[align : 2 * align]
                os.preadv(descriptor, [probe], align if os.fstat(descriptor).st_size >= 2 * align else 0)
                return descriptor, align
            except OSError:
                os.close(descriptor)
    return -1, 1
