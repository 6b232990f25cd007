"""Where in its file a cache has its blocks: at the store's own offsets, or in slots of one size.

A file of the first kind is the store's own once all blocks are there; a block that leaves becomes a hole. One of the second is
for a small cache where no holes can be punched (macOS, exFAT, disks by FUSE): a block that leaves frees its slot for another.
Which blocks are wanted, and who writes them, is said by the caller.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import os
import tempfile
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from reader import system
from reader.format.errors import StoreError
from reader.remote.table import BlockTable


class BlockPart(NamedTuple):
    """Bytes [start, start + size) of the pixels, all of one block, and where in memory they belong."""

    block: int
    start: int
    size: int
    offset: int


class BlockFile(abc.ABC):
    """The blocks of a cache, open to read and write; block b has the bytes [starts[b], starts[b + 1]) of the pixels."""

    def __init__(self, path: Path, starts: Sequence[int], table: BlockTable) -> None:
        self.path, self.starts, self.table = path, starts, table
        # with the table, and inherited by forks as it is: a cache that is made again has another file of this name, of holes
        self.descriptor = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self.descriptor)

    @abc.abstractmethod
    def room(self, block: int) -> int:
        """Return the bytes that a block takes on the disk."""

    @abc.abstractmethod
    def begin(self, run: Sequence[int]) -> None:
        """Say that blocks are about to be written. For one process at a time."""

    @abc.abstractmethod
    def free(self, blocks: Sequence[int]) -> None:
        """Free what blocks take, which are not in the table any more. For one process at a time."""

    @abc.abstractmethod
    def is_beyond(self, block: int, limit: int) -> bool:
        """Say whether a block keeps the file larger than so many bytes."""

    @abc.abstractmethod
    def offset(self, block: int, number: int) -> int:
        """Return where in the file a block begins that has this number."""

    def write(self, run: Sequence[int], data: memoryview) -> None:
        """Write blocks that are one after the other in the store, and have begun."""
        base = self.starts[run[0]]
        for block in run:
            part, offset = data[self.starts[block] - base : self.starts[block + 1] - base], self._offset(block)
            done = 0
            while done < len(part):
                done += os.pwrite(self.descriptor, part[done:], offset + done)

    def read(self, memory: memoryview, parts: Iterable[BlockPart]) -> None:
        """Bring parts of blocks to memory. For any thread.

        What is read of a block that leaves meanwhile is of no use: who asks compares the block's number before and after.

        Raises:
            StoreError: the file ends before a block that is in it.
        """
        for block, start, size, where in parts:
            number = self.table.number(block)
            offset, done = self.offset(block, number) + start - self.starts[block], 0
            while done < size:
                count = os.preadv(self.descriptor, [memory[where + done : where + size]], offset + done)
                if not count and self.table.number(block) == number:
                    raise StoreError(
                        f"{self.path} ends at byte {offset + done}: it was cut short. Remove {self.path.parents[1]}"
                    )
                done += count or size

    def _offset(self, block: int) -> int:
        return self.offset(block, self.table.number(block))


class SparseFile(BlockFile):
    """Blocks at the store's own offsets."""

    def room(self, block: int) -> int:
        """Return the bytes that a block takes on the disk: its own."""
        return self.starts[block + 1] - self.starts[block]

    def begin(self, run: Sequence[int]) -> None:
        """Say that blocks are about to be written. For one process at a time."""
        for block in run:
            self.table.begin(block)

    def free(self, blocks: Sequence[int]) -> None:
        """Punch holes."""
        for block in blocks:
            system.punch_hole(self.descriptor, self.starts[block], self.room(block))

    def is_beyond(self, block: int, limit: int) -> bool:
        """Say no: a hole takes nothing."""
        return False

    def offset(self, block: int, number: int) -> int:
        """Return where in the file a block begins."""
        return self.starts[block]


class SlotFile(BlockFile):
    """Blocks in slots of the size of the largest, slot s from byte s * slot_bytes on.

    The slot of a block is part of its number in the table: both change at once, also on the disk. A slot has another block only
    once the table there says that the one before is gone.
    """

    @functools.cached_property
    def slot_bytes(self) -> int:
        """The bytes of a slot."""
        return max(stop - start for start, stop in itertools.pairwise(self.starts))

    def room(self, block: int) -> int:
        """Return the bytes that a block takes on the disk: a slot."""
        return self.slot_bytes

    def begin(self, run: Sequence[int]) -> None:
        """Give blocks the lowest free slots, and say that they are about to be written. For one process at a time."""
        used = self._used_slots(without=run)
        free = (slot for slot in itertools.count() if slot not in used)
        for block, slot in zip(run, free, strict=False):
            self.table.begin(block, slot)

    def free(self, blocks: Sequence[int]) -> None:
        """Cut the file behind the last slot in use; `begin` uses the others again. For one process at a time."""
        stop = (max(self._used_slots(), default=-1) + 1) * self.slot_bytes
        if os.fstat(self.descriptor).st_size > stop:
            os.ftruncate(self.descriptor, stop)

    def is_beyond(self, block: int, limit: int) -> bool:
        """Say whether a block keeps the file larger than so many bytes."""
        return self._offset(block) + self.slot_bytes > limit

    def offset(self, block: int, number: int) -> int:
        """Return where in the file a block begins that has this number."""
        return self.table.slot_of(number) * self.slot_bytes

    def _used_slots(self, without: Sequence[int] = ()) -> set[int]:
        table, left = self.table, {*without}
        return {table.slot(b) for b in range(table.count) if table.number(b) and b not in left}


def punches_holes(folder: Path) -> bool:
    """Say whether a part of a file in a folder can be freed.

    Raises:
        OSError: no file can be written there.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"x" * 8192)
        file.flush()
        with contextlib.suppress(OSError):
            system.punch_hole(file.fileno(), 0, 4096)
            return True
    return False
