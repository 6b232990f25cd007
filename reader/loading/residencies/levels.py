"""Reads rows at the size that a crop needs, of a store or of one of its levels, from where a loader reads.

Knows files, copies and mappings, and what must agree between a store and its levels; which rows are read when, and at what size,
crops say, or `levels_ahead.py` ahead of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Callable, Sequence

import numpy as np
import torch

from reader import system
from reader.buffers import BufferPool
from reader.dataset.dataset import MemmapDataset
from reader.dataset.joined import JoinedStores
from reader.dataset.opened_store import OpenedStore
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST
from reader.format.tensors import level_name, level_path
from reader.loading.finish import begins_with_crop
from reader.loading.host_rows import HostRows
from reader.memory.places import Place, bytes_of
from reader.memory.residency import Reads, Residency
from reader.memory.spans import Spans
from reader.rows import Rows
from reader.store import Batch

_log = logging.getLogger("reader")

# Idle buffers of a level: of two batches, each in parts for some threads.
_KEPT = 8
# Of masks, instead of a level's factor.
_MASKS = 0


def may_read_levels(dataset: MemmapDataset, residency: object, transform: object) -> bool:
    """Whether crops of a transform can read levels: on the host, as the first step; of several stores those that all have."""
    store, manifest = dataset.opened_store, dataset.manifest
    if residency == "gpu" or not begins_with_crop(transform):
        return False
    # masks behind the pixels of their rows are read without them only from raw files
    if manifest.has_own_masks and (manifest.compression is not None or not store.is_local):
        return False
    without = [part.path for part, _ in store.parts if not part.levels]
    if 0 < len(without) < len(store.parts):
        _log.warning(
            "%s has no levels, and other stores that it is joined with have: the stores' own rows are read. Pack it again with"
            " --levels.",
            without[0],
        )
    return bool(store.levels)


class LevelRows:
    """Reads the rows of a dataset's store by what their sides are divided by.

    own: the rows of the store. factors: of the levels, (2,) or (2, 4).

    Raises:
        StoreError: a level is none of this store any more.
    """

    def __init__(self, own: HostRows) -> None:
        self.dataset = dataset = own.dataset
        store = dataset.opened_store
        self.factors, self._pools = store.levels, dict[int, BufferPool]()
        self.stores = {1: store} | {factor: _opened(store, factor) for factor in self.factors}
        rows = None if dataset.has_all_rows else dataset.store_rows(np.arange(len(dataset)))
        self._on_host = {1: own} | {
            factor: HostRows(dataset.of_store(self.stores[factor], rows), own.reads.processes)
            for factor in self.factors
        }

    @property
    def past_cache(self) -> bool:
        """Whether rows are read from the disk, and leave nothing in the page cache."""
        return self._on_host[1].past_cache

    @property
    def reads(self) -> Reads:
        """What a loader reads of all levels, which a copy in memory holds all of."""
        each = [rows.reads for rows in self._on_host.values()]
        size, missing = sum(reads.size_bytes for reads in each), sum(reads.copy_bytes for reads in each)
        return dataclasses.replace(each[0], size_bytes=size, missing_bytes=missing)

    def bring(self, chosen: Residency) -> None:
        """Bring the rows of all levels to where they are read from."""
        for rows in self._on_host.values():
            rows.bring(chosen)

    def read(self, rows: Rows, factor: int, places: Sequence[Place] = ()) -> Batch:
        """Return rows of the store, smaller by a factor: views of where raw ones are in memory, or else a copy.

        places: in memory, where they may be; else a copy in memory has them, or the file.
        """
        store = self.stores[factor]
        self._check_shapes(rows, factor)
        store.check_files()
        columns = store.columns(rows)
        layout = store.table.layout(rows, columns)
        place = self._place(factor, layout.spans, places)
        if (views := store.table.views(rows, columns, layout.spans, place)) is not None:
            # crops copy of a row what they need of it
            store.check_rows(rows, columns)
            return views
        batch, copies = store.begin(rows, place, self._memory(factor))
        if copies is not None:
            copies.wait()
        return batch

    def masks(self, rows: Rows, places: Sequence[Place] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uint8[T] that holds the masks of rows of the store, and where each begins, int64[B]; places: see `read`."""
        spans = self.mask_spans(rows)
        located = bytes_of(self._place(1, spans, places), spans, self._memory(_MASKS))
        return torch.from_numpy(located.memory), torch.from_numpy(located.begins)

    def mask_spans(self, rows: Rows) -> Spans:
        """Return where the masks of rows of the store are in its file; raises StoreError as `RowTable.mask_spans`."""
        store = self.stores[1]
        store.check_files()
        return store.table.mask_spans(rows, store.columns(rows))

    def content(self, batch_rows: torch.Tensor, factor: int) -> torch.Tensor | None:
        """Return what is image in rows of a level, int64[B, 4] x0, y0, x1, y1; None: all is."""
        store = self.stores[factor]
        if not store.manifest.has_content:
            return None
        return store.columns(batch_rows.numpy(), ["content"])["content"][:, [1, 0, 3, 2]].long()

    def let_go(self) -> None:
        """Free the buffers that no rows are in."""
        self._pools.clear()

    def read_ahead(self) -> set[int]:
        """Return the levels of which reads begin before crops ask.

        From a URL and past the page cache all, and else those of which most of the file is not in it.
        """
        if self._on_host[1].copy is not None or not system.can_read_ahead():
            return set()
        if not all(store.is_local for store in self.stores.values()):
            return {*self.stores}
        return {factor for factor, rows in self._on_host.items() if rows.are_on_disk()}

    def _place(self, factor: int, spans: Spans, places: Sequence[Place]) -> Place:
        """Return the first place that has the spans in memory; else a copy in memory, or where the file is."""
        for place in places:
            if place.locate(spans) is not None:
                return place
        copy = self._on_host[factor].copy
        return self.stores[factor].place() if copy is None else copy.place()

    def _check_shapes(self, rows: Rows, factor: int) -> None:
        """Raise StoreError where a row with a size of its own is of another size on a level than its box is placed on."""
        if factor == 1 or not self.stores[1].table.form.located_by:
            return
        own, level = (self.stores[n].columns(rows, ["shapes"])["shapes"] for n in (1, factor))
        expected, actual = (own[:, :2] // factor).clamp(min=1), level[:, :2]
        if len(wrong := (actual != expected).any(dim=1).nonzero()[:, 0]):
            first = int(wrong[0])
            (height, width), (to_be, wide) = actual[first].tolist(), expected[first].tolist()
            store, start = next(part for part in reversed(self.stores[factor].parts) if part[1] <= rows[first])
            raise StoreError(
                f"{store.path}: row {rows[first] - start} has {height} x {width} pixels, expected {to_be} x {wide}."
                " The store is damaged or mixed: copy it again."
            )

    def _memory(self, factor: int) -> Callable[[int], torch.Tensor]:
        """Return what gives memory for rows of a level: that of rows whose crops are done is used again."""

        def lease(size_bytes: int) -> torch.Tensor:
            """Lease as much, of a pool for the most that was asked for."""
            pool = self._pools.get(factor)
            if pool is None or pool.size_bytes < size_bytes:
                pool = self._pools[factor] = BufferPool(size_bytes + size_bytes // 4, keep=_KEPT)
            return pool.lease(size_bytes)

        return lease


def _opened(store: OpenedStore, factor: int) -> OpenedStore:
    """Open a level of a store, where that is: on this machine, or at a URL through the same cache; of several stores, of each."""
    if isinstance(store, JoinedStores):
        return store.with_stores([_opened(part, factor) for part, _ in store.parts])
    if store.remote is None or store.remote.is_complete:
        level = OpenedStore(level_path(store.path, factor))
    else:
        remote = store.remote.below(level_name(factor), share=factor**2)
        level = OpenedStore(remote.root, remote)
    # its rows go with the targets of the store: another one may have taken the store's name since that was opened
    folder = level.path if level.remote is None else level.remote.folder.inside
    content = (folder / MANIFEST).read_bytes()
    listed = store.manifest.files[f"{level_name(factor)}/{MANIFEST}"].digest
    if listed != f"sha256:{hashlib.sha256(content).hexdigest()}" or level.manifest.digest.encode() not in content:
        where = store.remote or store.path
        raise StoreError(
            f"{where}/{level_name(factor)} was packed again since {where} was opened. Open the dataset again."
        )
    return level
