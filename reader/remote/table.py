"""Which blocks of a store are in its cache: a number for each in a small file that all processes of a node map.

A number changes whenever its block comes or goes, and never to one that it had. So who reads a block looks at its number before
and after: where it is the same, and says that the block is there, the bytes are the block's. That takes no lock.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

from reader import system
from reader.format.errors import StoreError
from reader.format.filesystem import error_path

_ABSENT, _WRITING, _PRESENT = 0, 1, 2
_KINDS = 4
# Before the blocks' numbers: whether the cache is complete, and the count of changes.
_COMPLETE, _CHANGES, _FIRST = 0, 1, 2
_NUMBER_BYTES = 8
# Of a number: 2 bits what is with its block, 37 the count of changes, and 25 its slot, where the cache has slots. The blocks of
# the largest manifest that is fetched are fewer.
_SLOT_SHIFT = 39


class BlockTable:
    """The numbers of a cache's blocks. Only who holds a block's lock changes its number, `forget` aside: see `folder.py`.

    Raises:
        StoreError: the file has fewer numbers.
    """

    def __init__(self, path: Path, count: int) -> None:
        self.count = count
        with open(path, "r+b") as file:
            self._status = os.fstat(file.fileno())
            if self._status.st_size < (need := self.file_bytes(count)):
                raise StoreError(
                    f"{path} has {self._status.st_size} bytes, expected {need}: the cache is damaged. Open it again."
                )
            self._mapped = mmap.mmap(file.fileno(), need)
        # an aligned word is written at once
        self._numbers = memoryview(self._mapped).cast("Q")

    @staticmethod
    def empty(count: int) -> bytes:
        """Return the file with no block in the cache.

        It is written, not truncated to size: on a full disk, storing into a hole of a mapped file ends the process (SIGBUS).
        """
        return bytes(BlockTable.file_bytes(count))

    @staticmethod
    def has_room(path: Path) -> bool:
        """Say whether the file has no holes, as those of earlier versions do."""
        status = path.stat()
        return status.st_blocks * 512 >= status.st_size

    @staticmethod
    def make_room(path: Path) -> None:
        """Have room on the disk for all of the file, where its system can; no number changes, while others change them too."""
        with error_path(path), open(path, "r+b") as file:
            system.allocate(file.fileno(), os.fstat(file.fileno()).st_size)

    @staticmethod
    def says_complete(path: Path) -> bool:
        """Say whether all of the store is in its folder, by a file that may have holes: mapped, these need room to be looked at.

        Raises:
            OSError: there is none, or it may not be read.
        """
        with open(path, "rb", buffering=0) as file:
            return any(os.pread(file.fileno(), _NUMBER_BYTES, _COMPLETE * _NUMBER_BYTES))

    @staticmethod
    def file_bytes(count: int) -> int:
        """Return the bytes of the file for so many blocks."""
        return (count + _FIRST) * _NUMBER_BYTES

    @property
    def identity(self) -> list[int]:
        """What no other file has while this one is open: a cache that is made again has another table."""
        return [self._status.st_dev, self._status.st_ino]

    def is_at(self, path: Path) -> bool:
        """Say whether a path still leads to this file: a damaged cache is dropped, and others may have it open."""
        with contextlib.suppress(OSError):
            return os.path.samestat(path.stat(), self._status)
        return False

    def number(self, block: int) -> int:
        """Return a block's number; see the module."""
        return self._numbers[_FIRST + block]

    def has(self, block: int) -> bool:
        """Say whether a block is in the cache."""
        return self._numbers[_FIRST + block] % _KINDS == _PRESENT

    def is_writing(self, block: int) -> bool:
        """Say whether a block is being written, or was by a process that was killed."""
        return self._numbers[_FIRST + block] % _KINDS == _WRITING

    def age(self, block: int) -> int:
        """Return the count of changes when the block came last."""
        return self._numbers[_FIRST + block] % (1 << _SLOT_SHIFT) // _KINDS

    def slot(self, block: int) -> int:
        """Return the slot that was named when a block came last."""
        return self.slot_of(self._numbers[_FIRST + block])

    @staticmethod
    def slot_of(number: int) -> int:
        """Return the slot of a block that has this number."""
        return number >> _SLOT_SHIFT

    def begin(self, block: int, slot: int = 0) -> None:
        """Say that a block is about to be written, to a slot where the cache has some. For one process at a time."""
        self._numbers[_CHANGES] += 1
        # at once: whoever reads the one after a power cut has the other too
        self._numbers[_FIRST + block] = (slot << _SLOT_SHIFT) + self._numbers[_CHANGES] * _KINDS + _WRITING

    def finish(self, block: int) -> None:
        """Say that a block is in the cache; its bytes are on disk."""
        number = self._numbers[_FIRST + block]
        assert number % _KINDS == _WRITING
        self._numbers[_FIRST + block] = number - _WRITING + _PRESENT

    def forget(self, blocks: list[int]) -> None:
        """Say, on disk too, that blocks are not in the cache, before their bytes are taken away. For one process at a time."""
        for block in blocks:
            self._numbers[_FIRST + block] = _ABSENT
        self._mapped.flush()

    @property
    def is_complete(self) -> bool:
        """Whether all of the store is in its folder, for good."""
        return bool(self._numbers[_COMPLETE])

    def complete(self) -> None:
        """Say that all of the store is in its folder."""
        self._numbers[_COMPLETE] = 1
        self._mapped.flush()
