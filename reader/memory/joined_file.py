"""Several files of equal rows as one: read by row, and mapped side by side, so that one gather takes rows of all of them.

The rows of each file begin at a multiple of `FIRST_UNITS`; the numbers between a file's last row and the next file stand for
no row. So in memory every file begins at a page, and rows are as in their files modulo the block of a disk.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from reader.format.errors import StoreError
from reader.memory.row_file import Read, RowFile
from reader.store import MAP_NORESERVE

# So many rows of any size are whole pages of this system, and whole blocks of a disk.
FIRST_UNITS = max(4096, mmap.PAGESIZE)


@dataclass(frozen=True)
class FileSpan:
    """A file and the numbers of its rows, or pages, among all: [first, first + count)."""

    path: Path
    first: int
    count: int


# What holds rows: one file, or several.
RowSource = Path | tuple[FileSpan, ...]


def first_units(counts: Sequence[int]) -> list[int]:
    """Return the number of each file's first row: [3, 5000, 1] -> [0, 4096, 12288] where pages have 4096 bytes."""
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + -(-count // FIRST_UNITS) * FIRST_UNITS)
    return firsts


class JoinedFiles:
    """Several files of rows, read as `RowFile` reads one; what is asked for between them is left as it is."""

    def __init__(self, files: Sequence[tuple[RowFile, int, int]]) -> None:
        """files: each with the number of its first row and of its rows."""
        self._files = files
        self.row_bytes = files[0][0].row_bytes
        self.align = max(file.align for file, _, _ in files)

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring rows to their slots of memory; raises as `RowFile.read`."""
        for file, first, count in self._files:
            inside = [
                (
                    max(row, first) - first,
                    min(row + length, first + count) - max(row, first),
                    slot + max(0, first - row),
                )
                for row, length, slot in reads
                if row < first + count and row + length > first
            ]
            if inside:
                file.read(memory, inside)

    def close(self) -> None:
        """Close all of them."""
        for file, _, _ in self._files:
            file.close()


def open_rows(source: RowSource, row_bytes: int, *, past_cache: bool) -> RowFile | JoinedFiles:
    """Open one file of rows, or several."""
    if isinstance(source, Path):
        return RowFile(source, row_bytes, past_cache=past_cache)
    return JoinedFiles([(RowFile(p.path, row_bytes, past_cache=past_cache), p.first, p.count) for p in source])


def map_pieces(pieces: Sequence[FileSpan], unit_bytes: int) -> torch.Tensor:
    """Map files side by side: uint8[units * unit_bytes], private and copy-on-write, as `map_file` maps one.

    The memory between them reads as zeros, and takes none.

    Raises:
        StoreError: a file does not have the bytes of its rows, or it cannot be mapped.
    """
    total_bytes = (pieces[-1].first + pieces[-1].count) * unit_bytes
    if not total_bytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    try:
        memory = mmap.mmap(-1, total_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    except (OSError, OverflowError) as e:
        raise StoreError(
            f"{len(pieces)} files need {total_bytes} bytes of addresses side by side: {e}. Raise ulimit -v."
        ) from None
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for piece in pieces:
        _map_over(start + piece.first * unit_bytes, piece.path, piece.count * unit_bytes)
    return torch.frombuffer(memory, dtype=torch.uint8)


# <sys/mman.h> of Linux and macOS
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


def _map_over(address: int, path: Path, size_bytes: int) -> None:
    """Put a file in place of reserved memory, which its mapping takes along when it ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64]
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != size_bytes:
            raise StoreError(f"{path} is not {size_bytes} bytes any more. Copy the store again.")
        protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | MAP_NORESERVE | _MAP_FIXED
        found = libc.mmap(address, size_bytes, protection, flags, file.fileno(), 0)
    if found == _FAILED:
        reason = os.strerror(ctypes.get_errno())
        raise StoreError(f"{path} has {size_bytes} bytes, which cannot be mapped here: {reason}. Raise ulimit -v.")
