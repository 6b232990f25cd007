"""Asks for the blocks of a store in object storage ahead, each once, in the order of an epoch.

The cache learns the order of the blocks too, so that a small one keeps what is used soonest.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch

from reader.format.filesystem import size_text
from reader.memory.places import InFile
from reader.memory.spans import Spans
from reader.order import Window
from reader.planning.orders import window_bytes
from reader.planning.plan import EpochPlan
from reader.profiling import stage
from reader.remote.presence import RemoteStore
from reader.rows import Rows, Steps
from reader.tuning import tuning

_log = logging.getLogger("pixpack")

# Asked for ahead, at most: two windows of shuffle="block", of which one is read; of several canonical nodes, two of each. They
# are in the cache, not in memory.
_AHEAD_BYTES = 512 << 20

# Returns where in the planned order of blocks a position of the epoch is.
PlanIndex = Callable[[int], int]


class RemoteAhead(InFile):
    """Fetches the blocks of an epoch in its order; what `read` fetches was asked for before. For one thread."""

    def __init__(self, plan: EpochPlan, remote: RemoteStore) -> None:
        super().__init__(remote)
        self._dataset, self._remote = plan.dataset, remote
        manifest = plan.dataset.manifest
        self._plan_index = plan_blocks(plan, remote)
        self._row_bytes = manifest.row_bytes
        # a small cache holds a window too, which is read now, and what the next epoch begins with
        current, most = window_bytes(manifest), _AHEAD_BYTES
        free = (remote.limit - current) // 2 if remote.limit else most
        self._most_bytes = max(0, min(most, free))
        # further ahead, blocks that are read before them would have to go
        self._most_rows = min(most, current + self._most_bytes)
        # with the blocks that each was the first to ask for
        self._waiting: deque[tuple[Steps, list[int]]] = deque()
        self._asked: set[int] = set()
        self._asked_bytes = self._rows_bytes = 0
        self._has_started = False
        # since the last line of the log
        self._logged, self._reading_seconds = time.monotonic(), 0.0
        self._log_seconds = tuning().cache_log_seconds
        self._read_bytes = 0
        # compressed rows are read by the threads that unpack them
        self._is_logged = plan.dataset.opened_store.table.is_raw

    def ahead(self, steps: Iterator[Steps]) -> Iterator[Steps]:
        """Yield the steps; asks for their blocks before."""
        while True:
            self._ask(steps)
            if not self._waiting:
                return
            current, blocks = self._waiting.popleft()
            self._remote.reached = self._plan_index(current.starts[0])
            self._asked.difference_update(blocks)
            self._asked_bytes -= sum(map(self._remote.folder.room, blocks))
            self._rows_bytes -= self._bytes_of(current)
            yield current

    def read(self, spans: Spans, out: torch.Tensor, places: Rows) -> None:
        """Read spans; waits for their blocks."""
        if not self._is_logged:
            super().read(spans, out, places)
            return
        start = time.monotonic()
        with stage("read"):
            super().read(spans, out, places)
        now = time.monotonic()
        self._reading_seconds += now - start
        self._read_bytes += out.nbytes
        if now - self._logged > self._log_seconds:
            self._report_progress(now)

    def close(self) -> None:
        """Ask for nothing more."""
        self._waiting.clear()

    def _report_progress(self, now: float) -> None:
        """Log what came from where since the last time."""
        seconds, fetched, folder = now - self._logged, self._remote.fetched_bytes(), self._remote.folder
        _log.info(
            "%s: %.0f MB/s from the network, %.0f MB/s to the loop, which waited or copied for %.0f %% of the time; the cache has"
            " %.0f %% of the store",
            *(self._remote.url, fetched / seconds / 1e6, self._read_bytes / seconds / 1e6),
            *(100 * self._reading_seconds / seconds, 100 * folder.present_bytes() / folder.starts[-1]),
        )
        self._logged, self._read_bytes, self._reading_seconds = now, 0, 0.0

    def _ask(self, further: Iterator[Steps]) -> None:
        """Ask for the blocks of further steps, until enough are on their way."""
        new, soon = list[int](), 0
        while not self._waiting or (self._asked_bytes < self._most_bytes and self._rows_bytes < self._most_rows):
            steps = next(further, None)
            if steps is None:
                break
            rows = np.concatenate(steps.batches)
            needed, has = blocks_of(self._remote, self._dataset.opened_store.spans(rows)), self._remote.folder.table.has
            missing = [block for block in needed if block not in self._asked and not has(block)]
            self._waiting.append((steps, missing))
            self._asked.update(missing)
            self._asked_bytes += sum(map(self._remote.folder.room, missing))
            self._rows_bytes += self._bytes_of(steps)
            new += missing
            # the blocks of the first steps come before all others
            soon = soon if self._has_started else len(new)
            self._has_started = True
        if new:
            self._remote.prefetch(new, soon=soon)

    def _bytes_of(self, steps: Steps) -> int:
        return sum(map(len, steps.batches)) * self._row_bytes


def blocks_of(remote: RemoteStore, spans: Spans) -> list[int]:
    """Return the blocks of a store that hold spans of its pixels, sorted."""
    starts = np.asarray(remote.folder.starts)
    ends = [np.searchsorted(starts, byte, side="right") - 1 for byte in (spans.begins, spans.ends - 1)]
    return list(map(int, np.unique(np.concatenate(ends))))


def plan_blocks(plan: EpochPlan, remote: RemoteStore) -> PlanIndex:
    """Inform a cache that cannot hold all in which order this epoch and the next one use its blocks, where that is known.

    Returns a function that says where in the first order the blocks of a position are; 0 where there is no order.
    """
    if remote.short_limit is None:
        return lambda position: 0
    windows, later = _blocks_of_windows(plan, remote), _blocks_of_windows(plan.next(), remote)
    if windows is None or later is None:
        return lambda position: 0
    remote.plan([[block for _, blocks in order for block in blocks] for order in (windows, later)])
    # where several windows are read at once, the first that is not read whole
    stops = [*itertools.accumulate((window.stop for window, _ in windows), max)]
    indices = [*itertools.accumulate((len(blocks) for _, blocks in windows), initial=0)]
    # in a step, the batches of lower ranks come before that of a rank
    behind = plan.cut.rank * plan.cut.batch_size
    return lambda position: indices[min(bisect.bisect_right(stops, position - behind), len(windows) - 1)]


def check_order(plan: EpochPlan) -> None:
    """Refuse a cache that is too small for an order, and warn of an order that reads much more than there is.

    Raises:
        ValueError: it cannot hold a window of blocks.
    """
    remote = plan.dataset.opened_store.at_url
    if remote is None or (limit := remote.short_limit) is None:
        return
    all_bytes = remote.folder.starts[-1]
    _check_windows(plan, remote, limit)
    if plan.orders.name in ("full", "weighted"):
        rows = max(1, remote.folder.largest // plan.dataset.manifest.row_bytes)
        times = max(1.0, rows * (1 - limit / all_bytes))
        _log.warning(
            "%s: shuffle='full' reads rows from everywhere, of which a cache of %s holds a share of %.0f %%, and fetches whole"
            " blocks: up to %.0f times the bytes of the store in an epoch. Use shuffle='block', or a cache of %s.",
            *(remote.url, size_text(limit), 100 * limit / all_bytes, times, size_text(all_bytes)),
        )


def _check_windows(plan: EpochPlan, remote: RemoteStore, limit: int) -> None:
    """Refuse a limit below what windows of blocks that are read at once take."""
    room = remote.folder.room
    first = replace(plan, number=0, position=0)
    if not first.order().is_in_blocks:
        return
    need = max((sum(map(room, blocks)) for _, blocks in _blocks_of_windows(first, remote) or ()), default=0)
    if limit < need:
        raise ValueError(
            f"cache_size is {size_text(limit)}, and a window of shuffle='block' needs up to {size_text(need)}. Give"
            " cache_size of twice that or more."
        )


def _blocks_of_windows(plan: EpochPlan, remote: RemoteStore) -> list[tuple[Window, list[int]]] | None:
    """Return the windows of an epoch that this host reads, each with the blocks of the store that hold its rows."""
    windows = plan.order().windows()
    if windows is None:
        return None
    dataset = plan.dataset
    return [
        (window, blocks_of(remote, dataset.opened_store.spans(dataset.store_rows(window.positions()))))
        for window in windows
    ]
