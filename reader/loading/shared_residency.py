"""What all loaders of a process share: copies of rows in memory and on devices. Which there are, and what one more loader takes.

A copy holds the rows of a dataset, each of them once. Loaders of the same rows share it, and it goes with the last of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
import torch

from reader import system
from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore
from reader.device.resident import Resident, ResidentImages, bytes_there
from reader.format.filesystem import size_text
from reader.format.manifest import PIXELS
from reader.format.tensors import NEEDS_RAW
from reader.loading.residencies.host_copy import HostCopy
from reader.memory import residency as residencies
from reader.memory.spans import Spans
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch

_log = logging.getLogger("reader")

# Rows in memory, by path, digest and which rows, and on devices, each for as long as a loader reads it there.
_copies: weakref.WeakValueDictionary[tuple[str, ...], HostCopy] = weakref.WeakValueDictionary()
_residents: weakref.WeakValueDictionary[tuple[str, ...], Resident | ResidentImages] = weakref.WeakValueDictionary()
# Of one process: of two threads that make loaders of the same rows one makes the copy. To fill a device makes a loader too.
_making = threading.RLock()


def rows_read(dataset: MemmapDataset) -> Rows | None:
    """Return the rows of the store that a dataset has, sorted and each once; None: all."""
    if dataset.has_all_rows:
        return None
    is_read = np.zeros(dataset.mapped.targets.shape[0], dtype=bool)
    is_read[dataset.store_rows(np.arange(len(dataset)))] = True
    return None if is_read.all() else np.flatnonzero(is_read)


def reads_of(dataset: MemmapDataset, processes: int) -> residencies.Reads:
    """Return how much of a store's pixels a loader of this dataset reads, and how much of that is in memory already.

    processes: how many of this host read so.
    """
    rows = rows_read(dataset)
    missing = None if _copies.get(_key(dataset, rows)) is None else 0
    pieces = [_reads_of_store(store, rows, first) for store, first in dataset.opened_store.parts]
    largest = max(pieces, key=lambda piece: piece.size_bytes)
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return residencies.Reads(largest.path, size_bytes, missing, processes, largest.offset, tuple(pieces))


def _reads_of_store(store: OpenedStore, rows: Rows | None, first: int) -> residencies.Reads:
    """Return how much of one store is read; rows: int64[...] of which its own begin at first, None: all."""
    path, count = store.path / PIXELS, store.manifest.rows
    rows = None if rows is None else rows[(rows >= first) & (rows < first + count)] - first
    if rows is None or len(rows) in (0, count):
        is_none = rows is not None and not len(rows)
        return residencies.Reads(path, 0 if is_none else store.manifest.files[PIXELS].size_bytes)
    spans = store.spans(rows)
    return residencies.Reads(path, int(spans.sizes.sum()), offset=_byte_of(spans))


def host_copy(dataset: MemmapDataset) -> HostCopy:
    """Return a copy of a dataset's rows in memory.

    Raises:
        StoreError, OSError: as `RawFile.read`.
    """
    rows, store = rows_read(dataset), dataset.opened_store
    key = _key(dataset, rows)
    with _making:
        copy = _copies.get(key)
        if copy is not None:
            _log.info("%s: %s in memory are shared", dataset.path, size_text(copy.nbytes))
            return copy
        spans = None if rows is None else store.spans(rows)
        copy = _copies[key] = HostCopy(store.opened("pixels"), spans, store.file_bytes)
    huge = system.huge_page_bytes(copy.address, copy.nbytes)
    got = "the system does not report in which pages" if huge is None else f"{size_text(huge)} of it in huge pages"
    _log.info("%s: %s copied into memory, %s", dataset.path, size_text(copy.nbytes), got)
    return copy


def resident_on(
    dataset: MemmapDataset,
    device: torch.device,
    batches: Callable[[MemmapDataset], AbstractContextManager[Iterator[ImageBatch]]],
) -> Resident | ResidentImages:
    """Return a copy of a dataset's rows on a device.

    batches: opens batches of a dataset, in its order, on the device.
    """
    rows = rows_read(dataset)
    key = _resident_key(dataset, rows, device)
    with _making:
        found = _residents.get(key)
        if found is None:
            found = _residents[key] = _new_resident(dataset, rows, device, batches)
    return found


def missing_on(dataset: MemmapDataset, device: torch.device) -> int:
    """Return the further bytes that a dataset's rows would take on a device."""
    rows = rows_read(dataset)
    if _residents.get(_resident_key(dataset, rows, device)) is not None:
        return 0
    if dataset.manifest.has_own_sizes and dataset.manifest.compression:
        raise ValueError(f"residency 'gpu' of rows with sizes of their own: {dataset.path}: {NEEDS_RAW}.")
    store = dataset.opened_store
    return bytes_there(
        store.mapped, rows, store.spans(rows) if store.table.has_own_sizes and rows is not None else None
    )


def _new_resident(
    dataset: MemmapDataset,
    rows: Rows | None,
    device: torch.device,
    batches: Callable[[MemmapDataset], AbstractContextManager[Iterator[ImageBatch]]],
) -> Resident | ResidentImages:
    store = dataset.mapped
    if isinstance(store, RaggedBatch):
        dataset.opened_store.opened("pixels")
        dataset.check_files()
        # targets and shapes of all rows go to the device as they are
        dataset.check_rows(None)
        return ResidentImages(store, dataset.opened_store.spans, rows, device)
    if rows is not None and not len(rows):
        return Resident(store, rows, [], device)
    with batches(dataset.at_rows(rows)) as made:
        return Resident(store, rows, made, device)


def _key(dataset: MemmapDataset, rows: Rows | None) -> tuple[str, ...]:
    which = "all" if rows is None else hashlib.sha256(rows.data).hexdigest()
    return str(dataset.path), dataset.manifest.digest, which


def _resident_key(dataset: MemmapDataset, rows: Rows | None, device: torch.device) -> tuple[str, ...]:
    return *_key(dataset, rows), dataset.opened_store.made_id, str(device)


def _byte_of(spans: Spans) -> Callable[[], int]:
    """Return what draws the offset of one byte of these spans; not seeded, see `residency.cached_share`."""
    draw = random.SystemRandom().randrange

    def byte() -> int:
        n = draw(len(spans.begins))
        return int(spans.begins[n]) + draw(int(spans.sizes[n]))

    return byte


def _after_fork() -> None:
    """Give a forked process a new, free lock."""
    global _making
    _making = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
