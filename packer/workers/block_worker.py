"""The work inside a worker: decode a block of samples into memory, and write it when its turn comes.

Pixels leave a worker only into the store's file. Knows neither the journal nor how workers are started.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from packer.errors import DecodeError, EngineError, PackError
from packer.options import RowOptions
from packer.pixels.compiled import PixelBytes, channel_sums
from packer.pixels.decode import serves
from packer.pixels.decoder_choice import row_decoder
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.pixels.row import Row
from packer.sample_lines import Sample
from packer.sources.base import NO_STATE, Archive, Readable, State
from packer.sources.local import LocalSource, locate
from packer.store.files import write_at
from packer.store.lock import check_same_lock
from packer.store.tasks import RejectedInput, Result, Task
from packer.system import NO_DESCRIPTOR
from packer.workers.processes import InFlight
from reader.format.filesystem import error_path
from reader.format.samples import MOST_LINE_BYTES
from reader.format.urls import is_url

if TYPE_CHECKING:
    from packer.pixels.mask import MaskRow
    from packer.sources.remote import ObjectPrefetch
    from packer.store.reuse import ReusedRows


@dataclass(frozen=True)
class PackJob:
    """The settings of all blocks of a pack; small, so that they travel to any worker."""

    root: str
    pixels_path: str
    geometry: Geometry
    rows: RowOptions
    archives: tuple[Archive, ...] = ()
    # whether there are masks, their folder, and the file of their rows, if any
    has_masks: bool = False
    masks_root: str = ""
    masks_path: str = ""
    mask_classes: tuple[int, ...] = ()
    # the store that an update replaces, and its manifest's digest
    reused_store: tuple[str, str] = ("", "")
    # the folders and archives of the inputs and masks
    roots: tuple[str, ...] = ()
    # the lock of the folder that rows are written to: its file, and the expected content; "": no lock
    lock: tuple[str, bytes] = ("", b"")

    def worker(self, in_flight: InFlight) -> BlockWorker:
        """Make the worker of this job, in its process."""
        return BlockWorker(self, in_flight)

    def row_maker(self, in_flight: InFlight) -> RowMaker:
        """Make the row maker, in a worker's process."""
        return ImageRows(self, in_flight)

    def import_ahead(self, paths: Sequence[str]) -> None:
        """Import the decoders of these inputs before workers are forked, so that each need not import them."""
        is_plain = self.rows.channels == "rgb" and self.rows.requantize is None
        # a plain JPEG of one size without masks needs no Pillow
        if self.has_masks or self.geometry.has_own_sizes or not is_plain or not serves(paths):
            import packer.pixels.pillow  # noqa: F401

    def mask_source(self, path: str) -> LocalSource:
        """Locate a mask."""
        return LocalSource(os.path.join(self.masks_root, path), roots=self.roots)

    def source(self, path: str, member: list[int] | None) -> Readable:
        """Locate an input: a file below root, or by the numbers of its `Member` of an archive."""
        return locate(self.root, path, self.archives, member, self.roots)

    @property
    def layout(self) -> RowLayout:
        """The layout of rows in the store's files."""
        return RowLayout(self.geometry, self.rows.channels, has_masks=self.has_masks, quality=self.rows.compress or 0)


@dataclass
class Attempt:
    """The outcome of one input: a row and its line, or a reason."""

    source: State = NO_STATE
    mask_source: State = NO_STATE
    mask: bytes = b""
    mask_values: list[int] = field(default_factory=list)
    source_bytes: int = 0
    # the memory for pixels of a row of one size
    memory: memoryview | None = None
    row: Row | None = None
    is_reused: bool = False
    line: str = ""
    reason: str = ""


class RowMaker(Protocol):
    """Makes the rows of inputs, one after the other."""

    def expect(self, task: Task) -> None:
        """Request the remote sources of a block ahead of its decoding; called by another thread."""
        return

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in the row and the other facts about an input; raises DecodeError."""


@dataclass
class _Held:
    """The rows of a decoded block, from the first byte of memory on, and masks for a separate file."""

    memory: bytearray
    # of each channel, then of their squares
    sums: list[int]
    size_bytes: int = 0
    masks: bytearray = field(default_factory=bytearray)

    def room(self, row_bytes: int) -> memoryview:
        """Return the memory of the next row."""
        return memoryview(self.memory)[self.size_bytes : self.size_bytes + row_bytes]

    def append(self, data: PixelBytes) -> None:
        """Append a row, or the mask after one."""
        stop = self.size_bytes + len(data)
        self.memory[self.size_bytes : stop] = data
        self.size_bytes = stop


class BlockWorker:
    """Decodes blocks and holds their rows until their offset is known."""

    def __init__(self, job: PackJob, in_flight: InFlight | None = None) -> None:
        self._job, self._layout = job, job.layout
        self._in_flight = in_flight or InFlight()
        self._maker = job.row_maker(self._in_flight)
        self._held: dict[int, _Held] = {}
        # memory of written blocks, to reuse: new memory costs a page fault every 4 KiB
        self._spare: list[bytearray] = []
        self._files: dict[str, int] = {}

    def expect(self, task: Task) -> None:
        """Request the remote sources of a block ahead of its decoding; called by another thread."""
        self._maker.expect(task)

    def decode(self, task: Task) -> Result:
        """Decode a block; its rows stay here until `write`."""
        result, channels = Result(task.block, 0), self._layout.channel_count
        held = _Held(self._spare.pop() if self._spare else bytearray(), [0] * 2 * channels)
        is_raw = self._layout.size is not None and not self._layout.quality
        row_bytes = self._layout.size_bytes(1) if is_raw else 0
        if len(held.memory) < row_bytes * len(task.paths):
            held.memory = bytearray(row_bytes * len(task.paths))
        for index in range(task.start, task.stop):
            attempt = self._attempt(task, index, held.room(row_bytes) if is_raw else None)
            result.inputs += 1
            result.sources.append(attempt.source)
            result.source_bytes += attempt.source_bytes
            if task.masks:
                result.mask_sources.append(attempt.mask_source)
            if attempt.row is None:
                path = task.paths[index - task.start]
                result.rejects.append(RejectedInput(index, path, attempt.reason))
            else:
                self._add(result, held, attempt.row, attempt)
        self._in_flight.mark(-1)
        self._held[task.block] = held
        result.size_bytes = held.size_bytes
        result.sums, result.square_sums = held.sums[:channels], held.sums[channels:]
        return result

    def write(self, block: int, offset: int) -> None:
        """Write a decoded block's rows at a byte of the pixel file, and its masks; the command syncs both."""
        held = self._held.pop(block)
        with memoryview(held.memory) as memory:
            self._write(self._job.pixels_path, memory[: held.size_bytes], offset)
        if held.masks:
            self._write(self._job.masks_path, memoryview(held.masks), self._layout.mask_bytes(offset))
        self._spare.append(held.memory)

    def _write(self, path: str, data: memoryview, offset: int) -> None:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_WRONLY)
            if self._job.lock[0]:  # after the opening: a rename between the two is noticed
                check_same_lock(*self._job.lock)
        with error_path(path), data:
            write_at(self._files[path], data, offset)

    def _attempt(self, task: Task, index: int, memory: memoryview | None) -> Attempt:
        """Read and decode one input; its errors cost no other input."""
        attempt = Attempt(memory=memory)
        try:
            if index in task.refused:
                raise DecodeError(task.refused[index])
            self._maker.make(task, index, attempt)
            if len(attempt.line) > MOST_LINE_BYTES:
                attempt.row = None
                raise DecodeError(f"its line has {len(attempt.line)} bytes, expected {MOST_LINE_BYTES} at most")
        except DecodeError as e:
            attempt.reason = str(e)
        except (MemoryError, PackError):
            raise  # a fault of this process or of the disk, not of the image
        except Exception as e:
            if isinstance(e, OSError) and e.errno in NO_DESCRIPTOR:
                raise
            # Pillow raises OSError for damaged images too, without an errno
            if isinstance(e, ImportError) or (isinstance(e, OSError) and e.errno is not None):
                raise EngineError(
                    f"{task.paths[index - task.start]} could not be decoded, by an error of this machine"
                    f" ({type(e).__name__}: {e}). `pack doctor` shows what is missing."
                ) from e
            # the type in the reason helps a bug report
            attempt.reason = f"it made the decoder fail ({type(e).__name__}: {e})"
        return attempt

    def _add(self, result: Result, held: _Held, row: Row, attempt: Attempt) -> None:
        """Append one row; nothing here can fail: an input is a row or a reject, never both."""
        layout = self._layout
        height, width = layout.size or row.content[2:]
        kept = row.frame or row.pixels
        for data in (kept, b"" if layout.has_mask_file else attempt.mask):
            if data is attempt.memory:
                held.size_bytes += len(data)
            else:
                held.append(data)
            result.crc32 = zlib.crc32(data, result.crc32)
        if layout.has_mask_file:
            held.masks += attempt.mask
        sums = channel_sums(row.pixels, layout.channel_count, width * layout.channel_count)
        held.sums = [total + more for total, more in zip(held.sums, sums, strict=True)]
        if layout.size is None:
            result.shapes.append((height, width))
        if layout.quality:
            result.frames.append(len(kept))
        result.mask_values = sorted({*result.mask_values, *attempt.mask_values})
        result.rows += 1
        result.kept += attempt.is_reused
        result.samples.append(attempt.line)
        if layout.geometry.has_content:
            result.content.append(row.content)
        y0, x0, y1, x1 = row.content
        result.pixel_count += (y1 - y0) * (x1 - x0)


class ImageRows(RowMaker):
    """Reads images from their sources and decodes them, or reuses their rows."""

    def __init__(self, job: PackJob, in_flight: InFlight) -> None:
        self._job, self._in_flight = job, in_flight
        self._decoder = row_decoder(job.geometry, job.rows)
        self._fetcher: ObjectPrefetch | None = None
        if is_url(job.root):
            from packer.sources.remote import ObjectPrefetch

            self._fetcher = ObjectPrefetch(job.root)
        self._reused: ReusedRows | None = None
        if job.reused_store[0]:
            from packer.pixels.opening import lift_limits
            from packer.store.reuse import ReusedRows

            lift_limits()
            self._reused = ReusedRows.open(*job.reused_store)

    def expect(self, task: Task) -> None:
        """Request the objects of a block at a URL."""
        if self._fetcher is not None:
            numbered = enumerate(task.paths, start=task.start)
            self._fetcher.expect((number, name) for number, name in numbered if number not in task.refused)

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in the row and the other facts about an input; raises DecodeError."""
        path = task.paths[index - task.start]
        mask = self._job.mask_source(task.masks[index - task.start]) if task.masks else None
        if self._fetcher is not None:
            source: Readable = self._fetcher.source(index, path)
        else:
            source = self._job.source(path, task.members[index - task.start] if task.members else None)
        self._in_flight.mark(index, is_reading=True)
        # known even if reading fails
        attempt.source = source.state()
        attempt.mask_source = attempt.mask_source if mask is None else mask.state()
        data, attempt.source = source.read()
        self._in_flight.mark(index)
        attempt.source_bytes = len(data)
        sha256 = hashlib.sha256(data).hexdigest()
        row, target = None, task.targets[index - task.start]
        cells = task.cells[index - task.start] if task.cells else ""
        if self._reused is not None and index in task.reused:
            row = self._reused.reused(*task.reused[index], sha256)
            attempt.is_reused = row is not None
        if row is None:
            row = self._decoder.row(data, attempt.memory)
        if task.masks:
            attempt.mask, attempt.mask_values = self._mask(index, task.masks[index - task.start], row, attempt)
        # NaN and infinities are no JSON: null
        columns = json.loads(cells, parse_constant=lambda name: None) if cells else None
        attempt.line = Sample(path, target, len(data), sha256, row.width, row.height, row.done, columns).encode()
        attempt.row = row

    def _mask(self, index: int, path: str, row: Row, attempt: Attempt) -> MaskRow:
        """Return the row of an input's mask; an error in the mask rejects the input."""
        from packer.pixels.mask import mask_row
        from packer.pixels.opening import lift_limits

        lift_limits()
        job = self._job
        try:
            self._in_flight.mark(index, is_reading=True)
            data, attempt.mask_source = job.mask_source(path).read()
            self._in_flight.mark(index)
            return mask_row(data, row, job.geometry, classes=job.mask_classes)
        except DecodeError as e:
            raise DecodeError(f"its mask {path}: {e}") from e
