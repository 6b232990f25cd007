"""Reads rows at the size that a crop needs, of a store or of one of its levels, from where a loader reads.

Which level a row is read from follows from its box, which follows from the epoch and the position of the row in it; so reads from
the disk, or of blocks of a store at a URL, may begin before the crop asks. What was not read ahead is read when it is asked for:
no batch depends on the plan. Knows files, copies and mappings, and what must agree between a store and its levels.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import numpy as np
import torch

from reader import system
from reader.buffers import FittingPool
from reader.dataset.dataset import MemmapDataset
from reader.dataset.joined import JoinedStores
from reader.dataset.opened_store import OpenedStore
from reader.epoch import stamped
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST
from reader.format.tensors import level_name, level_path
from reader.loading.finish import begins_with_crop, first_step
from reader.loading.remote_ahead import blocks_of
from reader.loading.shared_residency import HostRows
from reader.memory.places import Place, bytes_of
from reader.memory.raw_file import RawReader, open_raw
from reader.memory.read_ahead import AHEAD_SHARE, Chunk, cut_in_chunks
from reader.memory.residency import Reads, Residency
from reader.memory.spans import Spans, joined
from reader.planning.plan import EpochPlan
from reader.rows import Rows, Steps
from reader.store import Batch
from reader.tuning import tuning

_log = logging.getLogger("pixpack")
# Idle buffers of a level: of two batches, each in parts for some threads.
_KEPT = 8
# The key of the masks' pool, beside the factors of levels.
_MASKS = 0
# One that is read, one that is taken from, and one whose last batch may be transformed while the first of the next begins.
_CHUNKS = 3


def may_read_levels(dataset: MemmapDataset, residency: object, transform: object) -> bool:
    """Say whether crops of a transform can read levels: on the host, as the first step; of several stores those that all have."""
    store, manifest = dataset.opened_store, dataset.manifest
    if residency == "gpu" or not begins_with_crop(transform):
        return False
    # masks behind the pixels of their rows are read without them only from raw files
    if manifest.has_own_masks and not (store.table.is_raw and store.at_url is None):
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
    """Reads the rows of a dataset's store, or of one of its levels: a factor says by what their sides are divided.

    own: the rows of the store. factors: of the levels, (2,) or (2, 4).

    Raises:
        StoreError: a level is none of this store any more.
    """

    def __init__(self, own: HostRows) -> None:
        self.dataset = dataset = own.dataset
        store = dataset.opened_store
        self.factors = store.levels
        # by level: memory of rows whose crops are done is used again
        self._pools = defaultdict[int, FittingPool](lambda: FittingPool(keep=_KEPT, most=math.inf))
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
        pieces = tuple(piece for reads in each for piece in reads.pieces)
        return dataclasses.replace(each[0], size_bytes=size, missing_bytes=missing, pieces=pieces)

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
        batch, copies = store.begin(rows, place, self._pools[factor].lease)
        if copies is not None:
            copies.wait()
        return batch

    def masks(self, rows: Rows, places: Sequence[Place] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uint8[T] that holds the masks of rows of the store, and where each begins, int64[B]; places: see `read`."""
        spans = self.mask_spans(rows)
        located = bytes_of(self._place(1, spans, places), spans, self._pools[_MASKS].lease)
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

    def levels_to_read(self) -> set[int]:
        """Return the levels that are read ahead of a pass.

        From a URL and past the page cache all, and else those of which most of the file is not in it.
        """
        if self._on_host[1].copy is not None or not system.has_preadv():
            return set()
        if any(store.at_url for store in self.stores.values()):
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


def _opened(store: OpenedStore, factor: int) -> OpenedStore:
    """Open a level of a store, where that is: on this machine, or at a URL through the same cache; of several stores, of each."""
    if isinstance(store, JoinedStores):
        return store.with_stores([_opened(part, factor) for part, _ in store.parts])
    if (remote := store.at_url) is None:
        folder = level_path(store.path, factor)
        level = OpenedStore(folder)
    else:
        below = remote.below(level_name(factor), share=factor**2)
        level, folder = OpenedStore(below.root, below), below.folder.inside
    # its rows go with the targets of the store: another one may have taken the store's name since that was opened
    content = (folder / MANIFEST).read_bytes()
    listed = store.manifest.files[f"{level_name(factor)}/{MANIFEST}"].digest
    if listed != f"sha256:{hashlib.sha256(content).hexdigest()}" or level.manifest.digest.encode() not in content:
        where = store.remote or store.path
        raise StoreError(
            f"{where}/{level_name(factor)} was packed again since {where} was opened. Open the dataset again."
        )
    if not store.given_id:
        return level
    # targets that a user gave, where stores are joined that are alike by them
    m, rows = store.manifest, np.arange(store.manifest.rows)
    manifest = dataclasses.replace(
        level.manifest, target_kind=m.target_kind, target_count=m.target_count, classes=m.classes
    )
    return level.with_columns(manifest, store.columns(rows, ["targets"]))


class _LevelCrop(Protocol):
    """Draws the boxes of a crop that reads levels."""

    def levels(self, rows: LevelRows, batch: Batch) -> torch.Tensor:
        """Return the level of each row of a batch."""
        ...


class LevelsAhead(Place):
    """Reads levels ahead of a pass: what the crops of its steps will ask for, which `of_level` and `masks` then give them.

    Batches have no pixels before a crop.

    Args:
        transform: whose first step is a crop that draws the boxes, with the size that it has in the pass.
        plan: of the pass.
    """

    def __init__(self, levels: LevelRows, transform: object, plan: EpochPlan) -> None:
        self._levels, self._crop = levels, cast(_LevelCrop, first_step(transform))
        self._epoch, self._seed = plan.number, plan.seed_value
        # gives where the chunk of a position must end, since the rows behind it are elsewhere
        self._window_end = plan.order().window_end
        self.factors, self.content = levels.factors, levels.content
        self._has_masks = levels.dataset.manifest.has_own_masks
        # by level: its chunks have about as many bytes
        self._pools = defaultdict[int, FittingPool](lambda: FittingPool(keep=_CHUNKS))
        self._read_levels: set[int] = set()
        self._files: dict[int, RawReader] = {}
        self._chunks: deque[_StepGroup] = deque(maxlen=_CHUNKS)
        room = system.available_bytes() * AHEAD_SHARE
        self._most = max(1, int(min(tuning().window_ahead_bytes, room)) // levels.dataset.manifest.row_bytes)

    def of_level(self, batch_rows: torch.Tensor, factor: int) -> Iterator[tuple[torch.Tensor, Batch]]:
        """Yield rows as `LevelRows.read` returns them, by the store that they are of, each with their positions: int64[...].

        May be called by several threads.
        """
        rows = batch_rows.numpy()
        for at in self._levels.stores[factor].by_store(rows):
            yield torch.from_numpy(at), self._levels.read(rows[at], factor, self._places(factor))

    def masks(self, batch_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masks as `LevelRows.masks` does; may be called by several threads."""
        return self._levels.masks(batch_rows.numpy(), self._places(1))

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps; for one thread."""
        self._read_levels = self._levels.levels_to_read()
        if not self._read_levels:
            yield from steps
            return
        chunks = map(self._begin, cut_in_chunks(steps, _rows_of, self._window_of, self._most))
        following = next(chunks, None)
        while (current := following) is not None:
            # the next chunk is read while this one is taken from
            following = next(chunks, None)
            # here, by one thread: crops of one batch run on several, and copies wake one that waits
            current.wait()
            yield from current.steps

    def close(self) -> None:
        """End the reads."""
        for chunk in self._chunks:
            chunk.cancel()
        self._chunks.clear()
        for file in self._files.values():
            file.close()

    def _begin(self, steps: list[Steps]) -> _StepGroup:
        """Begin the reads of a chunk."""
        self._chunks.append(chunk := _StepGroup(steps))
        planned, masked = self._planned(steps), None
        if self._has_masks:
            # also the masks of rows whose pixels a level has
            masked = np.unique(np.concatenate([*planned.values()]))
            planned.setdefault(1, masked[:0])
        for factor in self._read_levels & planned.keys():
            store = self._levels.stores[factor]
            spans = store.spans(planned[factor])
            if factor == 1 and masked is not None:
                masks = self._levels.mask_spans(masked)
                spans = joined([spans, masks])
            if (remote := store.at_url) is None:
                chunk.parts[factor] = Chunk(self._file(factor), spans, self._pools[factor].lease)
            else:
                remote.prefetch(blocks_of(remote, spans))
        return chunk

    def _window_of(self, steps: Steps) -> int:
        return self._window_end(steps.starts[0])

    def _places(self, factor: int) -> list[Chunk]:
        """Return the chunks whose rows of a level are there: of those that are read, one thread waits."""
        parts = [chunk.parts.get(factor) for chunk in tuple(self._chunks)]
        return [part for part in parts if part is not None and part.reads.are_done]

    def _planned(self, steps: list[Steps]) -> dict[int, Rows]:
        """Return the rows that the crops of some steps will ask for, sorted and each once, by the level."""
        by_level: dict[int, list[Rows]] = {}
        for group in steps:
            for rows, start in zip(group.batches, group.starts, strict=True):
                # as the loader writes it on the batch that the crop gets
                drawn = self._levels.stores[1].without_pixels(rows)
                batch = stamped(drawn, epoch=self._epoch, position=start, seed=self._seed)
                factors = self._crop.levels(self._levels, batch).numpy()
                for factor in np.unique(factors).tolist():
                    by_level.setdefault(factor, []).append(rows[factors == factor])
        return {factor: np.unique(np.concatenate(rows)) for factor, rows in by_level.items()}

    def _file(self, factor: int) -> RawReader:
        if factor not in self._files:
            store = self._levels.stores[factor]
            self._files[factor] = open_raw(store.pixel_paths(), store.bases, past_cache=self._levels.past_cache)
        return self._files[factor]


class _StepGroup:
    """Holds steps whose rows are read together; parts: by the level."""

    def __init__(self, steps: list[Steps]) -> None:
        self.steps = steps
        self.parts: dict[int, Chunk] = {}

    def wait(self) -> None:
        """Wait for the reads; raises what they raised."""
        for part in self.parts.values():
            part.wait()

    def cancel(self) -> None:
        """End the reads."""
        for part in self.parts.values():
            part.cancel()


def _rows_of(steps: Steps) -> int:
    return sum(map(len, steps.batches))
