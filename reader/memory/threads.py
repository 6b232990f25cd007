"""Copies, reads and unpacking that plain threads do while the caller continues, who waits for them later.

One thread can nearly fill the bandwidth of memory, so what counts is that copies follow each other without a gap: those of the
next batch begin before those of this one are waited for. Threads of OpenMP cannot do that, and all of them wait where
another program holds the core of one.

Queues are SimpleQueues, and threads are started without a lock of Python's: Ctrl-C may come between any two instructions of a
caller, see `prefetch.py`, and what it left locked here would stop every loader of the process.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue


class Copies:
    """Pieces of work that threads do, such as copying rows."""

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._outcomes: list[BaseException | None] = []
        self._completed: SimpleQueue[None] = SimpleQueue()
        # set where one has failed, or nobody wants them any more: pieces that did not start are skipped
        self.is_canceled = False
        self._process = os.getpid()

    @property
    def are_done(self) -> bool:
        """Say whether each piece is done, or has failed."""
        return len(self._outcomes) >= self._pieces

    def report(self, error: BaseException | None) -> None:
        """Count a piece that is done, or has failed."""
        if error is not None:
            self.is_canceled = True
        self._outcomes.append(error)
        # whoever waits is woken once, by the last; two that both see all there wake it twice, which nobody feels
        if self.are_done:
            self._completed.put(None)

    def wait(self) -> None:
        """Wait for all of them; raises what one has raised."""
        if not self.are_done:
            self._completed.get()
        for error in self._outcomes:
            if error is not None:
                raise error

    def cancel(self) -> None:
        """Skip the pieces that did not start, and wait for the others."""
        self.is_canceled = True
        # a process that was forked has none of the threads
        if not self.are_done and os.getpid() == self._process:
            self._completed.get()


# For one thread to do: a call, its arguments, and what it is a part of.
_PieceCall = tuple[Callable[..., object], tuple[object, ...], Copies]


def on_threads(kind: str, threads: int, call: Callable[..., object], each: Sequence[tuple[object, ...]]) -> Copies:
    """Begin call(*arguments) for each, on threads that all work of a kind shares; where none may be started it is done here."""
    copies = Copies(len(each))
    queue = _queue(kind, threads)
    for arguments in each:
        if queue is None:
            copies.report(_outcome(call, arguments, copies))
        else:
            queue.put((call, arguments, copies))
    return copies


# Values of a thread that stay from one piece of work to the next. They are freed before the thread counts as ended: if torch
# frees them later, while the process exits, that ends in std::terminate, as the thread may not take the interpreter again.
kept = threading.local()

# -- the threads

# (kind, number of threads) -> what they wait for; those that were asked for once stay
_queues: dict[tuple[str, int], SimpleQueue[_PieceCall | None]] = {}
_ended: SimpleQueue[None] = SimpleQueue()
_at_exit = False


def _queue(kind: str, threads: int) -> SimpleQueue[_PieceCall | None] | None:
    """Return what so many threads take pieces from; None where no thread may be started."""
    if _at_exit or (kind, threads) in _queues:
        return None if _at_exit else _queues[kind, threads]
    queue: SimpleQueue[_PieceCall | None] = SimpleQueue()
    started = 0
    with contextlib.suppress(RuntimeError):  # a limit of this user's, or of the container
        while started < threads:
            _thread.start_new_thread(_serve, (queue,))
            started += 1
    # known only now: an interrupt before this leaves threads without work, the other way round work without threads
    known = _queues.setdefault((kind, threads), queue) if started else None
    if known is not queue:
        _end(queue, started)
    return known


def _serve(queue: SimpleQueue[_PieceCall | None]) -> None:
    while (piece := queue.get()) is not None:
        copies, error = piece[2], _outcome(*piece)
        del piece  # before the caller continues: then nothing here holds its batch
        copies.report(error)
        del copies, error
    let_go()
    _ended.put(None)


def let_go() -> None:
    """Free what this thread keeps."""
    kept.__dict__.clear()


def _outcome(call: Callable[..., object], arguments: tuple[object, ...], copies: Copies) -> BaseException | None:
    """Do a piece, unless nobody wants it any more; returns what it raised."""
    try:
        if not copies.is_canceled:
            call(*arguments)
    except BaseException as e:
        return e
    return None


def _end(queue: SimpleQueue[_PieceCall | None], threads: int) -> None:
    for _ in range(threads):
        queue.put(None)
    for _ in range(threads):
        _ended.get()


def _end_all() -> None:
    global _at_exit
    _at_exit = True
    for (_, threads), queue in list(_queues.items()):
        _end(queue, threads)


# a process that is forked has none of the threads
os.register_at_fork(after_in_child=_queues.clear)
# threading's own hook, see `prefetch.py`, whose feeders it ends first: what is registered later is called earlier
threading._register_atexit(_end_all)  # type: ignore[attr-defined]
