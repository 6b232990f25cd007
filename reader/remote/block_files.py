"""How a cache keeps blocks on its disk: in the store's own file, or, where it has no room for all of them, in a file each.

Which blocks are wanted, and which of them leave, is said by the caller.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, ClassVar, NamedTuple

from reader.format.errors import StoreError
from reader.remote.leftovers import new_file, path_beside, sync

# The marks of blocks begin behind the one that says that the store is complete.
_COMPLETE, _FIRST = 0, 1
# A folder of files is looked through faster than one of 120,000, which 1 TB has.
_SUBFOLDERS = 256


class BlockPart(NamedTuple):
    """Bytes [start, start + size) of the pixels, all of one block, and where in memory they belong."""

    block: int
    start: int
    size: int
    offset: int


class StoreFile:
    """Blocks in the store's own file of pixels, none of which leaves; it is the store's once all of them are there.

    The marks, a byte each, are in a small file that all processes of a node map. Block b has the bytes [starts[b], starts[b + 1])
    of the pixels.

    Raises:
        StoreError: a file is not as large as the store needs it.
        FileNotFoundError: one is missing.
    """

    def __init__(self, pixels: Path, marks: Path, starts: Sequence[int]) -> None:
        self._path, self._starts = pixels, starts
        with open(marks, "r+b") as file:
            self._status = os.fstat(file.fileno())
            if self._status.st_size < (need := len(self.no_marks(len(starts) - 1))):
                raise StoreError(
                    f"{marks} has {self._status.st_size} bytes, expected {need}: the cache is damaged. Open it again."
                )
            self._mapped = mmap.mmap(file.fileno(), need)
        # opened with the marks, and inherited by forks: a cache that was rebuilt has another file of this name, of holes
        self._descriptor = os.open(pixels, os.O_RDWR)
        weakref.finalize(self, os.close, self._descriptor)
        # all blocks before it are there
        self._first_missing = 0

    @staticmethod
    def no_marks(count: int) -> bytes:
        """Return the marks of so many blocks, none of which is there.

        They are written, not truncated to size: on a full disk, storing into a hole of a mapped file ends the process (SIGBUS).
        """
        return bytes(_FIRST + count)

    def is_at(self, marks: Path) -> bool:
        """Say whether a path still leads to these marks: a damaged cache is dropped, and others may have it open."""
        with contextlib.suppress(OSError):
            return os.path.samestat(marks.stat(), self._status)
        return False

    @property
    def identity(self) -> list[int]:
        """Device and inode of the file of marks: no other cache has these while this one is open, nor one that was rebuilt."""
        return [self._status.st_dev, self._status.st_ino]

    @property
    def is_complete(self) -> bool:
        """Whether all of the store is in its folder, for good, the files that opening does not need among it."""
        return bool(self._mapped[_COMPLETE])

    def complete(self) -> None:
        """Mark the store as complete."""
        self._mapped[_COMPLETE] = 1
        self._mapped.flush()

    def has(self, block: int) -> bool:
        """Say whether a block is in the cache."""
        return bool(self._mapped[_FIRST + block])

    @property
    def has_all(self) -> bool:
        """Whether all blocks are in the cache; looks at each block once, however often it is asked."""
        # a number of this thread's own: another one may be further, and it must not go past a block that it has not looked at
        count, first = len(self._starts) - 1, self._first_missing
        while first < count and self.has(first):
            first += 1
        self._first_missing = first
        return first == count

    def write(self, run: Sequence[int], data: memoryview) -> None:
        """Write blocks that are one after the other, and mark them."""
        done, start = 0, self._starts[run[0]]
        while done < len(data):
            done += os.pwrite(self._descriptor, data[done:], start + done)
        # before their marks: a power cut must not leave these without the bytes
        sync(self._descriptor)
        for block in run:
            self._mapped[_FIRST + block] = 1

    def read(self, memory: memoryview, parts: Sequence[BlockPart]) -> list[BlockPart]:
        """Bring parts of blocks to memory; returns those whose blocks are not in the cache. For any thread.

        Raises:
            StoreError: the file ends before a block that is in it.
        """
        left = list[BlockPart]()
        for part in parts:
            if not self.has(part.block):
                left.append(part)
            elif (done := _read(self._descriptor, memory, part, part.start)) < part.size:
                raise StoreError(
                    f"{self._path} ends at byte {part.start + done}: it was cut short. Remove {self._path.parents[1]}"
                )
        return left


class BlockFiles:
    """Blocks in a file each, which has its name once all its bytes are on the disk: it may be removed at any moment.

    Who reads a block has its file open meanwhile, and a thread has one open at once. A cache that is rebuilt keeps the files,
    and no store is ever complete in them.
    """

    identity: ClassVar[list[int]] = []
    is_complete: ClassVar[bool] = False

    def __init__(self, folder: Path, beside: Path, starts: Sequence[int]) -> None:
        """Open files of blocks in a folder; beside: the folder of those that are being written."""
        self._folder, self._beside, self._starts = folder, beside, starts

    def has(self, block: int) -> bool:
        """Say whether a block is in the cache."""
        return os.path.exists(self._path(block))

    def listed(self) -> Iterator[tuple[int, int]]:
        """Yield each block that is in the cache, and when it came, in nanoseconds."""
        for number in range(_SUBFOLDERS):
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(f"{self._folder}/{number:02x}"):
                    # a system may have files of its own there; and another process may have removed one that was damaged
                    if entry.name.isdigit() and int(entry.name) < len(self._starts) - 1:
                        with contextlib.suppress(FileNotFoundError):
                            yield int(entry.name), entry.stat().st_mtime_ns

    def unfinished(self) -> dict[Path, int]:
        """Return the files of blocks that are being written, or were by processes that were killed."""
        found = {path: path.name.split(".") for path in self._beside.glob(".*.*.*")}
        return {path: int(words[1]) for path, words in found.items() if words[1].isdigit()}

    def begin(self, block: int) -> BinaryIO:
        """Make the file of a block, without its name."""
        return new_file(path_beside(self._beside / str(block)))

    def finish(self, block: int, file: BinaryIO, data: memoryview) -> None:
        """Write a block to its file, and give that its name."""
        try:
            file.write(data)
            file.flush()
            # before it has its name: a power cut must not leave this without the bytes
            sync(file.fileno())
            os.makedirs(os.path.dirname(self._path(block)), exist_ok=True)
            os.replace(file.name, self._path(block))
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.name)
            raise

    def remove(self, block: int) -> bool:
        """Remove a block; False: it is not there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(block))
            return True
        return False

    def read(self, memory: memoryview, parts: Sequence[BlockPart]) -> list[BlockPart]:
        """Bring parts of blocks to memory, as `StoreFile.read` does; a file that was cut short is removed."""
        left, of_block = list[BlockPart](), defaultdict[int, list[BlockPart]](list)
        for part in parts:
            of_block[part.block].append(part)
        for block, found in of_block.items():
            try:
                descriptor = os.open(self._path(block), os.O_RDONLY)
            except FileNotFoundError:
                left += found
                continue
            try:
                short = [p for p in found if _read(descriptor, memory, p, p.start - self._starts[block]) < p.size]
            finally:
                os.close(descriptor)
            if short:
                self.remove(block)
                left += found
        return left

    def _path(self, block: int) -> str:
        return f"{self._folder}/{block % _SUBFOLDERS:02x}/{block}"


def _read(descriptor: int, memory: memoryview, part: BlockPart, offset: int) -> int:
    """Read a part from a file that has it at this offset; returns how many bytes there are."""
    done = 0
    while done < part.size:
        if not (count := os.preadv(descriptor, [memory[part.offset + done : part.offset + part.size]], offset + done)):
            break
        done += count
    return done
