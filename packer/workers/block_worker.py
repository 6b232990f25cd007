"""What runs inside a worker: decode a block of samples into memory, and write it when its turn comes.

No pixel leaves a worker but into the store's file. Knows neither the journal nor how workers are started.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from packer.errors import DecodeError, EngineError, SourceError
from packer.options import RowOptions
from packer.pixels.decode import serves
from packer.pixels.geometry import Geometry
from packer.pixels.layout import RowLayout
from packer.pixels.requantize import row_decoder
from packer.pixels.row import Row
from packer.sources.base import NO_STATE, Readable, State
from packer.sources.local import LocalSource
from packer.sources.locate import locate
from packer.sources.members import Archive
from packer.sources.roots import NOWHERE, Roots
from packer.store.blocks import RejectedInput, Result, Task
from packer.store.files import write_at
from packer.store.lock import check_same_lock
from packer.system import BINARY, NO_DESCRIPTOR
from packer.workers.processes import InFlight, Marks
from packer.workers.row_buffers import DecodedRows, RowBuffer, row_buffer
from reader.format.filesystem import error_path
from reader.format.samples import Sample, line_start
from reader.format.urls import is_url
from reader.tuning import tuning

if TYPE_CHECKING:
    from packer.pixels.mask import MaskRow
    from packer.sources.remote import ObjectPrefetch
    from packer.store.sealed.reuse import ReusedRows


@dataclass(frozen=True)
class PackJob:
    """What every block of a pack has in common; small, so that it travels to any worker."""

    root: str
    pixels_path: str
    geometry: Geometry
    rows: RowOptions
    archives: tuple[Archive, ...] = ()
    # whether there are masks; where they are, or that they are drawn of what a task says; and the file of their rows, if any
    has_masks: bool = False
    masks_root: str = ""
    masks_path: str = ""
    mask_classes: tuple[int, ...] = ()
    # the store that an update replaces, and its manifest's digest
    reused_store: tuple[str, str] = ("", "")
    # what the inputs and masks are on; seconds between tries where that cannot be read
    roots: Roots = NOWHERE
    # on a cluster: a file that each of its nodes must see
    pauses: tuple[float, ...] = field(default_factory=lambda: tuning().source_pause_seconds)
    # of the folder that rows are written to: its file, and what that must say; "": nothing holds it
    lock: tuple[str, bytes] = ("", b"")

    def worker(self, in_flight: Marks | None) -> BlockWorker:
        """Make what does this job in a process of its own."""
        return BlockWorker(self, in_flight)

    def row_maker(self, in_flight: InFlight) -> RowMaker:
        """Make what makes the rows, in the process of a worker."""
        return ImageRows(self, in_flight)

    def import_ahead(self, paths: Sequence[str]) -> None:
        """Import what decoding these inputs needs in a process that forks workers, which then need not, each by itself."""
        is_plain = self.rows.channels == "rgb" and self.rows.requantize is None
        # a plain JPEG of one size without masks needs no Pillow
        if self.has_masks or self.geometry.has_own_sizes or not is_plain or not serves(paths):
            import packer.pixels.pictures  # noqa: F401

    def mask_source(self, path: str) -> LocalSource:
        """Locate a mask."""
        return LocalSource(os.path.join(self.masks_root, path), roots=self.roots)

    def source(self, path: str, member: list[int] | None) -> Readable:
        """Locate an input: a file below root, or by the numbers of its `Member` of an archive."""
        return locate(self.root, path, self.archives, member, self.roots)

    @property
    def layout(self) -> RowLayout:
        """How the rows are in the store's files."""
        return RowLayout.of(self.geometry, self.rows.channels, has_masks=self.has_masks, form=self.rows.form)


@dataclass
class Attempt:
    """What became of one input: a row and its line, or a reason."""

    source: State = NO_STATE
    mask_source: State = NO_STATE
    mask: bytes = b""
    mask_values: list[int] = field(default_factory=list)
    source_bytes: int = 0
    row: Row | None = None
    is_reused: bool = False
    line: str = ""
    reason: str = ""


class RowMaker(Protocol):
    """Makes the rows of inputs, one after the other."""

    def expect(self, task: Task) -> None:
        """Ask for the sources of a task that will be decoded, where they are far away; called by another thread."""

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in the row and all else that is known of an input; raises DecodeError."""


class BlockWorker:
    """Decodes blocks and holds their rows until their offset is known."""

    def __init__(self, job: PackJob, in_flight: Marks | None = None) -> None:
        self._job = job
        self._in_flight = InFlight(in_flight, job.pauses)
        self._maker = job.row_maker(self._in_flight)
        self.expect = self._maker.expect
        self._rows = _row_buffer(job.layout)
        self._held: dict[int, DecodedRows] = {}
        self._files: dict[str, int] = {}

    def decode(self, task: Task) -> Result:
        """Decode a block; its rows stay here until `write`."""
        result = Result(task.block, 0)
        self._rows.begin(len(task.paths))
        for index in range(task.start, task.stop):
            self._make(task, index, result)
        self._in_flight.mark(-1)
        self._held[task.block] = self._rows.finish(result)
        return result

    def write(self, block: int, offset: int) -> None:
        """Write a decoded block's rows at a byte of the file of rows, and their masks where they belong; others sync both."""
        rows, end = self._held.pop(block), offset
        for chunk in rows.chunks:
            self._write(self._job.pixels_path, chunk, end)
            end += len(chunk)
        if rows.masks:
            self._write(self._job.masks_path, memoryview(rows.masks), self._job.layout.mask_bytes(offset))
        self._rows.reuse(rows)

    def _write(self, path: str, data: memoryview, offset: int) -> None:
        if path not in self._files:
            self._files[path] = os.open(path, os.O_WRONLY | BINARY)
            if self._job.lock[0]:  # behind the opening: a rename between the two is noticed
                check_same_lock(*self._job.lock)
        with error_path(path):
            write_at(self._files[path], data, offset)

    def _make(self, task: Task, index: int, result: Result) -> None:
        """Make a row or a reject of one input."""
        attempt = self._attempt(task, index)
        result.inputs += 1
        result.sources.append(attempt.source)
        result.source_bytes += attempt.source_bytes
        if task.masks:
            result.mask_sources.append(attempt.mask_source)
        if attempt.row is None:
            path = task.paths[index - task.start]
            result.rejects.append(RejectedInput(index, path, attempt.reason))
        else:
            self._add(result, attempt.row, attempt)

    def _attempt(self, task: Task, index: int) -> Attempt:
        """Read and decode one input; whatever is wrong with it, it costs no other."""
        attempt = Attempt()
        try:
            if index in task.refused:
                raise DecodeError(task.refused[index])
            self._maker.make(task, index, attempt)
        except DecodeError as e:
            attempt.reason = str(e)
        except (MemoryError, SourceError):
            raise  # this process's trouble, or the disk's, not the image's
        except Exception as e:
            if isinstance(e, OSError) and e.errno in NO_DESCRIPTOR:
                raise
            # Pillow raises OSError for damaged images too, which then has no number
            if isinstance(e, ImportError) or (isinstance(e, OSError) and e.errno is not None):
                raise EngineError(
                    f"{task.paths[index - task.start]} could not be decoded, by an error of this machine"
                    f" ({type(e).__name__}: {e}). `pack doctor` shows what is missing."
                ) from e
            # the reason names the kind for a report
            attempt.reason = f"it made the decoder fail ({type(e).__name__}: {e})"
        return attempt

    def _add(self, result: Result, row: Row, attempt: Attempt) -> None:
        """Append one row; nothing here can fail: an input is a row or a reject, never both."""
        self._rows.add(result, row, attempt.mask)
        result.mask_values = sorted({*result.mask_values, *attempt.mask_values})
        result.rows += 1
        result.kept += attempt.is_reused
        result.samples.append(attempt.line)
        if self._job.geometry.has_content:
            result.content.append(row.content)
        y0, x0, y1, x1 = row.content
        result.pixel_count += (y1 - y0) * (x1 - x0)


def _row_buffer(layout: RowLayout) -> RowBuffer:
    """Return what takes rows of this layout."""
    if not layout.is_compressed:
        return row_buffer(layout)
    # numpy and zstd, which raw rows do without
    from packer.workers.frame_buffer import FrameBuffer

    return FrameBuffer(layout)


class ImageRows:
    """Reads images from their sources and decodes them, or reuses their rows."""

    def __init__(self, job: PackJob, in_flight: InFlight) -> None:
        self._job, self._in_flight = job, in_flight
        self._decoder = row_decoder(job.geometry, job.rows)
        self._fetcher = _fetcher(job.root)
        self._reused = _reused_rows(*job.reused_store)

    def expect(self, task: Task) -> None:
        """Ask for the sources of a task, where they are far away."""
        if self._fetcher is not None:
            numbered = enumerate(task.paths, start=task.start)
            self._fetcher.expect((index, path) for index, path in numbered if index not in task.refused)

    def make(self, task: Task, index: int, attempt: Attempt) -> None:
        """Fill in the row and all else that is known of an input; raises DecodeError."""
        path = task.paths[index - task.start]
        member = task.members[index - task.start] if task.members else None
        source = self._fetcher.source(index, path) if self._fetcher else self._job.source(path, member)
        mask = self._job.mask_source(task.masks[index - task.start]) if task.masks else None

        def read() -> tuple[bytes, State]:
            """Read it; the states stand also where that fails."""
            attempt.source = source.state()
            attempt.mask_source = attempt.mask_source if mask is None else mask.state()
            return source.read(max_pixels=self._job.rows.max_pixels)

        data, attempt.source = self._in_flight.patiently(index, read)
        attempt.source_bytes = len(data)
        sha256 = hashlib.sha256(data).hexdigest()
        row, target = None, task.targets[index - task.start]
        if self._reused is not None and index in task.reused:
            start = line_start(path, target, len(data), sha256)
            if (found := self._reused.row(*task.reused[index], start)) is not None:
                row, attempt.line = found
                attempt.is_reused = True
        if row is None:
            row = self._decoder.row(data)
        if task.masks:
            attempt.mask, attempt.mask_values = self._mask(index, task.masks[index - task.start], row, attempt)
        # a mask may have added to what was done
        if not attempt.line or task.masks:
            attempt.line = Sample(path, target, len(data), sha256, row.width, row.height, row.done).encode()
        attempt.row = row

    def _mask(self, index: int, path: str, row: Row, attempt: Attempt) -> MaskRow:
        """Return the row of an input's mask; what is wrong with it is wrong with the input."""
        from packer.pixels.formats.opening import lift_limits
        from packer.pixels.mask import mask_row

        lift_limits()
        job = self._job
        read = functools.partial(job.mask_source(path).read, max_pixels=job.rows.max_pixels)
        try:
            data, attempt.mask_source = self._in_flight.patiently(index, read)
            return mask_row(data, row, job.geometry, classes=job.mask_classes)
        except DecodeError as e:
            raise DecodeError(f"its mask {path}: {e}") from e


def _fetcher(root: str) -> ObjectPrefetch | None:
    """Make what fetches inputs ahead, where they are objects below a URL."""
    if not is_url(root):
        return None
    from packer.sources.remote import ObjectPrefetch

    return ObjectPrefetch(root)


def _reused_rows(out: str, digest: str) -> ReusedRows | None:
    """Open the store that an update replaces, if any."""
    if not out:
        return None
    from packer.pixels.formats.opening import lift_limits
    from packer.store.sealed.reuse import ReusedRows

    lift_limits()
    return ReusedRows.open(out, digest)
