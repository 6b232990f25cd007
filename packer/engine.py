"""Local worker processes: keep them busy, keep blocks in order, replace a worker that dies or stalls.

Knows processes and pipes; what a block is made of is `worker.py`'s, what becomes of a finished one is the caller's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from packer.worker import BlockWorker, Job, Result, Task

# Blocks a worker may hold: one being decoded, one queued so that it never waits for the parent, two waiting their turn.
_DEPTH = 4
_POLL_SECONDS = 0.25
# A killed process that hangs in the kernel (a dead NFS server) is left behind rather than waited for.
_JOIN_SECONDS = 5.0
_MAX_IDLE_DEATHS = 3


class EngineError(RuntimeError):
    """The workers cannot do the work at all; says why."""


class _RowsChanged(Exception):
    """A block decoded again has another number of rows: its source changed. Blocks after it stand in the wrong place."""


@dataclass
class _Worker:
    process: Any
    pipe: Any
    in_flight: Any
    tasks: dict[int, Task] = field(default_factory=dict)
    last_count: int = -1
    last_change: float = 0.0


class LocalEngine:
    """Runs tasks on processes of this machine and yields results in block order, written to the file.

    Args:
        job: what all blocks have in common.
        workers: number of processes.
        timeout: seconds that one image may take before its worker is killed.
        inherited: open things of the caller that a forked worker must close, its lock among them.
    """

    def __init__(self, job: Job, *, workers: int, timeout: float, inherited: Sequence[Any] = ()) -> None:
        self._job, self._count, self._timeout, self._inherited = job, workers, timeout, inherited
        self._context = start_context()
        self._workers: list[_Worker] = []
        self._failures: dict[int, int] = {}
        self._idle_deaths = 0

    def run(self, tasks: Iterator[Task], first_row: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield each block's result once its rows are written, in order.

        Args:
            tasks: in block order.
            first_row: where the first block's rows go.
            ready: called between events, so that the caller can report or stop (by raising).
        """
        self._source, self._next_row = tasks, first_row
        self._begin([])
        while self._order:
            try:
                for worker, message in self._events():
                    self._receive(worker, *message)
            except _RowsChanged:
                again = [self._order[block] for block in self._order]
                self.close()
                self._begin(again)
            ready()
            while self._order and (block := next(iter(self._order))) in self._written:
                result = self._decoded.pop(block)
                for held in (self._order, self._placed):
                    held.pop(block)
                self._written.discard(block)
                yield result

    def _begin(self, tasks: list[Task]) -> None:
        """Start workers on these tasks, then on the rest of the source."""
        self._queue: deque[Task] = deque(tasks)
        if tasks:
            self._next_row = min(self._placed.values(), default=self._next_row)
        # blocks under way, in order; what is known of them; where they go; those that are there
        self._order: dict[int, Task] = {}
        self._decoded: dict[int, Result] = {}
        self._placed: dict[int, int] = {}
        self._written: set[int] = set()
        self._workers = []
        for _ in range(self._count):
            self._workers.append(self._start())
        for worker in self._workers:
            self._feed(worker)

    def close(self) -> None:
        """End all workers now; returns when none is left."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join(_JOIN_SECONDS)
            worker.pipe.close()
        self._workers = []

    # -- events

    def _events(self) -> Iterator[tuple[_Worker, tuple[Any, ...]]]:
        by_pipe: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers}
        ready: list[Any] = multiprocessing.connection.wait(list(by_pipe), timeout=_POLL_SECONDS)
        for pipe in ready:
            worker = by_pipe[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                worker.process.join(_POLL_SECONDS)  # so that its exit code is known
                self._replace(worker, f"its worker ended ({_exit_reason(worker)})")
                continue
            yield worker, message
        for worker in list(self._workers):
            if self._stalled(worker):
                self._replace(worker, f"decoding it took more than {self._timeout:g} seconds (--timeout)")

    def _receive(self, worker: _Worker, kind: str, *content: Any) -> None:
        if kind == "failed":
            raise content[0]
        if kind == "decoded":
            result: Result = content[0]
            if result.block in self._placed and result.rows != self._decoded[result.block].rows:
                raise _RowsChanged
            self._decoded[result.block] = result
            self._place()
        else:
            worker.tasks.pop(content[0])
            self._written.add(content[0])
            self._idle_deaths = 0
        self._feed(worker)

    def _place(self) -> None:
        """Give every decoded block its first row as soon as all blocks before it are counted."""
        for block in self._order:
            if block not in self._decoded:
                return
            if block not in self._placed:
                self._placed[block] = self._next_row
                self._next_row += self._decoded[block].rows
                owner = next(worker for worker in self._workers if block in worker.tasks)
                _send(owner, ("write", block, self._placed[block]))

    def _feed(self, worker: _Worker) -> None:
        """Hand the worker blocks until it holds its share."""
        while len(worker.tasks) < _DEPTH:
            task = self._queue.popleft() if self._queue else next(self._source, None)
            if task is None:
                return
            self._order[task.block] = task
            worker.tasks[task.block] = task
            _send(worker, ("decode", task))
            if task.block in self._placed:
                _send(worker, ("write", task.block, self._placed[task.block]))

    # -- processes

    def _start(self) -> _Worker:
        parent, child = self._context.Pipe()
        in_flight = self._context.RawArray("q", [-1, 0])
        # a forked child holds copies of the other pipes; while they are open, no worker would see the parent die
        others = [*self._inherited, *(worker.pipe for worker in self._workers), parent]
        forked = self._context.get_start_method() == "fork"
        process = self._context.Process(
            target=_work,
            args=(self._job, child, in_flight, others if forked else []),
            daemon=True,
            name="pixpack-worker",
        )
        with without_main():
            process.start()
        child.close()
        return _Worker(process, parent, in_flight, last_change=time.monotonic())

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Start another in place of a dead worker and give out its unfinished blocks again.

        The sample in flight is tried once more; if that costs another worker, it is rejected with the reason.
        """
        worker.process.kill()
        worker.process.join(_JOIN_SECONDS)
        worker.pipe.close()
        self._workers.remove(worker)
        index = int(worker.in_flight[0])
        if index < 0:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without getting anything done ({_exit_reason(worker)}).")
        else:
            self._failures[index] = self._failures.get(index, 0) + 1
        for task in sorted(worker.tasks.values(), key=lambda task: task.block, reverse=True):
            self._queue.appendleft(self._retried(task, index, reason))
        fresh = self._start()
        self._workers.append(fresh)
        for other in self._workers:
            self._feed(other)

    def _retried(self, task: Task, index: int, reason: str) -> Task:
        """Prepare a lost block for another worker: its rows may be placed already and then go to the same place."""
        self._written.discard(task.block)
        if task.start <= index < task.start + len(task.paths) and self._failures[index] > 1:
            return Task(task.block, task.start, task.paths, task.targets, task.refused | {index: reason})
        return task

    def _stalled(self, worker: _Worker) -> bool:
        index, count = worker.in_flight[0], worker.in_flight[1]
        now = time.monotonic()
        if index < 0 or count != worker.last_count:
            worker.last_count, worker.last_change = count, now
        return now - worker.last_change > self._timeout


def start_context() -> Any:
    """Choose how processes start: fork where it is safe (Linux, one thread), else spawn."""
    method = "spawn"
    if sys.platform == "linux" and threading.active_count() == 1:
        method = "fork"
    asked = os.environ.get("PIXPACK_START_METHOD", method)
    if asked not in multiprocessing.get_all_start_methods():
        raise EngineError(f"PIXPACK_START_METHOD is {asked!r}, expected fork or spawn.")
    return multiprocessing.get_context(asked)


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the caller's script again: workers need nothing of it.

    A spawned child runs the main module, so a script without `if __name__ == "__main__"` would pack in every child.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _drain(pipe: Any, messages: queue.SimpleQueue[Any]) -> None:
    """Take messages off the pipe at once: a parent that waits to send and a worker that waits to answer would wait for ever."""
    try:
        while True:
            messages.put(pipe.recv())
    except (EOFError, OSError):
        messages.put(None)


def silence_warnings() -> None:
    """Keep Pillow's warnings off a worker's stderr; those that matter are recorded in samples.jsonl."""
    warnings.simplefilter("ignore")


def _send(worker: _Worker, message: tuple[Any, ...]) -> None:
    # a worker that died in between is noticed by its pipe, where its blocks are given out again
    with contextlib.suppress(OSError):
        worker.pipe.send(message)


def _work(job: Job, pipe: Any, in_flight: Any, others: list[Any]) -> None:
    """Serve one pipe until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in others:
        other.close()
    silence_warnings()
    try:
        worker = BlockWorker(job, in_flight)
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_drain, args=(pipe, messages), daemon=True).start()
        while (message := messages.get()) is not None:
            kind, *content = message
            if kind == "decode":
                pipe.send(("decoded", worker.decode(content[0])))
            else:
                worker.write(*content)
                pipe.send(("written", content[0]))
    except BrokenPipeError:
        return
    except OSError as e:  # the store's disk: the whole pack has to know
        with contextlib.suppress(OSError):
            pipe.send(("failed", e))


def _exit_reason(worker: _Worker) -> str:
    code = worker.process.exitcode
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
