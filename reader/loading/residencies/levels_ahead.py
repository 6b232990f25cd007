"""Rows of levels, read before crops ask for them: from the disk, or blocks of a store at a URL.

Which level a row is read from follows from its box, which follows from the epoch and the row's position in it; so reads may
begin before the crop asks. What was not read ahead is read when it is asked for: no batch depends on the plan.
"""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Protocol, cast

import numpy as np
import torch

from reader import system
from reader.buffers import FittingPool
from reader.dataset.opened_store import OpenedStore
from reader.epoch import stamped
from reader.format.manifest import PAGE_BYTES
from reader.loading.finish import first_step
from reader.loading.host_batches import AHEAD_SHARE, without_pixels
from reader.loading.residencies.levels import HeldLevel, LevelRows
from reader.loading.schedule import Schedule
from reader.memory.gather import Copies, on_threads
from reader.memory.joined_file import open_rows
from reader.memory.row_file import READERS, RowMemory, RowReader, plan_reads, tasks
from reader.profiling import stage
from reader.remote.presence import RemoteStore
from reader.rows import Rows, Steps
from reader.store import Batch
from reader.tuning import tuning

# One that is read, one that is taken from, and one whose last batch may be transformed while the next one's first is begun.
_CHUNKS = 3


def levels_in_pass(
    levels: LevelRows | None, schedule: Schedule, transform: object, epoch: int, steps: Iterator[Steps]
) -> tuple[LevelsAhead | None, Iterator[Steps]]:
    """Begin a pass: return what its crops read from, None where there are no levels, and the steps, for which that reads ahead.

    transform: with the size that its crops have in the pass.
    """
    if levels is None:
        return None, steps
    ends = schedule.window_end(epoch) if schedule.order == "block" and schedule.nodes is None else None
    draw = functools.partial(stamped, epoch=epoch, seed=schedule.seed)
    ahead = LevelsAhead(levels, cast(_LevelCrop, first_step(transform)), draw, ends)
    return ahead, ahead.ahead(steps)


class _LevelCrop(Protocol):
    """A crop that reads levels."""

    def levels(self, rows: LevelRows, batch: Batch) -> torch.Tensor:
        """Return the level of each row of a batch."""
        ...


class LevelsAhead:
    """One pass over levels: `ahead` gives its steps, reading what their crops will ask for; `read` gives what was read.

    Args:
        crop: what draws the boxes.
        draw: writes epoch and seed on a batch, as the loader does.
        window_end: of a position, where a chunk must end, since the rows behind it are elsewhere; None: nowhere.
    """

    def __init__(
        self, levels: LevelRows, crop: _LevelCrop, draw: Callable[..., Batch], window_end: Callable[[int], int] | None
    ) -> None:
        self._levels, self._crop, self._draw, self._window_end = levels, crop, draw, window_end
        self.factors, self.content = levels.factors, levels.content
        self._has_masks = levels.dataset.manifest.has_own_masks
        # of each level: chunks of one have about as many bytes
        self._pools = defaultdict[int, FittingPool](lambda: FittingPool(keep=_CHUNKS, has_room=True))
        self._read_ahead: set[int] = set()
        self._files: dict[int, RowReader] = {}
        self._chunks: deque[_StepGroup] = deque(maxlen=_CHUNKS)
        room = system.available_bytes() * AHEAD_SHARE
        self._most = max(1, int(min(tuning().window_ahead_bytes, room)) // levels.dataset.manifest.row_bytes)

    def read(self, batch_rows: torch.Tensor, factor: int) -> Batch:
        """Return rows as `LevelRows.read` does; may be called by several threads."""
        rows = self._levels.rows_of(batch_rows)
        for chunk in tuple(self._chunks):
            if (held := chunk.held(rows, factor)) is not None:
                return self._levels.read_from(held, rows, factor)
        return self._levels.read(rows, factor)

    def masks(self, batch_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return masks as `LevelRows.masks` does; may be called by several threads."""
        rows = self._levels.rows_of(batch_rows)
        for chunk in tuple(self._chunks):
            if (held := chunk.held_masks(rows)) is not None:
                return self._levels.masks_from(held, rows)
        return self._levels.masks(rows)

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps; for one thread."""
        self._read_ahead = self._levels.read_ahead()
        if not self._read_ahead:
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
            planned, masked = self._planned(chunk.steps), None
            if self._has_masks:
                # those of rows that are read from a level too
                masked = np.unique(np.concatenate([*planned.values()]))
                planned.setdefault(1, masked[:0])
            for factor in self._read_ahead & planned.keys():
                rows, store, of_masks = planned[factor], self._levels.stores[factor], masked if factor == 1 else None
                if store.is_local:
                    units = self._levels.units_of(rows, factor, of_masks)
                    chunk.parts[factor] = _LevelReads(rows, of_masks, units, self._file(factor), self._pools[factor])
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
            unit_bytes, past_cache = store.manifest.row_bytes, self._levels.past_cache
            if store.manifest.is_flat:
                unit_bytes = PAGE_BYTES
            self._files[factor] = open_rows(store.opened("pixels"), unit_bytes, past_cache=past_cache)
        return self._files[factor]


class _StepGroup:
    """Steps whose rows are read together."""

    def __init__(self, steps: list[Steps]) -> None:
        self.steps = steps
        self.parts: dict[int, _LevelReads] = {}

    def held(self, rows: Rows, factor: int) -> HeldLevel | None:
        """Return what holds these rows of a level; None: they are not all here."""
        part = self.parts.get(factor)
        return part.held() if part is not None and part.has(rows) else None

    def held_masks(self, rows: Rows) -> HeldLevel | None:
        """Return what holds the masks of these rows; None: they are not all here."""
        part = self.parts.get(1)
        return part.held() if part is not None and part.has_masks(rows) else None

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
    """Rows of one level that are read together, or masks of rows; all int64[...], sorted and each once.

    units: of the file, that hold them.
    """

    def __init__(self, rows: Rows, masked: Rows | None, units: Rows, file: RowReader, pool: FittingPool) -> None:
        self._rows, self._masked, self._units = rows, masked, units
        reads, self._slots, count = plan_reads(units, file.row_bytes, file.align)
        self._memory = RowMemory(count, file.row_bytes, lease=pool.lease)
        each = [(self._memory.bytes, group) for group in tasks(reads, file.row_bytes)]
        self.reads: Copies = on_threads("read", READERS, file.read, each)

    def has(self, rows: Rows) -> bool:
        """Whether all of these rows are among them."""
        return _are_among(rows, self._rows)

    def has_masks(self, rows: Rows) -> bool:
        """Whether the masks of all of these rows are among them."""
        return self._masked is not None and _are_among(rows, self._masked)

    def held(self) -> HeldLevel | None:
        """Return where units are; None: they are not there yet."""
        if not self.reads.are_done:
            return None
        return self._memory.rows, lambda units: self._slots[np.searchsorted(self._units, units)]


def _are_among(rows: Rows, held: Rows) -> bool:
    """Whether all rows are among those that are held, sorted."""
    return bool(len(held)) and bool((held[np.searchsorted(held, rows).clip(max=len(held) - 1)] == rows).all())


def _blocks_of(store: OpenedStore, remote: RemoteStore, rows: Rows) -> list[int]:
    """Return the blocks of a store at a URL that hold rows."""
    begins, sizes = store.file_extents(rows)
    spans = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
    return sorted({block for span in spans for block in remote.folder.blocks_of(*span)})
