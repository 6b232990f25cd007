"""Runs one pass over a loader's batches in the caller's thread: takes what the feeder prepared, and finishes what it left.

Knows where the pass is; never which rows come, nor where they are read from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from reader.loading.finish import Finish, Unfinished, Versions
from reader.loading.frameworks import AccelerateState
from reader.loading.prefetch import Claim, Feed, Group, LoopItem, without_thread
from reader.planning.epochs import Progress

_NO_GROUPS: Iterator[Group] = iter(())


class Pass(NamedTuple):
    """The parts of a pass.

    progress: where it begins, and the plan of its epoch; kept up to date.
    source: makes the groups, in a thread of its own where prefetch is not 0.
    finish: what is left to do with each batch.
    stop: ends what the source waits for, when the loader is closed or the process exits.
    """

    progress: Progress
    source: Callable[[Claim], Iterator[Group]]
    finish: Finish
    stop: Callable[[], None] | None = None


class Iteration:
    """Iterates over the batches that the feeder prepares in one pass. When it is collected, its thread ends.

    Args:
        first: the pass.
        again: begins that of another epoch in its place, where that was set before a batch was taken.
        feeds: has the thread's feed in it while it runs, for who closes the loader.
    """

    def __init__(
        self,
        first: Pass,
        again: Callable[[int], Pass],
        *,
        prefetch: int,
        feeds: set[Feed[LoopItem]],
    ) -> None:
        self._again, self._prefetch, self._feeds = again, prefetch, feeds
        self._accelerate = AccelerateState()
        self._open(first)

    def _open(self, opened: Pass) -> None:
        progress, source, finish, stop = opened
        feed, groups, group = None, iter(list[Group]()), deque[LoopItem]()
        if not self._prefetch:
            groups = source(without_thread)
        else:
            feed = Feed(source, self._prefetch, self._feeds, stop)
            # an abandoned iterator is collected and ends its thread
            feed.end_with(self)
        # no call from here on, so no Ctrl-C: where it came before this, the pass is opened again
        self._feed: Feed[LoopItem] | None = feed
        self._source: Iterator[Group] = groups
        self._group: deque[LoopItem] | None = group
        self._finish, self._plan, self._failed, self._progress = finish, progress.plan, False, progress

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._progress.moved_to is not None:
            self._end()
            self._open(self._again(self._progress.moved_to))
        self._accelerate.begin()
        try:
            if self._feed is not None:
                self._group = self._feed.first()
            elif not self._group:
                group = next(self._source, None)
                self._group = None if group is None else deque(group)
        except Exception:
            self._failed = True
            raise
        except BaseException:
            # Ctrl-C while it waits for the thread does not end the epoch
            if self._feed is None:
                self._failed, self._source = True, _NO_GROUPS
            raise
        if self._group is None:
            # after an error the epoch is not over: its state stays at the batch that failed
            self._progress.finished = not self._failed
            self._accelerate.end()
            raise StopIteration
        item, position = self._group[0]
        if isinstance(item, Unfinished):
            batch = item.make()
            before = Versions(batch)
            try:
                item = self._finish.in_caller(batch, item.start, item.rows)
                self._group[0] = item, position
            except BaseException as e:
                # Ctrl-C ends the epoch too where a transform has changed the batch in place: it would change it again
                if isinstance(e, Exception) or before.have_changed():
                    self._end()
                raise
        is_over = self._plan.is_over(position)
        if self._plan.is_last(position):
            self._accelerate.last(self._plan.shared_rows(self._progress.position))
        # only now, and no call from here on, so no Ctrl-C: a batch that it keeps from the loop comes again
        del self._group[0]
        self._progress.position, self._progress.is_taken, self._progress.is_over = position, True, is_over
        return item

    def __len__(self) -> int:
        return self._plan.steps_left(self._plan.position)

    @property
    def is_empty(self) -> bool:
        """Say whether it began at the beginning of an epoch and gave no batch."""
        return not self._plan.position and not self._progress.is_taken

    def _end(self) -> None:
        """Give nothing more, as after an error in the thread."""
        feed = self._feed
        # no call between these, so no Ctrl-C
        self._failed, self._feed, self._source, self._group = True, None, _NO_GROUPS, None
        if feed is not None:
            feed.stop()
