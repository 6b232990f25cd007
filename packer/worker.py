"""What runs inside a worker: decode a block of samples into memory, and write it when its turn comes.

No pixel leaves a worker but into the store's file. Knows neither the journal nor how workers are started.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import time
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from packer.decode import DecodeError, Decoder, Row
from packer.fit import Geometry
from packer.options import CHANNELS

_READ_BYTES = 1 << 20
# Headers are nearly always within this; where they are not, the whole file is read.
_HEADER_BYTES = 64 << 10
# A file that changes while it is read is read again, so often at most.
_READ_TRIES = 5
# The coarsest clock of a file system that we know (FAT): a file written later than this may change again and keep its mtime.
_CLOCK_NS = 2_000_000_000

# Windows opens files as text unless told otherwise.
BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Job:
    """What every block of a pack has in common; small, so that it travels to any worker."""

    root: str
    pixels_path: str
    geometry: Geometry
    channels: str
    exact: bool
    strict: bool
    max_pixels: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.geometry.height * self.geometry.width * CHANNELS[self.channels]


@dataclass(frozen=True)
class Task:
    """Inputs [start, start + len(paths)) of a pack; refused ones are rejected with that reason, unopened.

    first: inputs to decode before all others, since a worker ended with them in flight: what an image does to its process
    must not be laid to the charge of the next one.
    """

    block: int
    start: int
    paths: list[str]
    targets: list[int]
    refused: dict[int, str] = field(default_factory=dict)
    first: tuple[int, ...] = ()


@dataclass
class Result:
    """What is known of a decoded block, all but its pixels; becomes one line of the journal."""

    block: int
    inputs: int
    rows: int = 0
    crc32: int = 0
    pixel_count: int = 0
    sums: list[int] = field(default_factory=list)
    square_sums: list[int] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    content: list[tuple[int, int, int, int]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    sources: list[tuple[int, int]] = field(default_factory=list)
    source_bytes: int = 0


@dataclass
class _Attempt:
    """What became of one input: a row and its line, or a reason."""

    source: tuple[int, int] = (-1, -1)
    source_bytes: int = 0
    row: Row | None = None
    line: str = ""
    reason: str = ""


class BlockWorker:
    """Decodes blocks and holds their rows until told where to write them."""

    def __init__(self, job: Job, in_flight: Any = None) -> None:
        self._job = job
        self._decoder = Decoder(
            job.geometry, channels=job.channels, exact=job.exact, strict=job.strict, max_pixels=job.max_pixels
        )
        self._sums = ChannelSums(job.geometry.height, job.row_bytes, CHANNELS[job.channels])
        self._in_flight = in_flight
        self._held: dict[int, memoryview] = {}
        self._spare: list[npt.NDArray[np.uint8]] = []
        self._owners: dict[int, npt.NDArray[np.uint8]] = {}
        self._file: int | None = None

    def decode(self, task: Task) -> Result:
        """Decode a block; its rows stay here until `write`."""
        result = Result(task.block, len(task.paths))
        buffer = self._buffer(len(task.paths) * self._job.row_bytes)
        rows = buffer.reshape(len(task.paths), self._job.row_bytes)
        early = {index: self._attempt(task, index) for index in task.first}
        for index, target in enumerate(task.targets, start=task.start):
            attempt = early.pop(index, None) or self._attempt(task, index)
            result.sources.append(attempt.source)
            result.source_bytes += attempt.source_bytes
            if attempt.row is None:
                result.rejects.append({"path": task.paths[index - task.start], "reason": attempt.reason})
            else:
                self._add(result, rows, target, attempt.row, attempt.line)
        self._mark(-1)
        used = buffer.data[: result.rows * self._job.row_bytes]
        result.crc32 = zlib.crc32(used)
        result.sums, result.square_sums = self._sums.take()
        self._held[task.block], self._owners[task.block] = used, buffer
        return result

    def write(self, block: int, first_row: int) -> None:
        """Write a decoded block's rows to their place in the file; they are in the page cache then, not yet on disk."""
        if self._file is None:
            self._file = os.open(self._job.pixels_path, os.O_WRONLY | BINARY)
        write_at(self._file, self._held.pop(block), first_row * self._job.row_bytes)
        self._spare.append(self._owners.pop(block))

    def _attempt(self, task: Task, index: int) -> _Attempt:
        """Read and decode one input; whatever is wrong with it, it costs no other."""
        self._mark(index)
        attempt, path = _Attempt(), task.paths[index - task.start]
        try:
            if index in task.refused:
                raise DecodeError(task.refused[index])
            full_path = os.path.join(self._job.root, path)
            attempt.source = source_state(full_path)
            data, attempt.source = read_source(full_path)
            attempt.source_bytes = len(data)
            row = self._decoder.row(data)
            attempt.line = _sample_line(path, task.targets[index - task.start], data, row)
            attempt.row = row
        except DecodeError as e:
            attempt.reason = str(e)
        except MemoryError:
            raise  # this process's trouble, not the image's: it is tried again in another
        except Exception as e:  # the reason names the kind for a report
            attempt.reason = f"it made the decoder fail ({type(e).__name__}: {e})"
        return attempt

    def _add(self, result: Result, rows: npt.NDArray[np.uint8], target: int, row: Row, line: str) -> None:
        """Append one row; nothing here can fail: an input is a row or a reject, never both."""
        rows[result.rows] = np.frombuffer(row.pixels, np.uint8)
        self._sums.add(rows[result.rows])
        result.rows += 1
        result.samples.append(line)
        result.targets.append(target)
        if self._job.geometry.has_content:
            result.content.append(row.content)
        y0, x0, y1, x1 = row.content
        result.pixel_count += (y1 - y0) * (x1 - x0)

    def _buffer(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """Return a spare buffer or a fresh one: a fresh one costs a page fault every 4 KiB."""
        while self._spare:
            spare = self._spare.pop()
            if len(spare) >= size_bytes:
                return spare[:size_bytes] if len(spare) > size_bytes else spare
        return np.empty(size_bytes, np.uint8)

    def _mark(self, index: int) -> None:
        """Leave word of the sample in flight where the parent can read it even after a crash."""
        if self._in_flight is not None:
            self._in_flight[1] += 1
            self._in_flight[0] = index


class ChannelSums:
    """Exact sums and sums of squares per channel of rows of uint8; padding is 0 and adds nothing.

    Each row is summed down to one line of uint32 at once, while it is still in the CPU's cache: 0.035 ms a row of
    224 x 224 x 3, half of what sums of the row's own size take (2026-11-20).
    """

    def __init__(self, height: int, row_bytes: int, channels: int) -> None:
        self._channels = channels
        self._values = np.empty(row_bytes, np.uint16)
        self._lines = self._values.reshape(height, -1)
        self._sums = np.zeros(self._lines.shape[1], np.uint64)
        self._squares = np.zeros(self._lines.shape[1], np.uint64)

    def add(self, row: npt.NDArray[np.uint8]) -> None:
        """Count one row."""
        np.copyto(self._values, row)
        # 16,384 lines of squares fit in uint32
        self._sums += np.add.reduce(self._lines, axis=0, dtype=np.uint32)
        np.multiply(self._values, self._values, out=self._values)
        self._squares += np.add.reduce(self._lines, axis=0, dtype=np.uint32)

    def take(self) -> tuple[list[int], list[int]]:
        """Return the sums and the sums of squares since the last call."""
        taken = []
        for totals in (self._sums, self._squares):
            taken.append(totals.reshape(-1, self._channels).sum(axis=0).tolist())
            totals[:] = 0
        return taken[0], taken[1]


def source_state(path: str) -> tuple[int, int]:
    """Return (size, mtime_ns) of a file, by which a resume notices that it changed; (-1, -1) where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return -1, -1
    return status.st_size, status.st_mtime_ns


def read_source(path: str, *, most_bytes: int = 4 << 30) -> tuple[bytes, tuple[int, int]]:
    """Read a regular file, or its first most_bytes, in one version; returns its bytes and (size, mtime_ns).

    Renaming and deleting leave an open file as it is. One that is rewritten, cut or appended to while it is read is read
    again, until its times stand still or two reads agree.

    Raises:
        DecodeError: it cannot be read, is no regular file, is empty, or changes again and again.
    """
    try:
        # NONBLOCK: opening a FIFO without a writer would wait for ever
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY)
    except OSError as e:
        raise DecodeError(_unreadable(path, e)) from e
    try:
        before: bytes | None = None
        for _ in range(_READ_TRIES):
            data, state, is_settled = _read_once(descriptor, most_bytes)
            if is_settled or data == before:
                return data, state
            before = data
    except OSError as e:
        raise DecodeError(_unreadable(path, e)) from e
    finally:
        os.close(descriptor)
    raise DecodeError("it was changed each time it was read; pack it when its writer is done")


def _read_once(descriptor: int, most_bytes: int) -> tuple[bytes, tuple[int, int], bool]:
    """Read an open file from its start; returns its bytes, (size, mtime_ns), and whether they are surely one version."""
    begun = time.time_ns()
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise DecodeError(f"it is {_kind(status.st_mode)}, not an image")
    if status.st_size == 0:
        raise DecodeError("the file is empty")
    if status.st_size > 4 << 30:
        raise DecodeError(f"the file has {status.st_size / 1e9:.0f} GB; no image is that large")
    wanted = min(status.st_size, most_bytes)
    os.lseek(descriptor, 0, os.SEEK_SET)
    data = os.read(descriptor, wanted)
    while len(data) < wanted and (more := os.read(descriptor, min(_READ_BYTES, wanted - len(data)))):
        data += more
    # ctime too: no program can set it back
    times = status.st_mtime_ns, status.st_ctime_ns
    now = os.fstat(descriptor)
    is_same = (now.st_size, now.st_mtime_ns, now.st_ctime_ns) == (status.st_size, *times)
    return data, (status.st_size, status.st_mtime_ns), is_same and begun - max(times) > _CLOCK_NS


def upright_sizes(root: str, paths: list[str], max_pixels: int) -> dict[tuple[int, int], int]:
    """Count (height, width) over the images whose header can be read; the others will be rejected when decoded."""
    decoder = Decoder(None, max_pixels=max_pixels)
    counts: dict[tuple[int, int], int] = {}
    for path in paths:
        for most_bytes in (_HEADER_BYTES, 4 << 30):
            try:
                data, _ = read_source(os.path.join(root, path), most_bytes=most_bytes)
                size = decoder.upright_size(data)
            except Exception:  # whatever is wrong with it, decoding says it, with a reason
                continue
            counts[size] = counts.get(size, 0) + 1
            break
    return counts


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """Write all of data at a byte offset; short writes go on, errors are raised."""
    while len(data):
        if hasattr(os, "pwrite"):
            done = os.pwrite(descriptor, data, offset)
        else:
            os.lseek(descriptor, offset, os.SEEK_SET)
            done = os.write(descriptor, data)
        if done == 0:
            raise OSError(errno.EIO, "a write came back without writing anything")
        data, offset = data[done:], offset + done


def encode_line(value: dict[str, Any]) -> str:
    """Encode one line of samples.jsonl or rejected.jsonl; ASCII, so that names that are no UTF-8 survive too."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")) + "\n"


def _sample_line(path: str, target: int, data: bytes, row: Row) -> str:
    size = {"width": row.width, "height": row.height}
    line = {"path": path, "target": target, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return encode_line(line | size | row.done)


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "a special file"


def _unreadable(path: str, error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return "it is a socket or a FIFO, not an image"
    if error.errno == errno.ELOOP:
        return "it is a symbolic link that leads back to itself"
    if error.errno == errno.ENOENT and os.path.islink(path):
        return "it is a symbolic link to a file that does not exist"
    if error.errno == errno.ENOENT:
        return "the file is gone"
    return f"it cannot be read: {error.strerror}"
