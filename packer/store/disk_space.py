"""Room on OUT's disk, and getting rows onto it: allocate up front, sync and commit beside the workers."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

from packer.clock import StageClock
from packer.report import PackError
from packer.sources.local import BINARY
from packer.store.blocks import Result
from packer.store.journal import Journal
from reader.format.filesystem import naming
from reader.format.manifest import PIXELS

_ALLOCATE_BYTES = 1 << 30
# Of one write: for larger ones ext4 takes page cache in large pieces, which a virtual machine may have to ask its host for. Of
# 4,000 photographs `pack --profile` tells 0.18 s of writing, with 8 MiB a write 1.06 (Linux 6.18, 2026-11-22).
_WRITE_BYTES = 256 << 10
# For each worker, while as many more are being committed: a death costs them. Of 4.0 seconds that 1,000 photographs took on 2
# workers, `put` waited 0.02 for room (2026-11-21, ext4).
_PENDING_BLOCKS = 2
# what an error says to do once it is fixed
GO_ON = "continue with --resume"
FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(PackError):
    """OUT's disk lacks room; the command's exit code is 28."""


def check_room(out: Path, sizes: dict[str, int], again: str = GO_ON) -> None:
    """Compare what OUT's files still need with what is free on its disk.

    Args:
        sizes: name below OUT -> bytes that the file will have.
        again: what to do once there is room.

    Raises:
        DiskFullError: names path, needed, free and missing bytes.
    """
    need, free = needed_bytes(out, sizes), free_bytes(out / PIXELS)
    if need > free:
        raise disk_full(out, need, free, again)


def allocate(path: Path, size_bytes: int, told: Callable[[int], None]) -> None:
    """Take the disk space of a file now, in pieces: a full disk is then known before an image is decoded.

    Where the file system cannot, nothing is taken; rows are then written plainly, never through a mapping.

    Raises:
        OSError: with the path as its filename.
    """
    with naming(path), open(path, "r+b", buffering=0) as file:
        for start in range(0, size_bytes, _ALLOCATE_BYTES):
            stop = min(start + _ALLOCATE_BYTES, size_bytes)
            if not _reserve(file.fileno(), start, stop - start):
                return
            told(stop)


def guard_standard_streams() -> None:
    """Put something behind descriptors 0 to 2 where they are closed.

    The next file opened would get the number, and what a C library says to its standard error would end in pixels.memmap.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def needed_bytes(out: Path, sizes: dict[str, int]) -> int:
    """Return how much disk the files of these sizes below OUT still need together."""
    return sum(_missing_bytes(out / name, size_bytes) for name, size_bytes in sizes.items())


def free_bytes(path: Path) -> int:
    """Return what is free on the disk of a file, which need not be there yet."""
    return shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free


def disk_full(path: Path | str, need: int, free: int, again: str = GO_ON) -> DiskFullError:
    """Say how many bytes are missing, and how to go on."""
    return DiskFullError(
        f"{path} needs {need} more bytes, its disk has {free} free: {max(0, need - free)} are missing."
        f" Free some space and {again}, or choose another OUT."
    )


class Committer:
    """Syncs written rows and appends their lines, in a thread of its own, so that no worker waits for the disk.

    Blocks that arrive while a sync runs are committed together by the next one.
    """

    def __init__(self, rows: list[Path], journal: Journal, inputs_done: int, rows_done: int, *, workers: int) -> None:
        self._journal, self._files = journal, rows
        self._inputs, self._rows = inputs_done, rows_done
        # bounded: what waits here is lost in a crash, and a disk slower than the decoders must slow them down
        self._results: queue.Queue[Result | None] = queue.Queue(_PENDING_BLOCKS * workers)
        self._error: BaseException | None = None
        self._clock = StageClock("wait")
        self._descriptors = [os.open(path, os.O_RDWR | BINARY) for path in rows]
        self._thread = threading.Thread(target=self._commit, name="pixpack-committer", daemon=True)
        self._thread.start()

    def put(self, result: Result) -> None:
        """Hand over a written block; raises what a former commit raised."""
        if self._error is not None:
            raise self._error
        self._results.put(result)

    def finish(self) -> None:
        """Wait until everything handed over is on disk."""
        self._end()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End the thread; what was handed over is committed first."""
        self._end()
        for path, descriptor in zip(self._files, self._descriptors, strict=True):
            with naming(path):
                os.close(descriptor)

    def stages(self) -> dict[str, float]:
        """Return the seconds of each stage of its thread; to be asked when that has ended."""
        return self._clock.seconds()

    def _end(self) -> None:
        if self._thread.is_alive():
            self._results.put(None)
            self._thread.join()

    def _commit(self) -> None:
        last = False
        try:
            while not last:
                self._clock.enter("wait")
                batch = [self._results.get()]
                while len(batch) < self._results.maxsize and not self._results.empty():
                    batch.append(self._results.get())
                last = None in batch
                results = [result for result in batch[: batch.index(None) if last else None] if result is not None]
                if results:
                    self._clock.enter("sync")
                    for path, descriptor in zip(self._files, self._descriptors, strict=True):
                        with naming(path):
                            getattr(os, "fdatasync", os.fsync)(descriptor)
                    self._inputs += sum(result.inputs for result in results)
                    self._rows += sum(result.rows for result in results)
                    self._clock.enter("journal")
                    self._journal.append(results, self._inputs, self._rows)
        except BaseException as e:  # it belongs to the caller: `put` and `finish` raise it
            self._error = e
            while not last:  # `put` must never wait for a thread that is gone
                last = self._results.get() is None


def _missing_bytes(path: Path, size_bytes: int) -> int:
    """Return how much disk a file of size_bytes still needs: what it has is counted in blocks, since it may be sparse."""
    try:
        status = os.stat(path)
    except OSError:
        return size_bytes
    return max(0, size_bytes - min(getattr(status, "st_blocks", 0) * 512, status.st_size))


def _reserve(descriptor: int, start: int, count: int) -> bool:
    """Allocate bytes [start, start + count) of a file; False where the system cannot."""
    if not hasattr(os, "posix_fallocate"):
        return False
    try:
        os.posix_fallocate(descriptor, start, count)
    except OSError as e:
        if e.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            return False
        raise
    return True


def move_rows(path: Path, start: int, target: int, count: int) -> None:
    """Move bytes [start, start + count) of a file to target, which is before start; what they overlap is overwritten.

    Raises:
        OSError: with the path as its filename.
    """
    with naming(path), open(path, "r+b", buffering=0) as file:
        for done in range(0, count, _WRITE_BYTES):
            file.seek(start + done)
            data = file.read(min(_WRITE_BYTES, count - done))
            write_at(file.fileno(), memoryview(data), target + done)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of data at a byte offset; short writes go on, errors are raised."""
    while len(data):
        piece = data[:_WRITE_BYTES]
        if hasattr(os, "pwrite"):
            done = os.pwrite(descriptor, piece, offset)
        else:
            os.lseek(descriptor, offset, os.SEEK_SET)
            done = os.write(descriptor, piece)
        if done == 0:
            raise OSError(errno.EIO, "a write came back without writing anything")
        data, offset = data[done:], offset + done
