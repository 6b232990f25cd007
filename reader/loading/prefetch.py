"""Runs a thread that works ahead, and the bounded queue between it and the caller; nothing here waits without a way out.

Ctrl-C may come behind any call of the caller's thread, and where a function or the next round of a loop begins. With a lock of
Python's it can come while the lock is taken, and nobody will release it; `SimpleQueue` does each step completely, or not at
all, and may be used while objects are collected. What a call returns can be lost to Ctrl-C: so queues carry tokens alone, and
a group stays where it is until the caller has emptied it.
Where Python code runs because an object is collected Ctrl-C is lost: so a thread takes itself off every list, and only compiled
code asks it to end when an iterator is collected.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from reader.memory.threads import let_go
from reader.profiling import stage
from reader.tuning import tuning

_T = TypeVar("_T")

# An item of the loop, with the global position after it.
LoopItem = tuple[object, int]
Group = list[LoopItem]
# Takes room for one more group: claim(True) waits for it, claim(False) says whether there was some.
Claim = Callable[[bool], bool]


class _End:
    """Marks the end of the queue, behind the last group."""


class _StoppedError(Exception):
    """Says that the caller wants no more."""


class Feed(Generic[_T]):
    """Fills a bounded queue from a thread. Every wait ends when the other side stops, fails or is done.

    Waits carry the profiler's name pixpack.wait; what need not wait is not named.

    source: makes groups of items; has room for the first, and claims it for each one more.
    among: has the feed in it while its thread runs.
    """

    def __init__(
        self,
        source: Callable[[Claim], Iterator[Iterable[_T]]],
        depth: int,
        among: set[Feed[_T]] | None = None,
    ) -> None:
        # groups, then an error if one ended the work, then the end mark, which stays
        self._ready: deque[deque[_T] | BaseException | type[_End]] = deque()
        # has a token once there is something new
        self._wake: SimpleQueue[object] = SimpleQueue()
        # a token for each group that may be prepared while another waits to be taken
        self._room: SimpleQueue[object] = SimpleQueue()
        for _ in range(depth - 1):
            self._room.put(None)
        self._depth, self._is_asked = depth, False
        # holds an item once the thread must end
        self._stop: SimpleQueue[object] = SimpleQueue()
        self._owner: list[weakref.ref[object]] = []
        self._has_started = False
        self._beginning: SimpleQueue[None] = SimpleQueue()
        self._process = os.getpid()
        self._lists: list[set[Any]] = [_live] if among is None else [_live, among]
        thread = threading.Thread(target=self._fill, args=([source],), name="pixpack-feeder", daemon=True)
        # not the thread, which lives while it runs: Python code runs when it is collected
        self._thread = weakref.ref(thread)
        for feeds in self._lists:
            feeds.add(self)
        thread.start()

    def end_with(self, owner: object) -> None:
        """Ask the thread to end when an object is collected; the thread holds the feed, and the feed must not hold that."""
        self._owner = [weakref.ref(owner, queue.put) for queue in (self._room, self._stop)]

    def first(self) -> deque[_T] | None:
        """Return the first group that has items, or None at the end; raises here what the thread raised.

        The caller takes items from the group. While some are left it is the first, also after Ctrl-C.
        """
        if os.getpid() != self._process:
            raise RuntimeError(
                "this iterator belongs to the process that was forked. Iterate over the loader again here."
            )
        if not self._is_asked:
            # nothing comes in between, as below
            self._is_asked = True
            self._room.put(None)
        while not self._is_stopped:
            ready = self._ready  # another one once the feed is stopped
            if not ready:
                _wait_for(self._wake)
                continue
            group = ready[0]
            if isinstance(group, deque):
                if group:
                    return group
                # in this order: nothing comes in between
                del ready[0]
                self._room.put(None)
                continue
            if not isinstance(group, BaseException):
                return None
            del ready[0]
            try:
                raise group
            finally:
                del group  # else error and frame hold each other, and with them the batch that failed
        raise RuntimeError("the loader was closed while it was iterated. Iterate over it again.")

    @property
    def is_alive(self) -> bool:
        """Say whether the thread is still running."""
        thread = self._thread()
        return thread is not None and thread.is_alive()

    @property
    def _is_stopped(self) -> bool:
        return not self._stop.empty()

    def stop(self, *, wait: bool = False) -> None:
        """Ask the thread to end, and drop queued items."""
        self._stop.put(None)
        self._room.put(None)
        thread = self._thread()
        if wait and thread is not None and thread is not threading.current_thread():
            if not self._has_started:  # an interrupt may have cut its start short: it may come yet
                with contextlib.suppress(Empty):
                    self._beginning.get(timeout=tuning().feeder_start_seconds)
            if self._has_started:
                thread.join()
        self._ready = deque()
        self._wake.put(None)  # for who waits in another thread

    def _claim(self, wait: bool) -> bool:
        if not wait and self._room.empty():
            return False
        _wait_for(self._room)
        if self._is_stopped:
            raise _StoppedError
        return True

    def _put(self, what: deque[_T] | BaseException | type[_End]) -> None:
        self._ready.append(what)
        # whoever takes the one that is there looks at what is ready only then
        if self._wake.empty():
            self._wake.put(None)

    def _fill(self, sources: list[Callable[[Claim], Iterator[Iterable[_T]]]]) -> None:
        """Do the work of the one source, and let it go before the end shows.

        It may hold the last reference to a loader's buffers, which no thread may free behind its end, see `memory.threads.kept`.
        """
        self._has_started = True
        self._beginning.put(None)
        try:
            if self._is_stopped:
                return
            for group in sources.pop()(self._claim):
                self._put(deque(group))
                del group
        except _StoppedError:
            pass
        except BaseException as e:  # it belongs to the caller: `first` raises it
            self._put(e)
        finally:
            let_go()
            self._put(_End)
            for feeds in self._lists:
                feeds.discard(self)


@dataclass(frozen=True)
class InProgress(Generic[_T]):
    """Gives the groups of work in progress: iterating waits for them, unless they are complete already."""

    groups: Iterator[_T]
    is_complete: bool = False


def without_thread(wait: bool) -> bool:
    """Claim nothing, for a caller that takes each group as it comes: no group begins before the one before it was taken."""
    return wait


def overlapped(works: Iterator[InProgress[_T]], claim: Claim) -> Iterator[_T]:
    """Yield the groups of works, in order: the next begins before one is waited for, where there is room for both.

    works: taking one begins it.
    """
    under_way: deque[InProgress[_T]] = deque()
    error: BaseException | None = None
    while error is None:
        try:
            under_way.append(next(works))
        except StopIteration:
            break
        except BaseException as e:
            error = e  # raised after the items that were started before
            break
        while under_way and (len(under_way) > 1 or under_way[0].is_complete or not claim(False)):
            yield from under_way.popleft().groups
        if not under_way:
            claim(True)
    while under_way:
        yield from under_way.popleft().groups
    if error is not None:
        try:
            raise error
        finally:
            del error  # else error and frame hold each other, and with them the batch that failed


def _wait_for(queue: SimpleQueue[_T]) -> _T:
    if not queue.empty():
        return queue.get()
    with stage("wait"):
        return queue.get()


_live: set[Feed[object]] = set()


def _stop_all() -> None:
    """Join feeders before the interpreter tears torch down under them."""
    for feed in list(_live):
        feed.stop(wait=True)


# threading's own hook runs before daemon threads are frozen, atexit's only after
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
