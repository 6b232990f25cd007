"""Batches in host memory: gathered from the mapped file or a copy, or taken from rows that were read ahead from the disk.

Knows no order but the rows it is given. Batches are in leased buffers, pinned where they are copied to a CUDA device.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from reader import compiled, system
from reader.buffers import BufferPool, FittingPool
from reader.dataset.dataset import MemmapDataset
from reader.format.errors import PinnedMemoryError
from reader.format.manifest import PAGE_BYTES
from reader.loading.remote_ahead import PlanIndex, RemoteAhead
from reader.loading.shared_residency import host_copy, reads_of
from reader.memory import residency as residencies
from reader.memory.frame_file import FrameSource, HeldFrames, ReadBytes
from reader.memory.gather import Copies, Gatherer, is_run
from reader.memory.pages import PagedRows, gathered, paged, pages_of, parted
from reader.memory.read_ahead import ReadAhead
from reader.profiling import stage
from reader.rows import Rows, Steps
from reader.store import Batch, RaggedBatch, batch_of
from reader.tuning import tuning

_log = logging.getLogger("reader")

# Of free memory, what is read ahead from a disk at a time, which is twice in memory.
AHEAD_SHARE = 1 / 16

# Gives steps, and their rows by `take`.
Ahead = ReadAhead | RemoteAhead


class HostBatches:
    """Batches whose pixels may still be being copied: iterating waits for each, and drops it once it is yielded."""

    def __init__(self, batches: Sequence[Batch], copies: Copies | None = None) -> None:
        self._batches, self._copies = deque(batches), copies

    @property
    def is_complete(self) -> bool:
        """Say whether there is nothing to wait for."""
        return self._copies is None

    def __iter__(self) -> Iterator[Batch]:
        if self._copies is not None:
            with stage("gather"):
                self._copies.wait()
        while self._batches:
            yield self._batches.popleft()


def without_pixels(dataset: MemmapDataset, rows: Rows) -> Batch:
    """Make a batch of rows of a dataset's store whose pixels have their shape, are zeros and take no memory."""
    nothing, store = torch.zeros(1, dtype=torch.uint8), dataset.mapped
    if isinstance(store, RaggedBatch):
        batch: Batch = store.chosen(rows, nothing, torch.zeros(len(rows), dtype=torch.int64))
    else:
        batch = batch_of(store, rows, nothing.expand(len(rows), *store.pixels.shape[1:]))
    dataset.check_rows(rows, batch)
    return batch


class Gathering:
    """Gathers batches of a dataset's store.

    Args:
        device: where batches go next.
        chosen: "ram" copies what is read now; "cache" and "disk" as of a loader's residency.
        keep: idle buffers that are kept.
        must_pin: a copy that cannot be pinned is an error; otherwise batches are then gathered into pinned buffers.
        processes: how many of this host read so.
        has_pixels: False: batches have pixels of their shape that are zeros and take no memory.

    Raises:
        PinnedMemoryError: as must_pin says.
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        device: torch.device,
        chosen: residencies.Residency,
        *,
        keep: int,
        must_pin: bool,
        processes: int = 1,
        has_pixels: bool = True,
    ) -> None:
        # False: what makes something of a batch reads its pixels itself
        self._has_pixels = has_pixels
        self._dataset, self._device, self._keep, self._processes = dataset, device, keep, processes
        self._is_warm = chosen.is_warm
        self._past_cache = chosen.host == "disk"
        self._store, kind = dataset.mapped, dataset.manifest.kind
        # batches differ in size: some spare room lets later ones reuse a buffer
        self._has_room = kind.has_own_sizes
        # other loaders of the store share it; the last one frees it
        self.copy = host_copy(dataset) if chosen.name == "ram" else None
        self._row_shape = self._store.pixels.shape[1:]
        self._unit_bytes = kind.unit_bytes(dataset.manifest.row_bytes)
        self._is_packed = dataset.manifest.compression is not None
        if not self._is_packed:
            units = self._store.pixels.view(-1, self._unit_bytes)
            # a copy may have some rows; of the mapped file, a row's position is its number
            self._gatherer = Gatherer(units if self.copy is None else self.copy.units, is_streamed=True)
        can_pin = chosen.name == "ram" and device.type == "cuda" and has_pixels
        # flat pixels are gathered into pinned buffers
        self.is_pinned = can_pin and not dataset.manifest.is_flat and self._pin(must_pin=must_pin)
        self._pool: BufferPool | None = None
        # of compressed rows, in an epoch: the file, where it is in memory
        self._frame_bytes: npt.NDArray[np.uint8] | None = None
        # of frames that are read ahead
        self._frame_pool: FittingPool | None = None
        # of what is read ahead straight into batches, from one epoch to the next
        self._ahead_pool: BufferPool | None = None

    def read_ahead(
        self,
        epoch: int,
        steps: Iterator[Steps],
        window_end: Callable[[int], int],
        plan_index: PlanIndex = lambda position: 0,
        windows: int = 1,
        *,
        in_blocks: bool = False,
    ) -> Ahead | None:
        """Read the steps' rows ahead from the disk or a network, or return None: they are gathered from memory.

        plan_index: see `plan_blocks`.
        windows: see `RemoteAhead`.
        window_end: of a position, where reading ahead should pause; see `ReadAhead`.
        in_blocks: a window of blocks is read together.
        """
        if not self._has_pixels:
            return None
        store, remote = self._store, self._dataset.remote
        if remote is not None and not remote.is_complete and self.copy is None:
            return RemoteAhead(self._dataset, remote, steps, plan_index=plan_index, windows=windows)
        units: Callable[[Rows], Rows] = (
            (lambda rows: paged(store, rows).pages) if isinstance(store, RaggedBatch) else lambda rows: rows
        )
        if self._is_packed:
            self._frame_bytes = self._bytes_in_memory()
            units = self._frame_pages
        if self._is_warm or (self._is_packed and self.copy is not None):
            return None
        source = self._dataset.opened_store.opened("pixels")
        if not self._past_cache and not reads_of(self._dataset, self._processes).are_cold(source):
            return None
        # free memory is shared by all ranks of this host
        room = system.available_bytes() // self._processes
        chunk_bytes = int(
            min(tuning().window_ahead_bytes if in_blocks else tuning().stream_ahead_bytes, room * AHEAD_SHARE)
        )
        can_lease = self._device.type == "cpu" and not isinstance(store, RaggedBatch) and not self._is_packed
        unit_bytes = PAGE_BYTES if self._is_packed else self._unit_bytes
        _log.info("%s: epoch %d reads ahead from the disk", self._dataset.path, epoch)
        return ReadAhead(
            source,
            unit_bytes,
            steps,
            chunk_rows=chunk_bytes // unit_bytes,
            window_end=window_end,
            past_cache=self._past_cache,
            units=units,
            lease=functools.partial(self._lease_ahead, chunk_bytes) if can_lease else None,
        )

    def begin(self, groups: list[Rows], ahead: Ahead | None) -> HostBatches:
        """Begin to gather a group of batches into one leased buffer, and cut it."""
        if not self._has_pixels:
            self._dataset.check_files()
            return HostBatches([without_pixels(self._dataset, rows) for rows in groups])
        rows = groups[0] if len(groups) == 1 else np.concatenate(groups)
        if self._is_packed:
            return self._unpacking(rows, [len(g) for g in groups], ahead)
        if isinstance(self._store, RaggedBatch):
            ragged = self._ragged_batch(self._store, rows, ahead)
            return HostBatches([ragged] if len(groups) == 1 else parted(ragged, [len(g) for g in groups]))
        with stage("gather"):
            # the pixels may come from elsewhere, targets and the like are mapped in any case
            self._dataset.check_files()
            pixels, copies = self._begin_pixels(rows, ahead)
            batch = batch_of(self._store, rows, pixels)
            self._dataset.check_rows(rows, batch)
        return HostBatches([batch] if len(groups) == 1 else list(batch.split([len(g) for g in groups])), copies)

    def buffers(self, need: int) -> BufferPool:
        """Return the pool of buffers of this size, with spare room if batches differ in size."""
        pool, pinned = self._pool, self._device if self._device.type == "cuda" else None
        if pool is None or pool.size_bytes < need:
            room = need // 4 if self._has_room else 0
            pool = self._pool = BufferPool(need + room, keep=self._keep, pinned=pinned)
        return pool

    def let_go(self) -> None:
        """Free the buffers that no batch is in, those of crops and floats too."""
        self._pool = self._ahead_pool = self._frame_pool = None
        compiled.let_go()

    def _lease_ahead(self, chunk_bytes: int, size_bytes: int) -> torch.Tensor:
        """Lease memory that is read into, uint8[size_bytes]; what two chunks and waiting batches take is kept."""
        pool = self._ahead_pool
        if pool is None or pool.size_bytes < size_bytes:
            chunk_bytes = min(chunk_bytes, len(self._dataset) * self._unit_bytes)
            pool = self._ahead_pool = BufferPool(size_bytes, keep=2 * chunk_bytes // max(1, size_bytes) + self._keep)
        return pool.lease(size_bytes)

    def _unpacking(self, rows: Rows, counts: list[int], ahead: Ahead | None) -> HostBatches:
        """Begin to unpack a group of batches of compressed rows, and cut it."""

        def memory(need: int) -> torch.Tensor:
            return self.buffers(need).lease(need)

        source: FrameSource | None = self._read_copy if self._frame_bytes is None else self._frame_bytes
        with stage("gather"):
            if isinstance(ahead, ReadAhead):
                source = self._taken_frames(rows, ahead)
            batch, copies = self._dataset.opened_store.begin_unpacking(rows, memory, source)
        if len(counts) == 1:
            return HostBatches([batch], copies)
        return HostBatches(
            parted(batch, counts) if isinstance(batch, RaggedBatch) else list(batch.split(counts)), copies
        )

    def _frame_pages(self, rows: Rows) -> Rows:
        """Return the pages of the file that hold the frames of rows, row after row."""
        return pages_of(*self._dataset.opened_store.file_extents(rows))[0]

    def _taken_frames(self, rows: Rows, ahead: ReadAhead) -> HeldFrames:
        """Take the frames of a step's rows from what was read."""
        pages, begins = pages_of(*self._dataset.opened_store.file_extents(rows))
        self._frame_pool = self._frame_pool or FittingPool(keep=self._keep, has_room=True)
        memory = self._frame_pool.lease(len(pages) * PAGE_BYTES)
        ahead.take(memory.view(len(pages), PAGE_BYTES))
        return HeldFrames(memory.numpy(), begins)

    def _bytes_in_memory(self) -> npt.NDArray[np.uint8] | None:
        """Return the file of compressed rows where all of it is in a copy or, by a sample, in the page cache."""
        if self.copy is not None:
            return self.copy.file_bytes
        store = self._dataset.opened_store
        if self._past_cache:
            return None
        is_there = self._is_warm or not reads_of(self._dataset, self._processes).are_cold(store.opened("pixels"))
        return store.frame_bytes if is_there else None

    @property
    def _read_copy(self) -> ReadBytes | None:
        """What reads bytes of frames from the copy in memory; None: they are read from the file."""
        return None if self.copy is None else self.copy.read_bytes

    def _ragged_batch(self, store: RaggedBatch, rows: Rows, ahead: Ahead | None) -> RaggedBatch:
        def fill(wanted: PagedRows, into: torch.Tensor) -> None:
            if ahead is not None:
                ahead.take(into)
            elif (copies := self._gatherer.begin(self._positions(wanted.pages), into)) is not None:
                copies.wait()

        with stage("gather"):
            self._dataset.check_files()
            made = gathered(store, rows, lambda need: self.buffers(need).lease(need), fill)
            self._dataset.check_rows(rows, made)
            return made

    def _begin_pixels(self, rows: Rows, ahead: Ahead | None) -> tuple[torch.Tensor, Copies | None]:
        positions = self._positions(rows)
        if self.is_pinned and is_run(positions) and len(positions):
            assert self.copy is not None
            run = self.copy.units[int(positions[0]) : int(positions[-1]) + 1]
            return run.view(len(rows), *self._row_shape), None
        if isinstance(ahead, ReadAhead) and (read := ahead.next_rows()) is not None:
            return read.view(len(rows), *self._row_shape), None
        need = len(rows) * self._row_shape.numel()
        pixels = self.buffers(need).lease(need).view(len(rows), *self._row_shape)
        if ahead is not None:
            ahead.take(pixels)
            return pixels, None
        return pixels, self._gatherer.begin(positions, pixels.view(len(rows), self._unit_bytes))

    def _positions(self, units: Rows) -> Rows:
        """Return the positions of rows, or pages, in the array that is gathered from."""
        return units if self.copy is None else self.copy.positions.of(units)

    def _pin(self, *, must_pin: bool) -> bool:
        """Pin the copy in memory, for as long as it lives; what need not be may be refused."""
        assert self.copy is not None
        try:
            self.copy.pin(self._device)
        except PinnedMemoryError as e:
            if must_pin:
                raise
            _log.warning("%s: %s Batches are copied into pinned memory first.", self._dataset.path, e)
            return False
        return True
