"""Several files as one: read by byte, and mapped side by side, so that one copy takes rows of all of them.

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
from reader.memory.raw_file import RawFile
from reader.memory.spans import Read
from reader.store import MAP_NORESERVE

# So many rows of any size are whole pages of this system, and whole blocks of a disk.
FIRST_UNITS = max(4096, mmap.PAGESIZE)


@dataclass(frozen=True)
class FileSpan:
    """A file and its bytes among those of all: [first, first + size_bytes)."""

    path: Path
    first: int
    size_bytes: int


# What holds bytes: one file, or several.
RawSource = Path | tuple[FileSpan, ...]


def first_units(counts: Sequence[int]) -> list[int]:
    """Return the number of each file's first row: [3, 5000, 1] -> [0, 4096, 12288] where pages have 4096 bytes."""
    firsts = [0]
    for count in counts[:-1]:
        firsts.append(firsts[-1] + -(-count // FIRST_UNITS) * FIRST_UNITS)
    return firsts


class JoinedFiles:
    """Several files, read as `RawFile` reads one; what is asked for between them is left as it is."""

    def __init__(self, files: Sequence[tuple[RawFile, int, int]]) -> None:
        """files: each with the number of its first byte and of its bytes."""
        self._files = files
        self.align = max(file.align for file, _, _ in files)

    def read(self, memory: memoryview, reads: Sequence[Read]) -> None:
        """Bring bytes to their places in memory; raises as `RawFile.read`."""
        for file, first, size in self._files:
            inside = [
                (
                    max(start, first) - first,
                    min(start + length, first + size) - max(start, first),
                    place + max(0, first - start),
                )
                for start, length, place in reads
                if start < first + size and start + length > first
            ]
            if inside:
                file.read(memory, inside)

    def close(self) -> None:
        """Close all of them."""
        for file, _, _ in self._files:
            file.close()


def open_raw(source: RawSource, *, past_cache: bool) -> RawFile | JoinedFiles:
    """Open one file, or several as one."""
    if isinstance(source, Path):
        return RawFile(source, past_cache=past_cache)
    return JoinedFiles([(RawFile(p.path, past_cache=past_cache), p.first, p.size_bytes) for p in source])


def map_pieces(pieces: Sequence[FileSpan]) -> torch.Tensor:
    """Map files side by side: uint8[n], private and copy-on-write, as `map_file` maps one.

    The memory between them reads as zeros, and takes none.

    Raises:
        StoreError: a file does not have its bytes, or it cannot be mapped.
    """
    total_bytes = pieces[-1].first + pieces[-1].size_bytes
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
        _map_over(start + piece.first, piece.path, piece.size_bytes)
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
