"""Runs one pass over a loader's batches in the caller's thread: takes what the feeder prepared, and finishes what it left.

Knows where the pass is; never which rows come, nor where they are read from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from reader.loading.finish import Finish, Unfinished, Versions
from reader.loading.prefetch import Claim, Feed, Group, LoopItem, without_thread
from reader.planning.epochs import Progress

_NO_GROUPS: Iterator[Group] = iter(())


class Pass(NamedTuple):
    """The parts of a pass.

    progress: where it begins, and the plan of its epoch; kept up to date.
    source: makes the groups, in a thread of its own where prefetch is not 0.
    finish: what is left to do with each batch.
    """

    progress: Progress
    source: Callable[[Claim], Iterator[Group]]
    finish: Finish


class Iteration:
    """Iterates over the batches that the feeder prepares in one pass. When it is collected, its thread ends.

    Args:
        first: the pass.
        feeds: has the thread's feed in it while it runs, for who closes the loader.
    """

    def __init__(
        self,
        first: Pass,
        *,
        prefetch: int,
        feeds: set[Feed[LoopItem]],
    ) -> None:
        self._prefetch, self._feeds = prefetch, feeds
        self._open(first)

    def _open(self, opened: Pass) -> None:
        progress, source, finish = opened
        feed, groups, group = None, iter(list[Group]()), deque[LoopItem]()
        if not self._prefetch:
            groups = source(without_thread)
        else:
            feed = Feed(source, self._prefetch, self._feeds)
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
        # only now, and no call from here on, so no Ctrl-C: a batch that it keeps from the loop comes again
        del self._group[0]
        self._progress.position, self._progress.is_over = position, is_over
        return item

    def __len__(self) -> int:
        return self._plan.steps_left(self._plan.position)

    def _end(self) -> None:
        """Give nothing more, as after an error in the thread."""
        feed = self._feed
        # no call between these, so no Ctrl-C
        self._failed, self._feed, self._source, self._group = True, None, _NO_GROUPS, None
        if feed is not None:
            feed.stop()
