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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from reader import system
from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore
from reader.device.resident import Resident, ResidentImages, bytes_there
from reader.format.filesystem import size_text
from reader.format.manifest import PIXELS
from reader.format.tensors import NEEDS_RAW
from reader.loading.residencies.host_copy import HostCopy, PinnedFile
from reader.memory import residency as residencies
from reader.memory.places import Place
from reader.memory.spans import Spans
from reader.rows import Rows
from reader.store import ImageBatch, RaggedBatch

_log = logging.getLogger("reader")

# Rows in memory, by path, digest and which rows, and on devices, each for as long as a loader reads it there.
_copies: weakref.WeakValueDictionary[tuple[str, ...], HostCopy] = weakref.WeakValueDictionary()
_pinned: weakref.WeakValueDictionary[tuple[str, ...], PinnedFile] = weakref.WeakValueDictionary()
_residents: weakref.WeakValueDictionary[tuple[str, ...], Resident | ResidentImages] = weakref.WeakValueDictionary()
# Of one process: of two threads that make loaders of the same rows one makes the copy. To fill a device makes a loader too.
_making = threading.RLock()
# The same for pinned files: rows that fill a device, whose maker waits, may be sent from one.
_pinning = threading.Lock()


def rows_read(dataset: MemmapDataset) -> Rows | None:
    """Return the rows of the store that a dataset has, sorted and each once; None: all."""
    if dataset.has_all_rows:
        return None
    is_read = np.zeros(dataset.manifest.rows, dtype=bool)
    is_read[dataset.store_rows(np.arange(len(dataset)))] = True
    return None if is_read.all() else np.flatnonzero(is_read)


def reads_of(dataset: MemmapDataset, processes: int) -> residencies.Reads:
    """Return how much of a store's pixels a loader of this dataset reads, and how much of that is in memory already.

    processes: how many of this host read so.
    """
    pieces = [_reads_of_store(store, rows) for store, rows in _rows_of_stores(dataset)]
    largest = max(pieces, key=lambda piece: piece.size_bytes)
    size_bytes, missing = (sum(each) for each in zip(*((p.size_bytes, p.copy_bytes) for p in pieces), strict=True))
    return residencies.Reads(largest.path, size_bytes, missing, processes, largest.offset, tuple(pieces))


def _rows_of_stores(dataset: MemmapDataset) -> list[tuple[OpenedStore, Rows | None]]:
    """Return the stores of a dataset, each with those of its rows that are read, sorted and each once; None: all."""
    rows, found = rows_read(dataset), list[tuple[OpenedStore, Rows | None]]()
    for store, first in dataset.opened_store.parts:
        count = store.manifest.rows
        own = None if rows is None else rows[(rows >= first) & (rows < first + count)] - first
        found.append((store, None if own is None or len(own) == count else own))
    return found


def _reads_of_store(store: OpenedStore, rows: Rows | None) -> residencies.Reads:
    """Return how much of one store is read."""
    path, missing = store.path / PIXELS, None if _copies.get(_key(store, rows)) is None else 0
    if rows is None or not len(rows):
        return residencies.Reads(path, store.file_bytes if rows is None else 0, missing)
    spans = store.spans(rows)
    return residencies.Reads(path, int(spans.sizes.sum()), missing, offset=_byte_of(spans))


class HostCopies(NamedTuple):
    """Copies of the rows of a dataset in memory, one for each of its stores."""

    store: OpenedStore
    each: Sequence[HostCopy]

    @property
    def nbytes(self) -> int:
        """The bytes that are there."""
        return sum(copy.nbytes for copy in self.each)

    def place(self, *, device: torch.device | None = None, is_streamed: bool = False) -> Place:
        """Return where the rows are, as `HostCopy.place` does."""
        return self.store.placed([copy.place(device=device, is_streamed=is_streamed) for copy in self.each])

    def pin(self, device: torch.device) -> None:
        """Pin all of them; raises PinnedMemoryError as `HostCopy.pin`."""
        for copy in self.each:
            copy.pin(device)


def host_copies(dataset: MemmapDataset) -> HostCopies:
    """Return copies of a dataset's rows in memory.

    Raises:
        StoreError, OSError: as `RawFile.read`.
    """
    with _making:
        return HostCopies(dataset.opened_store, [_host_copy(store, rows) for store, rows in _rows_of_stores(dataset)])


def pinned_files(dataset: MemmapDataset, device: torch.device) -> list[PinnedFile]:
    """Return the files of pixels of a dataset's stores, pinned for any device, of which this is one.

    Raises:
        PinnedMemoryError: as `PinnedFile`.
    """
    with _pinning:
        return [_pinned_file(store, device) for store, _ in _rows_of_stores(dataset)]


def pinned_bytes() -> int:
    """Return the bytes of the page cache that this process has pinned: the system counts them as available."""
    return sum(file.nbytes for file in list(_pinned.values()))


def _pinned_file(store: OpenedStore, device: torch.device) -> PinnedFile:
    key = (*_key(store, None), store.made_id)
    found = _pinned.get(key)
    if found is None:
        path = store.opened("pixels")
        assert isinstance(path, Path)
        found = _pinned[key] = PinnedFile(path, store.file_bytes, device)
        _log.info("%s: %s in the page cache are pinned", store.path, size_text(store.file_bytes))
    return found


def _host_copy(store: OpenedStore, rows: Rows | None) -> HostCopy:
    key = _key(store, rows)
    copy = _copies.get(key)
    if copy is not None:
        _log.info("%s: %s in memory are shared", store.path, size_text(copy.nbytes))
        return copy
    spans = None if rows is None else store.spans(rows)
    copy = _copies[key] = HostCopy(store.opened("pixels"), spans, store.file_bytes)
    huge = system.huge_page_bytes(copy.address, copy.nbytes)
    got = "the system does not report in which pages" if huge is None else f"{size_text(huge)} of it in huge pages"
    _log.info("%s: %s copied into memory, %s", store.path, size_text(copy.nbytes), got)
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
    rows, store = rows_read(dataset), dataset.opened_store
    if _residents.get(_resident_key(dataset, rows, device)) is not None:
        return 0
    if dataset.manifest.has_own_sizes and dataset.manifest.compression:
        raise ValueError(f"residency 'gpu' of rows with sizes of their own: {dataset.path}: {NEEDS_RAW}.")
    count = dataset.manifest.rows
    read = np.arange(count) if rows is None else rows
    return bytes_there(store.no_rows(), count, len(read), store.spans(read))


def _new_resident(
    dataset: MemmapDataset,
    rows: Rows | None,
    device: torch.device,
    batches: Callable[[MemmapDataset], AbstractContextManager[Iterator[ImageBatch]]],
) -> Resident | ResidentImages:
    store, count = dataset.opened_store, dataset.manifest.rows
    none = store.no_rows()
    if isinstance(none, RaggedBatch):
        store.check_files()
        # targets and shapes of all rows go to the device as they are
        store.check_rows(None)
        every = np.arange(count)
        columns = store.table.batch(torch.from_numpy(every), store.columns(every), none.pixels, every)
        assert isinstance(columns, RaggedBatch)
        place = store.place()
        return ResidentImages(columns, store.spans, place, every if rows is None else rows, device)
    if rows is not None and not len(rows):
        return Resident(none, count, rows, [], device)
    with batches(dataset.at_rows(rows)) as made:
        return Resident(none, count, rows, made, device)


def _key(store: OpenedStore, rows: Rows | None) -> tuple[str, ...]:
    which = "all" if rows is None else hashlib.sha256(rows.data).hexdigest()
    return str(store.path), store.manifest.digest, which


def _resident_key(dataset: MemmapDataset, rows: Rows | None, device: torch.device) -> tuple[str, ...]:
    return *_key(dataset.opened_store, rows), dataset.opened_store.made_id, str(device)


def _byte_of(spans: Spans) -> Callable[[], int]:
    """Return what draws the offset of one byte of these spans; not seeded, see `residency.cached_share`."""
    draw = random.SystemRandom().randrange

    def byte() -> int:
        n = draw(len(spans.begins))
        return int(spans.begins[n]) + draw(int(spans.sizes[n]))

    return byte


def _after_fork() -> None:
    """Give a forked process new, free locks."""
    global _making, _pinning
    _making, _pinning = threading.RLock(), threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
