"""Batches in host memory: gathered from the mapped file or a copy of it, or taken from what is read ahead from the disk.

Knows no order but the rows it is given. Batches lie in leased buffers, pinned where they go on to a CUDA device.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reader import residency as residencies
from reader.ahead import ReadAhead
from reader.buffers import BufferPool, PinnedMemoryError
from reader.copying import Copies, Gatherer, is_run
from reader.dataset import MemmapDataset
from reader.files import size_text
from reader.manifest import PAGE_BYTES
from reader.order import Rows, Steps
from reader.ragged import extents, gathered, pages_of, parted
from reader.rawfile import read_all
from reader.schedule import BLOCK_BYTES, WINDOW_BLOCKS
from reader.stages import stage
from reader.store import ImageBatch, RaggedBatch, batch_of
from reader.transfer import pin

_log = logging.getLogger("reader")

# Read ahead from a disk at a time, twice in memory: a whole window of shuffle="block"; less where memory is short.
_AHEAD_BYTES = WINDOW_BLOCKS * BLOCK_BYTES
_AHEAD_SHARE = 1 / 16


class HostBatches:
    """Batches whose pixels may still be copied: iterating waits for them, and lets go of each batch as it is given."""

    def __init__(self, batches: list[Any], copies: Copies | None = None) -> None:
        self._batches, self._copies = deque(batches), copies

    @property
    def is_complete(self) -> bool:
        """Say whether there is nothing to wait for."""
        return self._copies is None

    def __iter__(self) -> Iterator[Any]:
        if self._copies is not None:
            with stage("gather"):
                self._copies.wait()
        while self._batches:
            yield self._batches.popleft()


class Gathering:
    """Gathers batches of a dataset's store.

    Args:
        device: where batches go next.
        chosen: "ram" copies the store now; "cache" and "disk" as of a loader's residency.
        keep: idle buffers that are kept.
        must_pin: a copy that cannot be pinned is an error; otherwise batches are then gathered into pinned buffers.

    Raises:
        PinnedMemoryError: as must_pin says.
    """

    def __init__(
        self, dataset: MemmapDataset, device: torch.device, chosen: residencies.Residency, *, keep: int, must_pin: bool
    ) -> None:
        self._dataset, self._device, self._keep = dataset, device, keep
        # where False, no epoch does, whatever is cached
        self.reads_ahead = chosen.host != "ram"
        self._past_cache = chosen.host == "disk"
        self._store = _copied(dataset) if chosen.name == "ram" else dataset.store
        self._row_shape = self._store.pixels.shape[1:]
        self._gatherer = Gatherer(self._store.pixels)
        can_pin = chosen.name == "ram" and device.type == "cuda"
        # flat pixels are gathered into pinned buffers
        self.is_pinned = can_pin and not dataset.manifest.has_own_sizes and self._pin(must_pin=must_pin)
        self._pool: BufferPool | None = None

    def read_ahead(self, epoch: int, steps: Iterator[Steps], window_end: Callable[[int], int]) -> ReadAhead | None:
        """Read the steps' rows ahead from the disk, or return None: they are gathered from memory.

        window_end: of a position, where reading ahead should pause; see `ReadAhead`.
        """
        if not self.reads_ahead:
            return None
        path, pixels = self._dataset.opened("pixels"), self._dataset.store.pixels
        if not self._past_cache and not residencies.is_cold(path, pixels.nbytes):
            return None
        manifest, store = self._dataset.manifest, self._dataset.store
        room, row_bytes = residencies.available_bytes(), PAGE_BYTES if manifest.has_own_sizes else manifest.row_bytes
        _log.info("%s: epoch %d reads ahead from the disk", self._dataset.path, epoch)
        return ReadAhead(
            path,
            row_bytes,
            steps,
            chunk_rows=int(min(_AHEAD_BYTES, room * _AHEAD_SHARE)) // row_bytes,
            window_end=window_end,
            past_cache=self._past_cache,
            units=(lambda rows: pages_of(*extents(store, rows))[0]) if manifest.has_own_sizes else lambda rows: rows,
        )

    def begin(self, groups: list[Rows], ahead: ReadAhead | None) -> HostBatches:
        """Begin to gather a group of batches into one leased buffer, and cut it."""
        rows = groups[0] if len(groups) == 1 else np.concatenate(groups)
        if self._dataset.manifest.has_own_sizes:
            ragged = self._ragged_batch(rows, ahead)
            return HostBatches([ragged] if len(groups) == 1 else parted(ragged, [len(g) for g in groups]))
        with stage("gather"):
            # the pixels may come from elsewhere, targets and the like are mapped in any case
            self._dataset.check_files()
            pixels, copies = self._begin_pixels(rows, ahead)
            batch = batch_of(self._store, rows, pixels)
        return HostBatches([batch] if len(groups) == 1 else list(batch.split([len(g) for g in groups])), copies)

    def buffers(self, need: int, room: int = 0) -> BufferPool:
        """Return the pool of buffers of so many bytes; one that must be made anew has room for more."""
        pool, pinned = self._pool, self._device if self._device.type == "cuda" else None
        if pool is None or pool.size_bytes < need:
            pool = self._pool = BufferPool(need + room, keep=self._keep, pinned=pinned)
        return pool

    def let_go(self) -> None:
        """Free the buffers that no batch is in."""
        self._pool = None

    def _ragged_batch(self, rows: Rows, ahead: ReadAhead | None) -> RaggedBatch:
        with stage("gather"):
            self._dataset.check_files()
            # a little room spares most of the batches that follow a fresh buffer
            return gathered(
                self._store,
                rows,
                lambda need: self.buffers(need, room=need // 4).lease()[:need],
                None if ahead is None else lambda _, pages: ahead.take(pages),
            )

    def _begin_pixels(self, rows: Rows, ahead: ReadAhead | None) -> tuple[torch.Tensor, Copies | None]:
        if self.is_pinned and is_run(rows) and len(rows):
            return self._store.pixels[int(rows[0]) : int(rows[-1]) + 1], None
        need = len(rows) * self._row_shape.numel()
        pixels = self.buffers(need).lease(need).view(len(rows), *self._row_shape)
        if ahead is not None:
            ahead.take(pixels)
            return pixels, None
        return pixels, self._gatherer.begin(rows, pixels)

    def _pin(self, *, must_pin: bool) -> bool:
        """Pin the copy in memory, for as long as this lives; what need not be may be refused."""
        try:
            unpin = pin(self._store.pixels, self._device)
        except PinnedMemoryError as e:
            if must_pin:
                raise
            _log.warning("%s: %s Batches are copied into pinned memory first.", self._dataset.path, e)
            return False
        weakref.finalize(self, unpin).atexit = False
        return True


def _copied(dataset: MemmapDataset) -> Any:
    """Copy the store's pixels into memory that may use huge pages; the rest stays mapped."""
    store = dataset.store
    row_bytes = PAGE_BYTES if dataset.manifest.has_own_sizes else dataset.manifest.row_bytes
    if not residencies.can_read_ahead():
        pixels = store.pixels.clone()
    else:
        path = dataset.opened("pixels")
        past_cache = residencies.is_cold(path, store.pixels.nbytes)
        count = store.pixels.nbytes // row_bytes
        pixels = read_all(path, row_bytes, count, past_cache=past_cache).view(store.pixels.shape)
    huge = residencies.huge_page_bytes(pixels.data_ptr(), pixels.nbytes)
    got = "the system does not tell in which pages" if huge is None else f"{size_text(huge)} of it in huge pages"
    _log.info("%s: %s copied into memory, %s", dataset.path, size_text(pixels.nbytes), got)
    if dataset.manifest.has_own_sizes:
        rest = {name: getattr(store, name) for name in ("targets", "offsets", "shapes", "mask_offsets", "extras")}
        return RaggedBatch(pixels=pixels, **rest, batch_size=[])
    return ImageBatch(pixels, store.targets, store.content, store.extras, batch_size=store.batch_size)
