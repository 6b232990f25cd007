"""A file read without mapping it: large reads, past the page cache where asked and possible.

Knows files, offsets and alignment; which bytes are wanted when is `read_ahead.py`'s.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from reader.buffers import allocated
from reader.format.errors import StoreError
from reader.memory.spans import Read
from reader.memory.threads import Copies, on_threads

# Sequential to any disk: one with a head reads 8 MiB between two seeks.
READ_BYTES = 8 << 20
# Reads of 150 kB in random order need a deep queue: a full shuffle had 0.89 of the disk's best rate for them with 32 in progress,
# 0.77 with 16 (medians of 7 epochs in turns on a busy machine, 2026-11-23).
READERS = 32
# Reads of this size and more on average keep a disk busy with few in progress. More threads take the interpreter from each other:
# block order took 0.17 to 0.20 CPU seconds a GB with 8 of them, 0.22 to 0.27 with 32, at no higher rate (bench_disk.py, 2 cores,
# 2026-11-28).
_LARGE_READ_BYTES = 1 << 20
LARGE_READERS = 8
# Reading through a gap this small costs less than another read.
GAP_BYTES = 128 << 10
# O_DIRECT wants offset, length and memory at multiples of the disk's logical block: 512 bytes, on some disks 4096.
_BLOCKS = (512, 4096)
# Rows of this size and more are read past the page cache, each to its own destination: 0.02 s of CPU a GB, like reads of 8 MiB
# into one destination (150 kB rows, 2026-11-23). Smaller ones would make the list of destinations long.
_LEAST_SCATTERED_BYTES = 16 << 10

# Between two files that are read as one is more than a read goes through; bases are multiples of every block of a disk.
_APART_BYTES = 1 << 20

_OPEN_FILES = Path("/proc/self/fd")
_To = TypeVar("_To")


class RawFile:
    """A file, open for reads at any offset from any thread.

    Args:
        path: the file.
        past_cache: leave nothing in the page cache. Read past it (O_DIRECT) where the file system allows: into huge pages that
            took 0.03 s of CPU for 3 GB, where reads through the cache took 0.2 to 5 (bench_disk.py, 2026-11-21). Elsewhere the
            cache is asked to drop what was read.

    align: a byte must be in memory where it is in the file, modulo this, and whole blocks of so many bytes are read: see
        `Runs.holding`.
    """

    def __init__(self, path: Path, *, past_cache: bool) -> None:
        # a path through an open file's descriptor says nothing to a person
        self.path = path.resolve() if path.parent == _OPEN_FILES else path
        self._descriptor, self.align = _open_direct(path) if past_cache else (-1, 1)
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

    def can_scatter(self, row_bytes: int) -> bool:
        """Say whether rows of this size may be read to memory wherever they are, by `read_into`."""
        return self.is_direct and row_bytes % self.align == 0 and row_bytes >= _LEAST_SCATTERED_BYTES

    def read_into(self, memories: Sequence[memoryview], start: int, size: int) -> None:
        """Bring bytes to pieces of memory, one after the other, all of them aligned to `align`; raises as `read`."""
        self._fill(memories, start, size)

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes to their places in memory.

        Raises:
            StoreError: the file ends before, or is gone from its server (NFS).
            OSError: it cannot be read; names it.
        """
        for start, size, place in reads:
            before, behind = start % self.align, -(start + size) % self.align
            self._fill([memory[place - before : place + size + behind]], start - before, before + size)
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


class RawFiles:
    """Several files, read as `RawFile` reads one; no read is of two of them.

    bases: where the bytes of each begin among those of all, see `bases_of`.
    """

    def __init__(self, paths: Sequence[Path], bases: Sequence[int], *, past_cache: bool) -> None:
        self._files, self._bases = [RawFile(path, past_cache=past_cache) for path in paths], bases
        self.align = max(file.align for file in self._files)

    def can_scatter(self, row_bytes: int) -> bool:
        """They cannot: one read would go to rows of several files."""
        return False

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes to their places in memory; raises as `RawFile.read`."""
        for start, size, place in reads:
            which = bisect.bisect_right(self._bases, start) - 1
            self._files[which].read(memory, [(start - self._bases[which], size, place)])

    def close(self) -> None:
        """Close all of them."""
        for file in self._files:
            file.close()


# One file, or several that are read as one.
RawReader = RawFile | RawFiles


def open_raw(paths: Sequence[Path], bases: Sequence[int], *, past_cache: bool) -> RawReader:
    """Open one file, or several as one."""
    if len(paths) == 1:
        return RawFile(paths[0], past_cache=past_cache)
    return RawFiles(paths, bases, past_cache=past_cache)


def bases_of(sizes: Sequence[int]) -> list[int]:
    """Return where the bytes of each of several files begin, which has so many of them.

    Example:
        >>> bases_of([5, 3_000_000, 1])
        [0, 2097152, 6291456]
    """
    rooms = [(-(-size // _APART_BYTES) + 1) * _APART_BYTES for size in sizes]
    return [*itertools.accumulate(rooms, initial=0)][:-1]


def read_all(path: Path, size_bytes: int, *, past_cache: bool) -> torch.Tensor:
    """Read a file into memory of this process that may use huge pages: uint8[size_bytes].

    Raises:
        StoreError, OSError: as `RawFile.read`.
    """
    memory = ReadMemory(size_bytes)
    reads = [(byte, min(READ_BYTES, size_bytes - byte), byte) for byte in range(0, size_bytes, READ_BYTES)]
    with contextlib.closing(RawFile(path, past_cache=past_cache)) as file:
        bring(file, memory.room, reads)
    return memory.bytes


def bring(file: RawReader, memory: memoryview, reads: Sequence[Read]) -> None:
    """Bring bytes of an open file to their places in memory, several reads at once; raises as `RawFile.read`."""
    under_way = begin_reads(file.read, memory, reads)
    try:
        under_way.wait()
    finally:
        # none may write to memory later, which other rows may have by then
        under_way.cancel()


def begin_reads(read: Callable[[_To, Sequence[Read]], None], to: _To, reads: Sequence[Read]) -> Copies:
    """Begin reads by read(to, some of them), several at once."""
    is_large = sum(size for _, size, _ in reads) >= len(reads) * _LARGE_READ_BYTES
    return on_threads("read", LARGE_READERS if is_large else READERS, read, [(to, group) for group in _tasks(reads)])


class ReadMemory:
    """Memory to read into, of undefined content.

    bytes: uint8[size_bytes]. room: the same memory, and the rest of a block behind it.

    lease: gives memory of so many bytes that is used again, uint8[bytes] that begins at a page; None: fresh memory.
    """

    def __init__(self, size_bytes: int, lease: Callable[[int], torch.Tensor] | None = None) -> None:
        need = size_bytes + _BLOCKS[-1]
        memory = torch.from_numpy(allocated(need)) if lease is None else lease(need)
        self.room, self.bytes = memory.numpy().data, memory[:size_bytes]


def _tasks(reads: Sequence[Read]) -> Iterator[list[Read]]:
    """Group small reads, so that handing a group to a thread costs little beside it."""
    group: list[Read] = []
    size_bytes = 0
    for read in reads:
        group.append(read)
        size_bytes += read[1]
        if size_bytes >= READ_BYTES // 8:
            yield group
            group, size_bytes = [], 0
    if group:
        yield group


def _behind(destinations: Sequence[memoryview], done: int) -> Sequence[memoryview]:
    """Return the memory behind the first bytes of all destinations."""
    left = []
    for destination in destinations if done else ():
        if done < len(destination):
            left.append(destination[done:])
        done = max(0, done - len(destination))
    return left or destinations


def _open_direct(path: Path) -> tuple[int, int]:
    """Open a file for reads past the page cache; returns (descriptor, alignment), or (-1, 1) where that is not possible."""
    for align in _BLOCKS if hasattr(os, "O_DIRECT") else ():
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
            try:
                probe = ReadMemory(2 * align).room[align : 2 * align]
                os.preadv(descriptor, [probe], align if os.fstat(descriptor).st_size >= 2 * align else 0)
                return descriptor, align
            except OSError:
                os.close(descriptor)
    return -1, 1
