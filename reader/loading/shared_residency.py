"""What all loaders of a process share: copies of rows in memory and on devices. Which there are, and what one more loader takes.

A copy holds the rows of all who asked for it, each of them once, and goes with the last loader that reads it. So the loaders of
train, of val and of a subset of one store hold together what the store has, and each of them alone what it reads.
"""

from __future__ import annotations

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
from reader.device.resident import Resident, ResidentImages
from reader.format.filesystem import size_text
from reader.format.manifest import PAGE_BYTES, PIXELS
from reader.format.tensors import NEEDS_RAW
from reader.loading.residencies.host_copies import HostCopy
from reader.memory import residency as residencies
from reader.memory.pages import pages_of
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch

_log = logging.getLogger("reader")

# Stores in memory, by path and digest, and on devices, each for as long as a loader reads it there.
_copies: weakref.WeakValueDictionary[tuple[str, str], HostCopy] = weakref.WeakValueDictionary()
_residents: weakref.WeakValueDictionary[tuple[str, ...], Resident | ResidentImages] = weakref.WeakValueDictionary()
# Of one process: two threads that make loaders add rows one after the other. To fill a device makes a loader too.
_adding = threading.RLock()


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
    copy = _copies.get((str(dataset.path), dataset.manifest.digest))
    missing = None if copy is None else copy.missing_bytes(_units(dataset, rows))
    pieces = [_reads_of_store(store, rows, first) for store, first in dataset.opened_store.parts]
    largest = max(pieces, key=lambda piece: piece.size_bytes)
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return residencies.Reads(largest.path, size_bytes, missing, processes, largest.offset, tuple(pieces))


def _reads_of_store(store: OpenedStore, rows: Rows | None, first: int) -> residencies.Reads:
    """Return how much of one store is read; rows: int64[...] of which its own begin at first, None: all."""
    path, row_bytes, count = store.path / PIXELS, store.manifest.row_bytes, store.manifest.rows
    rows = None if rows is None else rows[(rows >= first) & (rows < first + count)] - first
    if rows is None or len(rows) in (0, count):
        is_none = rows is not None and not len(rows)
        return residencies.Reads(path, 0 if is_none else store.manifest.files[PIXELS].size_bytes)
    if store.manifest.is_flat:
        begins, sizes = store.file_extents(rows)
        return residencies.Reads(path, int(sizes.sum()), offset=_byte_of(begins, sizes))
    offset = _byte_of(rows * row_bytes, np.full(len(rows), row_bytes))
    return residencies.Reads(path, len(rows) * row_bytes, offset=offset)


def host_copy(dataset: MemmapDataset) -> HostCopy:
    """Return the copy of a store in memory, with the dataset's pixels in it.

    Its units are rows, or of rows with sizes of their own, or compressed, pages.

    Raises:
        StoreError, OSError: as `RowFile.read`.
    """
    key, manifest = (str(dataset.path), dataset.manifest.digest), dataset.manifest
    unit_bytes = PAGE_BYTES if manifest.is_flat else manifest.row_bytes
    with _adding:
        copy = _copies.get(key) or HostCopy(_file_bytes(dataset) // unit_bytes, unit_bytes)
        added = copy.add(dataset.opened_store.opened("pixels"), host_units(dataset))
        _copies[key] = copy
    held_bytes = copy.slots.filled * unit_bytes
    huge = system.huge_page_bytes(copy.units.data_ptr(), held_bytes)
    got = "the system does not report in which pages" if huge is None else f"{size_text(huge)} of it in huge pages"
    shared = "" if added == held_bytes else f", {size_text(held_bytes)} with what was there"
    _log.info("%s: %s copied into memory%s, %s", dataset.path, size_text(added), shared, got)
    return copy


def host_units(dataset: MemmapDataset) -> Rows | None:
    """Return the units of a host's copy that a dataset needs: rows or pages, sorted and each once; None: all."""
    return _units(dataset, rows_read(dataset))


def resident_on(
    dataset: MemmapDataset,
    device: torch.device,
    batches: Callable[[MemmapDataset], AbstractContextManager[Iterator[ImageBatch]]],
) -> Resident | ResidentImages:
    """Return the copy of a store on a device, with the dataset's rows in it.

    batches: opens batches of a dataset, in its order, on the device.
    """
    key = _resident_key(dataset, device)
    with _adding:
        found = _residents.get(key) or _new_resident(dataset, device)
        if isinstance(found, ResidentImages):
            dataset.opened_store.opened("pixels")
            dataset.check_files()
            # targets and shapes of all rows go to the device as they are
            dataset.check_rows(None)
            found.add(host_units(dataset))
        else:
            rows = found.slots.missing(rows_read(dataset))
            if rows is None or len(rows):
                with batches(dataset.at_rows(rows)) as made:
                    found.add(rows, made)
        _residents[key] = found
    return found


def missing_on(dataset: MemmapDataset, device: torch.device) -> int:
    """Return the further bytes that a dataset's rows would take on a device."""
    found = _residents.get(_resident_key(dataset, device)) or _new_resident(dataset, device)
    return found.missing_bytes(host_units(dataset))


def _new_resident(dataset: MemmapDataset, device: torch.device) -> Resident | ResidentImages:
    """Return a copy on a device that holds nothing yet, and takes nothing."""
    store = dataset.mapped
    if not isinstance(store, RaggedBatch):
        return Resident(store, device)
    if dataset.manifest.compression:
        raise ValueError(f"residency 'gpu' of rows with sizes of their own: {dataset.path}: {NEEDS_RAW}.")
    return ResidentImages(store, device)


def _units(dataset: MemmapDataset, rows: Rows | None) -> Rows | None:
    """Return what holds these rows of a store's file: themselves, or pages."""
    if rows is None or not dataset.manifest.is_flat:
        return rows
    is_read = np.zeros(_file_bytes(dataset) // PAGE_BYTES, dtype=bool)
    is_read[pages_of(*dataset.opened_store.file_extents(rows))[0]] = True
    return np.flatnonzero(is_read)


def _file_bytes(dataset: MemmapDataset) -> int:
    """Return the bytes of the file of rows; of several stores with those between their files."""
    frames = dataset.opened_store.frames
    return dataset.mapped.pixels.nbytes if frames is None else frames.size_bytes


def _resident_key(dataset: MemmapDataset, device: torch.device) -> tuple[str, ...]:
    return str(dataset.path), dataset.manifest.digest, dataset.opened_store.made_id, str(device)


def _byte_of(begins: Rows, sizes: Rows) -> Callable[[], int]:
    """Return what draws the offset of one byte of these spans; not seeded, see `residency.cached_share`."""
    draw = random.SystemRandom().randrange

    def byte() -> int:
        n = draw(len(begins))
        return int(begins[n]) + draw(int(sizes[n]))

    return byte


def _after_fork() -> None:
    """Give a forked process a new, free lock."""
    global _adding
    _adding = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
