"""Rows of a store at the size that a crop needs: those of the store, or of one of its levels, from where a loader reads.

Which level a row is read from follows from its box, which follows from the epoch and the row's position in it; so reads may
begin before the crop asks. What was not read ahead is read when it is asked for: no batch depends on the plan.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from reader import system
from reader.buffers import BufferPool
from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore
from reader.epoch import stamped
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PAGE_BYTES, Manifest
from reader.format.tensors import level_name, level_path
from reader.loading.host_batches import AHEAD_BYTES, AHEAD_SHARE, without_pixels
from reader.loading.iteration import begins_with_crop, first_step
from reader.loading.residencies.host_copies import HostCopy, bytes_from
from reader.loading.schedule import Schedule
from reader.loading.shared_residency import host_copy, reads_of
from reader.memory.gather import Copies, gather, on_threads
from reader.memory.joined_file import open_rows
from reader.memory.pages import gathered, mapped_rows, pages_of, rows_in
from reader.memory.residency import Reads, Residency
from reader.memory.row_file import READERS, RowMemory, RowReader, plan_reads, tasks
from reader.profiling import stage
from reader.remote.presence import RemoteStore
from reader.rows import Rows, Steps
from reader.store import Batch, RaggedBatch

# Where units of a file, rows or pages, are in memory: uint8[n, unit bytes], and what says in which slots these are.
_Held = tuple[torch.Tensor, Callable[[Rows], Rows]]
# One that is read, one that is taken from, and one whose last batch may be transformed while the next one's first is begun.
_CHUNKS = 3
# Idle buffers of a level: of two batches, each in parts for some threads.
_KEPT = 8


def may_read_levels(dataset: MemmapDataset, residency: object, transform: object) -> bool:
    """Whether crops of a transform can read levels: of one store with masks of no own sizes, on the host, as the first step."""
    manifest = dataset.opened_store.manifest
    is_there = bool(manifest.levels) and not manifest.has_own_masks
    return is_there and residency != "gpu" and begins_with_crop(transform)


class LevelRows:
    """The rows of a dataset's store, by what their sides are divided by.

    factors: of the levels, (2,) or (2, 4). processes: of this host that read so.

    Raises:
        StoreError: a level is none of this store any more.
    """

    def __init__(self, dataset: MemmapDataset, processes: int) -> None:
        store = dataset.opened_store
        self.dataset, self.factors, self._processes = dataset, store.manifest.levels, processes
        self.stores = {1: store} | {factor: _opened(store, factor) for factor in self.factors}
        self._copies: dict[int, HostCopy] = {}
        self._pools: dict[int, BufferPool] = {}
        self._is_warm, self.past_cache = True, False

    def reads(self) -> Reads:
        """Return what a loader reads of all levels, which a copy in memory holds all of."""
        each = [reads_of(self._of_level(factor), self._processes) for factor in self.stores]
        size, missing = sum(reads.size_bytes for reads in each), sum(reads.copy_bytes for reads in each)
        return dataclasses.replace(each[0], size_bytes=size, missing_bytes=missing)

    def begin(self, chosen: Residency) -> None:
        """Bring the rows where they are read from."""
        self._is_warm, self.past_cache = chosen.is_warm, chosen.host == "disk"
        if chosen.name == "ram":
            self._copies = {factor: host_copy(self._of_level(factor)) for factor in self.stores}

    def read(self, rows: torch.Tensor, factor: int) -> Batch:
        """Return rows int64[B] of the store, smaller by a factor: views of the mapped file or of its copy, or else a copy."""
        copy = self._copies.get(factor)
        if copy is None:
            self._check_shapes(rows, factor)
            store = self.stores[factor]
            if not store.is_local or store.frames is not None:
                return store.gather(rows.numpy(), self._memory(factor))
            # crops copy of a row what they need of it
            store.check_rows(rows.numpy())
            if isinstance(store.mapped, RaggedBatch):
                return mapped_rows(store.mapped, rows.numpy())
            return rows_in(store.mapped, rows.numpy(), store.mapped.pixels, rows.numpy())
        return self.read_from((copy.units, copy.slots.of), rows.numpy(), factor)

    def read_from(self, held: _Held, rows: Rows, factor: int) -> Batch:
        """Return rows whose units are in memory."""
        store, (units, slots_of), memory = self.stores[factor], held, self._memory(factor)
        self._check_shapes(torch.from_numpy(rows), factor)
        if store.frames is not None:
            batch, copies = store.begin_unpacking(rows, memory, functools.partial(bytes_from, units, slots_of))
            copies.wait()
            return batch
        store.check_files()
        if isinstance(store.mapped, RaggedBatch):
            batch = gathered(store.mapped, rows, memory, lambda pages, into: gather(units, slots_of(pages), into))
        else:
            batch = rows_in(store.mapped, rows, units, slots_of(rows))
        store.check_rows(rows)
        return batch

    def content(self, rows: torch.Tensor, factor: int) -> torch.Tensor | None:
        """Return what is image in rows of a level, int64[B, 4] x0, y0, x1, y1; None: all is."""
        held = self.stores[factor].mapped
        if isinstance(held, RaggedBatch) or held.content is None:
            return None
        return held.content.index_select(0, rows)[:, [1, 0, 3, 2]].long()

    def in_pass(self, schedule: Schedule, transform: object, epoch: int) -> LevelsAhead:
        """Begin a pass; transform: with the size that its crops have in it."""
        ends = schedule.window_end(epoch) if schedule.order == "block" and schedule.nodes is None else None
        draw = functools.partial(stamped, epoch=epoch, seed=schedule.seed)
        return LevelsAhead(self, first_step(transform), draw, ends)

    def are_read_ahead(self) -> bool:
        """Whether reads begin before crops ask: from a URL, past the page cache, and of files most of which are not in it."""
        if self._copies or not system.can_read_ahead():
            return False
        if self.past_cache or not all(store.is_local for store in self.stores.values()):
            return True
        data = [] if self._is_warm else [self._of_level(factor) for factor in self.stores]
        return any(reads_of(d, self._processes).are_cold(d.opened_store.opened("pixels")) for d in data)

    def _check_shapes(self, rows: torch.Tensor, factor: int) -> None:
        """Raise StoreError where a row with a size of its own is of another size on a level than its box is placed on."""
        own, level = self.stores[1].mapped, self.stores[factor].mapped
        if not (isinstance(own, RaggedBatch) and isinstance(level, RaggedBatch)):
            return
        expected = (own.shapes.index_select(0, rows)[:, :2] // factor).clamp(min=1)
        found = level.shapes.index_select(0, rows)[:, :2]
        if len(wrong := (found != expected).any(dim=1).nonzero()[:, 0]):
            first = int(wrong[0])
            (height, width), (to_be, wide) = found[first].tolist(), expected[first].tolist()
            raise StoreError(
                f"{self.stores[factor].path}: row {int(rows[first])} has {height} x {width} pixels, expected {to_be} x {wide}."
                " The store is damaged or mixed: copy it again."
            )

    def _memory(self, factor: int) -> Callable[[int], torch.Tensor]:
        """Return what gives memory for rows of a level: that of rows whose crops are made is used again."""

        def lease(size_bytes: int) -> torch.Tensor:
            """Lease as much, of a pool for the most that was asked for."""
            pool = self._pools.get(factor)
            if pool is None or pool.size_bytes < size_bytes:
                pool = self._pools[factor] = BufferPool(size_bytes + size_bytes // 4, keep=_KEPT)
            return pool.lease(size_bytes)

        return lease

    def _of_level(self, factor: int) -> MemmapDataset:
        """Return the dataset's rows of a level."""
        rows = None if self.dataset.has_all_rows else self.dataset.store_rows(np.arange(len(self.dataset)))
        return self.dataset if factor == 1 else self.dataset.of_store(self.stores[factor], rows)


class LevelsAhead:
    """One pass over levels: `ahead` gives its steps, reading what their crops will ask for; `read` gives what was read.

    Args:
        crop: what draws the boxes.
        draw: writes epoch and seed on a batch, as the loader does.
        window_end: of a position, where a chunk must end, since the rows behind it are elsewhere; None: nowhere.
    """

    def __init__(
        self, levels: LevelRows, crop: Any, draw: Callable[..., Any], window_end: Callable[[int], int] | None
    ) -> None:
        self._levels, self._crop, self._draw, self._window_end = levels, crop, draw, window_end
        self.factors, self.content = levels.factors, levels.content
        self._files: dict[int, RowReader] = {}
        self._chunks: deque[_StepGroup] = deque(maxlen=_CHUNKS)
        room = system.available_bytes() * AHEAD_SHARE
        self._most = max(1, int(min(AHEAD_BYTES, room)) // levels.dataset.manifest.row_bytes)

    def read(self, rows: torch.Tensor, factor: int) -> Batch:
        """Return rows as `LevelRows.read` does; may be called by several threads."""
        for chunk in tuple(self._chunks):
            if (held := chunk.held(rows.numpy(), factor)) is not None:
                return self._levels.read_from(held, rows.numpy(), factor)
        return self._levels.read(rows, factor)

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps; for one thread."""
        if not self._levels.are_read_ahead():
            yield from steps
            return
        try:
            chunks = self._cut(steps)
            following = next(chunks, None)
            while following is not None:
                current = self._begun(following)
                # the next chunk is read while this one is taken from
                following = next(chunks, None)
                if following is not None:
                    self._begun(following)
                # here, by one thread: crops of one batch run on several, and copies wake one that waits
                current.wait()
                yield from current.steps
        finally:
            for chunk in self._chunks:
                chunk.cancel()
            self._chunks.clear()
            for file in self._files.values():
                file.close()

    def _begun(self, chunk: _StepGroup) -> _StepGroup:
        """Begin the reads of a chunk, once."""
        if chunk not in self._chunks:
            self._chunks.append(chunk)
            for factor, rows in self._planned(chunk.steps).items():
                store = self._levels.stores[factor]
                if store.is_local:
                    chunk.parts[factor] = _LevelReads(store, rows, self._file(factor))
                elif store.remote is not None:
                    store.remote.ahead(_blocks_of(store, store.remote, rows))
        return chunk

    def _cut(self, steps: Iterator[Steps]) -> Iterator[_StepGroup]:
        """Cut the steps into chunks: small ones first, so that the first batches need not wait for a whole one."""
        held: list[Steps] = []
        count, most, window = 0, 0, 0
        for group in steps:
            end = 0 if self._window_end is None else self._window_end(group.starts[0])
            added = sum(map(len, group.batches))
            if held and (end != window or count + added > most):
                yield _StepGroup(held)
                held, count, most = [], 0, min(2 * most, self._most)
            held.append(group)
            count, most, window = count + added, most or added, end
        if held:
            yield _StepGroup(held)

    def _planned(self, steps: list[Steps]) -> dict[int, Rows]:
        """Return the rows that the crops of some steps will ask for, sorted and each once, by the level."""
        found: dict[int, list[Rows]] = {}
        for group in steps:
            for rows, start in zip(group.batches, group.starts, strict=True):
                batch = self._draw(without_pixels(self._levels.dataset, rows), position=start)
                factors = self._crop.levels(self._levels, batch).numpy()
                for factor in np.unique(factors).tolist():
                    found.setdefault(factor, []).append(rows[factors == factor])
        return {factor: np.unique(np.concatenate(rows)) for factor, rows in found.items()}

    def _file(self, factor: int) -> RowReader:
        if factor not in self._files:
            store = self._levels.stores[factor]
            unit_bytes, past_cache = _unit_bytes(store.manifest), self._levels.past_cache
            self._files[factor] = open_rows(store.opened("pixels"), unit_bytes, past_cache=past_cache)
        return self._files[factor]


class _StepGroup:
    """Steps whose rows are read together."""

    def __init__(self, steps: list[Steps]) -> None:
        self.steps = steps
        self.parts: dict[int, _LevelReads] = {}

    def held(self, rows: Rows, factor: int) -> _Held | None:
        """Return what holds these rows of a level; None: they are not all here."""
        part = self.parts.get(factor)
        return part.held() if part is not None and part.has(rows) else None

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        for part in self.parts.values():
            if not part.reads.are_done:
                with stage("wait"):
                    part.reads.wait()
            part.reads.wait()

    def cancel(self) -> None:
        """End the reads."""
        for part in self.parts.values():
            part.reads.cancel()


class _LevelReads:
    """Rows of one level that are read together; rows: int64[...] sorted and each once."""

    def __init__(self, store: OpenedStore, rows: Rows, file: RowReader) -> None:
        self._rows, unit_bytes = rows, _unit_bytes(store.manifest)
        self._units = np.unique(pages_of(*store.file_extents(rows))[0]) if store.manifest.is_flat else rows
        reads, self._slots, count = plan_reads(self._units, unit_bytes, file.align)
        self._memory = RowMemory(count, unit_bytes)
        each = [(self._memory.bytes, group) for group in tasks(reads, unit_bytes)]
        self.reads: Copies = on_threads("read", READERS, file.read, each)

    def has(self, rows: Rows) -> bool:
        """Whether all of these rows are among them."""
        found = self._rows[np.searchsorted(self._rows, rows).clip(max=len(self._rows) - 1)]
        return bool((found == rows).all())

    def held(self) -> _Held | None:
        """Return where units are; None: they are not there yet."""
        if not self.reads.are_done:
            return None
        return self._memory.rows, lambda units: self._slots[np.searchsorted(self._units, units)]


def _unit_bytes(manifest: Manifest) -> int:
    return PAGE_BYTES if manifest.is_flat else manifest.row_bytes


def _blocks_of(store: OpenedStore, remote: RemoteStore, rows: Rows) -> list[int]:
    """Return the blocks of a store at a URL that hold rows."""
    begins, sizes = store.file_extents(rows)
    spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
    return sorted({block for span in spans for block in remote.folder.blocks_of(*span)})


def _opened(store: OpenedStore, factor: int) -> OpenedStore:
    """Open a level of a store, where that is: on this machine, or at a URL through the same cache."""
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
