"""Threads that copy, read and decode while the caller continues, and waits for them later.

Pieces go through a SimpleQueue: passing one takes 5 us, with a ThreadPoolExecutor 17 us, which slows small batches.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import NamedTuple

# A thread's values that are kept between pieces of work.
kept = threading.local()


class Copies:
    """Pieces of work that threads do, such as copying rows."""

    def __init__(self, count: int) -> None:
        self._count, self._process, self._outcomes = count, os.getpid(), list[BaseException | None]()
        self._done: SimpleQueue[None] = SimpleQueue()
        # pieces that have not started are skipped
        self._is_canceled = False

    def do(self, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        """Run one of the pieces in a thread; the last one wakes the waiting thread."""
        self._outcomes.append(None if self._is_canceled else _raised(call, arguments))
        # if two threads see that all are done, they wake it twice, which does no harm
        if len(self._outcomes) == self._count:
            self._done.put(None)

    def wait(self) -> None:
        """Wait for all of them; raises the error of one."""
        # an interrupted wait may be repeated: either all are done, or nobody was woken yet
        if len(self._outcomes) < self._count:
            self._done.get()
        for error in self._outcomes:
            if error is not None:
                raise error

    def cancel(self) -> None:
        """Skip the pieces that have not started, and wait for the others; a process forked since then has none."""
        self._is_canceled = True
        if len(self._outcomes) < self._count and os.getpid() == self._process:
            self._done.get()


def _raised(call: Callable[..., object], arguments: tuple[object, ...]) -> BaseException | None:
    try:
        call(*arguments)
    except BaseException as e:  # raised by `wait`
        return e
    return None


class _Threads(NamedTuple):
    """Threads of one kind and their queue of pieces; None ends all."""

    pieces: SimpleQueue[tuple[Copies, Callable[..., object], tuple[object, ...]] | None]
    started: list[threading.Thread]

    def serve(self) -> None:
        """Run pieces until None arrives, and put that back for the other threads."""
        while (piece := self.pieces.get()) is not None:
            copies, call, arguments = piece
            copies.do(call, arguments)
            # a waiting thread must hold no batch
            del piece, copies, call, arguments
        self.pieces.put(None)


_threads: dict[tuple[str, int], _Threads] = {}
# a forked process has no such threads
os.register_at_fork(after_in_child=_threads.clear)


def on_threads(kind: str, most: int, call: Callable[..., object], each: Sequence[tuple[object, ...]]) -> Copies:
    """Begin call(*arguments) for each, on threads shared by all work of a kind: one more per piece, up to `most`."""
    copies = Copies(len(each))
    threads = _threads.setdefault((kind, most), _Threads(SimpleQueue(), []))
    for arguments in each:
        threads.pieces.put((copies, call, arguments))
        if len(threads.started) < most:
            thread = threading.Thread(target=threads.serve, name=f"pixpack-{kind}", daemon=True)
            thread.start()
            threads.started.append(thread)
    return copies


@atexit.register
def _end_all() -> None:
    """End the threads before the interpreter frees their memory."""
    for threads in list(_threads.values()):
        threads.pieces.put(None)
        # a thread that the program left running may start more meanwhile, which also find the end
        for thread in threads.started:
            thread.join()
