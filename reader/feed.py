"""A thread that works ahead, and the bounded queue between it and the caller; nothing here waits without a way out."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.profiler import record_function


class Feed:
    """A bounded queue and the thread that fills it. Every wait ends when the other side stops, fails or is done.

    Waits carry the profiler's name pixpack.wait; naming one costs 6 us, so what need not wait is not named.
    """

    def __init__(self, source: Iterator[Any], depth: int) -> None:
        self._changed = threading.Condition()
        self._groups: deque[Any] = deque()
        self._depth = depth
        self._stopped = self._done = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        _live.add(self)
        self._thread = threading.Thread(target=self._fill, args=(source,), name="pixpack-feeder", daemon=True)
        self._thread.start()

    def take(self) -> Any:
        """Return the next group, or None at the end; raises here what the thread raised."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "this iterator belongs to the process that was forked. Iterate over the loader anew here."
            )
        with self._changed:
            self._wait_until(lambda: bool(self._groups) or self._done or self._stopped)
            if self._stopped and not self._error:
                raise RuntimeError("the loader was closed while it was iterated. Iterate over it anew.")
            if self._groups:
                group = self._groups.popleft()
                self._changed.notify_all()
                return group
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def wait_until_idle(self) -> None:
        """Wait until the thread has nothing to do: the queue is full, or the thread is done."""
        with self._changed:
            self._wait_until(lambda: self._is_full() or self._done or self._stopped)

    def stop(self, *, wait: bool = False) -> None:
        """Tell the thread to end and drop what is queued."""
        with self._changed:
            self._stopped = True
            self._groups.clear()
            self._changed.notify_all()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    def _is_full(self) -> bool:
        return len(self._groups) >= self._depth

    def _wait_until(self, reached: Callable[[], bool]) -> None:
        """Wait, with the lock held, until something is so."""
        if not reached():
            with record_function("pixpack.wait"):
                self._changed.wait_for(reached)

    def _fill(self, source: Iterator[Any]) -> None:
        try:
            for group in source:
                with self._changed:
                    self._groups.append(group)
                    del group
                    self._changed.notify_all()
                    self._wait_until(lambda: self._stopped or not self._is_full())
                    if self._stopped:
                        return
        except BaseException as e:  # it belongs to the caller: `take` raises it
            self._error = e
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()


_live: weakref.WeakSet[Feed] = weakref.WeakSet()


def _stop_all() -> None:
    """Join feeders before the interpreter tears torch down under them."""
    for feed in list(_live):
        feed.stop(wait=True)


# threading's own hook runs before daemon threads are frozen, atexit's only after
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
