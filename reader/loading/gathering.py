"""Gathers the batches of a pass in the feeder's thread, from a file, its mapping or memory read ahead, and sends them on.

Batches are in leased buffers, pinned if they are copied to a CUDA device. A generator that waits at a yield keeps its locals
alive: if one held a batch, an extra buffer would be in use.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator

import numpy as np
import torch

from reader import compiled, system
from reader.buffers import BufferPool
from reader.dataset.dataset import MemmapDataset
from reader.device.resident import Resident
from reader.device.transfer import CudaCopier
from reader.loading.batch_transform import BatchTransform, PendingBatch
from reader.loading.iteration import Group
from reader.memory.places import Place
from reader.memory.read_ahead import AHEAD_SHARE, ReadAhead
from reader.memory.row_table import parted
from reader.memory.threads import Copies
from reader.planning.plan import EpochPlan
from reader.planning.ranks import ranks_here
from reader.rows import Rows, Steps
from reader.store import Batch

# Bytes per read ahead from a disk in shuffle="block", twice in memory: a whole window; less if memory is short.
WINDOW_AHEAD_BYTES = 256 << 20
# In other orders three batches of 256 rows of 224 x 224 keep the disk busy; one does not. More costs time: the first read
# into memory has page faults.
STREAM_AHEAD_BYTES = 128 << 20
# Smaller stores are warm after a few page faults.
SMALL_STORE_BYTES = 32 << 20

RESIDENCIES = ("auto", "cache", "disk", "gpu")

# The share of free memory for a store in the page cache: the rest is for the training program.
_CACHE_SHARE = 0.8
# A store with a smaller share of pages in the cache is cold.
_WARM = 0.95
# Kinds of devices whose memory may hold rows.
ROW_DEVICES = ("cuda",)


class Gathering:
    """Gathers batches of a dataset's store, and sends them to a device.

    residency: the name of the rows' place.

    Args:
        device: the device of batches.
        asked: the requested residency; "auto" depends on free memory.
        prefetch: batches to gather ahead.

    Raises:
        ValueError: there is no such residency, or the device cannot hold rows.
        StoreError: the store is damaged, or was replaced.
    """

    def __init__(self, dataset: MemmapDataset, device: torch.device, asked: str, *, prefetch: int) -> None:
        if asked not in RESIDENCIES:
            raise ValueError(f"residency is {asked!r}, expected one of {', '.join(map(repr, RESIDENCIES))}.")
        if asked == "gpu" and device.type not in ROW_DEVICES:
            raise ValueError("residency 'gpu' needs device='cuda'.")
        if asked == "auto":
            size_bytes = len(dataset) * dataset.manifest.row_bytes
            asked = "cache" if size_bytes <= system.available_bytes() * _CACHE_SHARE else "disk"
        self.residency, self._resident = asked, Resident(dataset, device) if asked == "gpu" else None
        self._dataset, self._device, self._prefetch = dataset, device, prefetch
        self.pool = BufferPool(keep=prefetch + 2, pinned=device if device.type == "cuda" else None)
        # memory for reads from a disk, kept from epoch to epoch
        self._ahead_pool: BufferPool | None = None

    def _place(self, plan: EpochPlan) -> Place:
        """Return the place of an epoch's rows."""
        if self._resident is not None:
            return self._resident.place
        store, manifest = self._dataset._opened, self._dataset.manifest
        if store.remote is not None:
            return store.remote.place(plan)
        past_cache = self.residency == "disk"
        is_small = store.file_bytes <= SMALL_STORE_BYTES
        if not past_cache and (is_small or system.cached_share(store.pixel_path()) >= _WARM):
            return store.in_memory()
        order = plan.order()
        # all ranks of this host share free memory
        room = system.available_bytes() // ranks_here()
        most = WINDOW_AHEAD_BYTES if order.is_in_blocks else STREAM_AHEAD_BYTES
        chunk_bytes = int(min(most, room * AHEAD_SHARE))
        if self._ahead_pool is None:
            # idle buffers have room for two chunks and for the waiting batches
            keep_bytes = 2 * min(chunk_bytes, len(self._dataset) * manifest.row_bytes)
            self._ahead_pool = BufferPool(keep=self._prefetch + 2, keep_bytes=keep_bytes)
        return ReadAhead(
            store.pixel_path(),
            store.spans,
            chunk_bytes=chunk_bytes,
            window_end=order.window_end,
            past_cache=past_cache,
            lease=self._ahead_pool.lease,
            # batches for a device are copied to pinned memory
            is_batch=self._device.type == "cpu",
        )

    def groups(
        self, plan: EpochPlan, steps: Iterator[Steps], transform: BatchTransform
    ) -> Generator[Group, None, None]:
        """Yield the batches of a pass, in groups; a PendingBatch is left for the caller's thread to finish."""
        # slots in total: depth + 1 for copies in progress, one for the next batch to send, and one for the batch after it
        depth = max(0, self._prefetch - 1)
        copier = CudaCopier(self._device, depth=depth) if self._device.type == "cuda" else None
        place = self._place(plan)
        try:
            further = place.ahead(steps)
            current = self._begin_next(further, place, transform, copier)
            while current is not None:
                groups, is_complete = current
                # the next group is copied while this one is waited for
                following = None if is_complete else self._begin_next(further, place, transform, copier)
                yield from groups
                current = self._begin_next(further, place, transform, copier) if is_complete else following
        finally:
            place.close()
            if copier is not None:
                copier.drain()

    def _begin_next(
        self, further: Iterator[Steps], place: Place, transform: BatchTransform, copier: CudaCopier | None
    ) -> tuple[Iterator[Group], bool] | None:
        """Begin to read the batches of the next steps; returns them, and whether they are complete; None at the end.

        An error is raised when they are taken: after the batches before them.
        """
        try:
            steps = next(further, None)
            if steps is None:
                return None
            with contextlib.nullcontext() if copier is None else copier.on_side_stream():
                batches, copies = self.begin(steps.batches, place)
        except Exception as e:
            return _failed(e), False
        return _finished(batches, copies, steps, transform, copier), copies is None

    def begin(self, groups: list[Rows], place: Place) -> tuple[deque[Batch], Copies | None]:
        """Begin to read a group of batches from a place into one leased buffer, and cut it; None: they are complete."""
        store = self._dataset._opened
        rows = groups[0] if len(groups) == 1 else np.concatenate(groups)
        table = None if self._resident is None else self._resident.table
        batch, copies = store.begin(rows, place, self.pool.lease, table)
        return deque(parted(batch, [len(g) for g in groups])), copies

    def clear(self) -> None:
        """Free unused buffers, including those of crops and floats."""
        self.pool.clear()
        self._ahead_pool = None
        compiled.release()


def _failed(error: Exception) -> Iterator[Group]:
    yield from ()
    raise error


def _finished(
    batches: deque[Batch], copies: Copies | None, steps: Steps, transform: BatchTransform, copier: CudaCopier | None
) -> Iterator[Group]:
    """Wait for the pixels of a group and yield it, ready for the caller or under way to the device."""
    items: list[object] = []
    if copies is not None:
        copies.wait()
    try:
        for start in steps.starts:
            batch = batches.popleft()
            item = transform.in_feeder(batch, start)
            item = PendingBatch(item if copier is None else copier.send(item), start, batch.rows)
            items.append(item if transform.is_left else transform.in_caller(item))
    except Exception:
        # yield earlier batches before the error of a transform
        if items:
            yield _emptied(items, steps.positions)
        raise
    # a generator that waits at a yield must hold no batch
    del batch, item
    yield _emptied(items, steps.positions)


def _emptied(items: list[object], positions: list[int]) -> Group:
    pairs = list(zip(items, positions, strict=False))
    items.clear()
    return pairs
