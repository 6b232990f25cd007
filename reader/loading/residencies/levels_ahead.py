"""Reads rows of levels before crops ask for them: from the disk, or blocks of a store at a URL.

Which level a row is read from follows from its box, which follows from the epoch and the row's position in it; so reads may
begin before the crop asks. What was not read ahead is read when it is asked for: no batch depends on the plan.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Protocol, cast

import numpy as np
import torch

from reader import system
from reader.buffers import FittingPool
from reader.epoch import stamped
from reader.loading.finish import first_step
from reader.loading.gathering import AHEAD_SHARE
from reader.loading.plan import EpochPlan
from reader.loading.remote_ahead import blocks_of
from reader.loading.residencies.levels import LevelRows
from reader.memory.raw_file import RawReader, open_raw
from reader.memory.read_ahead import Chunk
from reader.memory.spans import Spans
from reader.rows import Rows, Steps
from reader.store import Batch
from reader.tuning import tuning

# One that is read, one that is taken from, and one whose last batch may be transformed while the first of the next begins.
_CHUNKS = 3


class _LevelCrop(Protocol):
    """Draws the boxes of a crop that reads levels."""

    def levels(self, rows: LevelRows, batch: Batch) -> torch.Tensor:
        """Return the level of each row of a batch."""
        ...


class LevelsAhead:
    """Reads levels in one pass: `ahead` gives its steps and reads what their crops will ask for; `read` gives what was read.

    Args:
        transform: whose first step is a crop that draws the boxes, with the size that it has in the pass.
        plan: of the pass.
    """

    def __init__(self, levels: LevelRows, transform: object, plan: EpochPlan) -> None:
        self._levels, self._crop = levels, cast(_LevelCrop, first_step(transform))
        self._epoch, self._seed = plan.number, plan.seed_value
        # of a position, where a chunk must end, since the rows behind it are elsewhere
        self._window_end = plan.order().window_end
        self.factors, self.content = levels.factors, levels.content
        self._has_masks = levels.dataset.manifest.has_own_masks
        # of each level: chunks of one have about as many bytes
        self._pools = defaultdict[int, FittingPool](lambda: FittingPool(keep=_CHUNKS))
        self._read_ahead: set[int] = set()
        self._files: dict[int, RawReader] = {}
        self._chunks: deque[_StepGroup] = deque(maxlen=_CHUNKS)
        room = system.available_bytes() * AHEAD_SHARE
        self._most = max(1, int(min(tuning().window_ahead_bytes, room)) // levels.dataset.manifest.row_bytes)

    def read(self, batch_rows: torch.Tensor, factor: int) -> Iterator[tuple[torch.Tensor, Batch]]:
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
        self._read_ahead = self._levels.read_ahead()
        if not self._read_ahead:
            yield from steps
            return
        try:
            chunks = self._cut(steps)
            following = next(chunks, None)
            while following is not None:
                current = self._begin(following)
                # the next chunk is read while this one is taken from
                following = next(chunks, None)
                if following is not None:
                    self._begin(following)
                # here, by one thread: crops of one batch run on several, and copies wake one that waits
                current.wait()
                yield from current.steps
        finally:
            for chunk in self._chunks:
                chunk.cancel()
            self._chunks.clear()
            for file in self._files.values():
                file.close()

    def _begin(self, chunk: _StepGroup) -> _StepGroup:
        """Begin the reads of a chunk, once."""
        if chunk not in self._chunks:
            self._chunks.append(chunk)
            planned, masked = self._planned(chunk.steps), None
            if self._has_masks:
                # those of rows that are read from a level too
                masked = np.unique(np.concatenate([*planned.values()]))
                planned.setdefault(1, masked[:0])
            for factor in self._read_ahead & planned.keys():
                store = self._levels.stores[factor]
                spans = store.spans(planned[factor])
                if factor == 1 and masked is not None:
                    masks = self._levels.mask_spans(masked)
                    spans = Spans(*(np.concatenate(both) for both in zip(spans, masks, strict=True)))
                if store.is_local:
                    chunk.parts[factor] = Chunk(self._file(factor), spans, self._pools[factor].lease)
                elif store.remote is not None:
                    store.remote.ahead(blocks_of(store.remote, spans))
        return chunk

    def _places(self, factor: int) -> list[Chunk]:
        """Return the chunks whose rows of a level are there: of those that are read, one thread waits."""
        parts = [chunk.parts.get(factor) for chunk in tuple(self._chunks)]
        return [part for part in parts if part is not None and part.reads.are_done]

    def _cut(self, steps: Iterator[Steps]) -> Iterator[_StepGroup]:
        """Cut the steps into chunks: small ones first, so that the first batches need not wait for a whole one."""
        group_steps: list[Steps] = []
        count, most, window = 0, 0, 0
        for group in steps:
            end = self._window_end(group.starts[0])
            added = sum(map(len, group.batches))
            if group_steps and (end != window or count + added > most):
                yield _StepGroup(group_steps)
                group_steps, count, most = [], 0, min(2 * most, self._most)
            group_steps.append(group)
            count, most, window = count + added, most or added, end
        if group_steps:
            yield _StepGroup(group_steps)

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
