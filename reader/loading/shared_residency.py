"""Where the rows of a dataset are on this host, a copy, the page cache or the disk, and the copies of them.

Copies in memory and on devices, and pinned files, are shared among the loaders of a process: a copy holds the rows of a dataset,
each of them once. Loaders of the same rows share it, and it goes with the last of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import random
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch

from reader import system
from reader.buffers import allocated
from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore
from reader.device.resident import Resident
from reader.device.transfer import pin
from reader.format.filesystem import size_text
from reader.format.manifest import PIXELS
from reader.memory import residency as residencies
from reader.memory.places import InMemory
from reader.memory.raw_file import RawFile, bring
from reader.memory.residency import Residency
from reader.memory.spans import Runs, Spans
from reader.rows import Rows
from reader.store import Batch

_log = logging.getLogger("pixpack")

_Value = TypeVar("_Value")
_Key = tuple[str, ...]


class HostRows:
    """Where the rows of a dataset are read from, for all passes of a loader.

    reads: how much is read, and by how many processes.
    copy: in memory, of residency "ram"; other loaders of the same rows share it, and the last one frees it.
    past_cache: rows are read from the disk, and leave nothing in the page cache.
    """

    def __init__(self, dataset: MemmapDataset, processes: int) -> None:
        self.dataset, self.reads = dataset, reads_of(dataset, processes)
        self.copy: HostCopy | None = None
        self.past_cache = self._is_warm = False

    def bring(self, chosen: Residency) -> None:
        """Bring the rows to where they are read from.

        Raises:
            StoreError, OSError: as `RawFile.read`.
        """
        self._is_warm, self.past_cache = chosen.is_warm, chosen.host == "disk"
        if chosen.name == "ram":
            self.copy = _host_copy(self.dataset.opened_store, rows_read(self.dataset))

    def are_on_disk(self) -> bool:
        """Say whether an epoch that begins now has to read them ahead; of a store at a URL, once it is here."""
        if self.copy is not None or self.past_cache or self._is_warm:
            return self.past_cache
        return self.reads.is_cold(self.dataset.opened_store.pixel_path())


class HostCopy:
    """Copies bytes of a file to anonymous memory that may use huge pages.

    Args:
        path: the file.
        spans: of the file, in any order; None: all of it.
        size_bytes: of the file.

    Raises:
        StoreError, OSError: as `RawFile.read`.
    """

    def __init__(self, path: Path, spans: Spans | None, size_bytes: int) -> None:
        # all of it is one run
        runs = Runs.holding(Spans(np.array([0]), np.array([size_bytes])) if spans is None else spans)
        memory = allocated(runs.size_bytes)
        self._bytes, self._runs, self.is_pinned = torch.from_numpy(memory), None if spans is None else runs, False
        # a part of a file is often read by other ranks of this host too
        past_cache = spans is None and residencies.is_cold(path, size_bytes)
        with contextlib.closing(RawFile(path, past_cache=past_cache)) as file:
            bring(file, runs.spans, memory)

    @property
    def nbytes(self) -> int:
        """The bytes that are there."""
        return self._bytes.nbytes

    @property
    def address(self) -> int:
        """Where the memory begins."""
        return self._bytes.data_ptr()

    def place(self, *, device: torch.device | None = None, is_streamed: bool = False) -> InMemory:
        """Return where the bytes are; device: that they are sent to, where they are pinned."""
        return InMemory(self._bytes.numpy(), self._runs, device=device, owner=self, is_streamed=is_streamed)

    def pin(self, device: torch.device) -> None:
        """Pin the bytes, where they are, for as long as this lives.

        Raises:
            PinnedMemoryError: the system does not allow it.
        """
        if not self.is_pinned and self.nbytes:
            unpin = pin(self._bytes.numpy(), device)
            self.is_pinned = True
            weakref.finalize(self, unpin).atexit = False


class PinnedFile:
    """Maps a file and pins its pages where they are in the page cache; they stay there.

    device: any CUDA device; it is pinned for all.

    Raises:
        PinnedMemoryError: the system, or the driver, does not allow it.
    """

    def __init__(self, path: Path, size_bytes: int, device: torch.device) -> None:
        # shared, unlike the mapping that rows are gathered from: the driver would make copies of private pages
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), size_bytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        self._bytes = np.frombuffer(mapped, np.uint8)
        weakref.finalize(self, pin(self._bytes, device, is_read_only=True)).atexit = False

    @property
    def nbytes(self) -> int:
        """The bytes that are pinned."""
        return self._bytes.nbytes

    def place(self, device: torch.device) -> InMemory:
        """Return where the bytes are, and which device they are sent to."""
        return InMemory(self._bytes, device=device, owner=self, is_streamed=True)


class Shared(Generic[_Value]):
    """Values that the loaders of a process share, by path, digest and which rows, each for as long as one of them has it.

    Of two threads that ask for the same one at once, one makes it.
    """

    def __init__(self) -> None:
        self._values = weakref.WeakValueDictionary[_Key, _Value]()
        self._making = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._free_lock)

    def __len__(self) -> int:
        return len(self._values)

    def find(self, key: _Key) -> _Value | None:
        """Return a value; None: no loader has it."""
        return self._values.get(key)

    def find_all(self) -> list[_Value]:
        """Return all values that loaders have."""
        return list(self._values.values())

    def find_or_make(self, key: _Key, make: Callable[[], _Value]) -> _Value:
        """Return a value, a new one where no loader has it; raises what creating it raises."""
        with self._making:
            value = self._values.get(key)
            if value is None:
                value = self._values[key] = make()
            return value

    def _free_lock(self) -> None:
        self._making = threading.Lock()


# A lock each: rows that fill a device, whose maker waits, may be sent from a file that is pinned meanwhile.
_copies, _pinned, _residents = Shared[HostCopy](), Shared[PinnedFile](), Shared[Resident]()


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
    rows, store = rows_read(dataset), dataset.opened_store
    path, missing = store.path / PIXELS, None if _copies.find(_key(store, rows)) is None else 0
    if rows is None or not len(rows):
        return residencies.Reads(path, store.file_bytes if rows is None else 0, missing, processes)
    spans = store.spans(rows)
    return residencies.Reads(path, int(spans.sizes.sum()), missing, processes, _byte_of(spans))


def pinned_file(dataset: MemmapDataset, device: torch.device) -> PinnedFile:
    """Return the file of pixels of a dataset's store, pinned for any device, of which this is one.

    Raises:
        PinnedMemoryError: as `PinnedFile`.
    """
    store = dataset.opened_store

    def pinned() -> PinnedFile:
        file = PinnedFile(store.pixel_path(), store.file_bytes, device)
        _log.info("%s: %s in the page cache are pinned", store.path, size_text(store.file_bytes))
        return file

    return _pinned.find_or_make(_key(store, None), pinned)


def pinned_bytes() -> int:
    """Return the bytes of the page cache that this process has pinned: the system counts them as available."""
    return sum(file.nbytes for file in _pinned.find_all())


def _host_copy(store: OpenedStore, rows: Rows | None) -> HostCopy:

    def copied() -> HostCopy:
        copy = HostCopy(store.pixel_path(), None if rows is None else store.spans(rows), store.file_bytes)
        # the system lists all memory of the process for this: 0.1 s and more
        if _log.isEnabledFor(logging.INFO):
            huge = system.huge_page_bytes(copy.address, copy.nbytes)
            got = (
                "the system does not report in which pages"
                if huge is None
                else f"{size_text(huge)} of it in huge pages"
            )
            _log.info("%s: %s copied into memory, %s", store.path, size_text(copy.nbytes), got)
        return copy

    key = _key(store, rows)
    if (known := _copies.find(key)) is not None:
        _log.info("%s: %s in memory are shared", store.path, size_text(known.nbytes))
        return known
    return _copies.find_or_make(key, copied)


def resident_on(
    dataset: MemmapDataset,
    device: torch.device,
    batches: Callable[[MemmapDataset], AbstractContextManager[Iterator[Batch]]],
) -> Resident:
    """Return a copy of a dataset's rows on a device.

    batches: opens batches of a dataset, in its order, on the device.
    """
    rows, store = rows_read(dataset), dataset.opened_store
    read = np.arange(dataset.manifest.rows) if rows is None else rows

    def filled() -> Resident:
        sizes = store.layout(read).sizes
        opened = batches(dataset.at_rows(rows)) if len(read) else contextlib.nullcontext(iter(list[Batch]()))
        with opened as each:
            return Resident(store.table.form, read, sizes, each, device)

    return _residents.find_or_make((*_key(store, rows), str(device)), filled)


def missing_on(dataset: MemmapDataset, device: torch.device) -> int:
    """Return the further bytes that a dataset's rows would take on a device."""
    rows, store = rows_read(dataset), dataset.opened_store
    if _residents.find((*_key(store, rows), str(device))) is not None:
        return 0
    return int(store.layout(np.arange(dataset.manifest.rows) if rows is None else rows).sizes.sum())


def _key(store: OpenedStore, rows: Rows | None) -> _Key:
    which = "all" if rows is None else hashlib.sha256(rows.data).hexdigest()
    return str(store.path), store.manifest.digest, which


def _byte_of(spans: Spans) -> Callable[[], int]:
    """Return what draws the offset of one byte of these spans; seeded by the system, see `system.cached_share`."""
    draw = random.Random().randrange

    def byte() -> int:
        n = draw(len(spans.begins))
        return int(spans.begins[n]) + draw(int(spans.sizes[n]))

    return byte
