"""Local worker processes: keep them busy, keep blocks in order, replace a worker that dies or stalls.

Knows processes and pipes; what a block is made of is `worker.py`'s, what becomes of a finished one is the caller's.
"""

from __future__ import annotations

import contextlib
import logging
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
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from packer.profile import Profile, StageClock
from packer.tasks import Result, Task

# Blocks a worker may hold: one being decoded, one queued so that it never waits for the parent, two waiting their turn. It is
# given no third to decode: near the end another worker would have none.
_DEPTH, _UNDECODED = 4, 2
_POLL_SECONDS = 0.25
# A killed process that hangs in the kernel (a dead NFS server) is left behind rather than waited for.
_JOIN_SECONDS = 5.0
_MAX_IDLE_DEATHS = 3
# An image that takes longer holds up the blocks behind it, unless they go around it.
_PATIENCE_SECONDS = 1.0
# Between two images a worker only writes or begins. A disk under load or a slow start must not cost it its work, which is
# why this is longer than most a --timeout.
_BETWEEN_SECONDS = 60.0
# A worker's own exit code for MemoryError; no signal and no Python uses it.
_NO_MEMORY = 101
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Worker(Protocol):
    """What does the work in a process of its own: a block at a time, then its rows to their place."""

    def expect(self, task: Task) -> None: ...

    def decode(self, task: Task) -> Result: ...

    def write(self, block: int, first_row: int) -> None: ...


class Job(Protocol):
    """What all blocks have in common; travels to the workers."""

    def worker(self, in_flight: Any, clock: StageClock) -> Worker: ...

    def guessed_places(self, task: Task) -> int | None: ...


class Launcher(Protocol):
    """Starts workers elsewhere; each is reached by a connection, and tells its image in flight as a message, "mark"."""

    def start(self, job: Job) -> tuple[Any, Any]: ...


class EngineError(RuntimeError):
    """The workers cannot do the work at all; says why."""


class _RowsChanged(Exception):
    """A block decoded again has another number of rows: its source changed. Blocks after it stand in the wrong place."""


@dataclass
class _Worker:
    """A process and what it was given. One that stands alone has a suspect's block, gets no other, and ends with it.

    stages: its seconds of each, as of the block that it wrote last.
    """

    process: Any
    pipe: Any
    in_flight: Any
    name: str
    started: float
    stages: dict[str, float] = field(default_factory=dict)
    is_alone: bool = False
    tasks: dict[int, Task] = field(default_factory=dict)
    last_count: int = -1
    last_change: float = 0.0

    def suspect(self) -> Task | None:
        """Return the block of the image in flight, readable even after a crash; None between blocks."""
        index = self.in_flight[0]
        return next((t for t in self.tasks.values() if t.start <= index < t.start + len(t.paths)), None)

    def standstill(self, *, is_owing: bool) -> float:
        """Return for how many seconds the image in flight, or what is owed between two, has been so; to be asked often."""
        index, count = self.in_flight
        if count != self.last_count or (index < 0 and not is_owing):
            self.last_count, self.last_change = count, time.monotonic()
        return time.monotonic() - self.last_change


class LocalEngine:
    """Runs tasks on processes of this machine and yields results in block order, written to the file.

    Args:
        job: what all blocks have in common.
        workers: number of processes.
        timeout: seconds that one image may take before its worker is killed.
        inherited: open things of the caller that a forked worker must close, its lock among them.
        launcher: starts the workers, on other machines perhaps; None: processes of this one.
        clock: the caller's, told when this waits.

    `profile` has the seconds of every worker that has ended.
    """

    def __init__(
        self,
        job: Job,
        *,
        workers: int,
        timeout: float,
        inherited: Sequence[Any] = (),
        launcher: Launcher | None = None,
        clock: StageClock | None = None,
    ) -> None:
        self._launcher = launcher
        self._job, self._count, self._timeout, self._inherited = job, workers, timeout, inherited
        self._clock = clock or StageClock("serve")
        self.profile: Profile = {}
        self._context = start_context()
        self._workers: list[_Worker] = []
        self._failures: dict[int, int] = {}
        self._guessed: set[int] = set()
        self._idle_deaths = self._started = 0

    def run(self, tasks: Iterator[Task], first_row: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield each block's result once its rows are written, in order.

        Args:
            tasks: in block order.
            first_row: where the first block's rows go, in what `Result.places` counts.
            ready: called between events, so that the caller can report or stop (by raising).
        """
        self._source, self._next_row = tasks, first_row
        self._begin([])
        while self._order:
            try:
                for worker, message in self._events():
                    self._receive(worker, *message)
            except _RowsChanged:
                # those not given out yet too: what waits after an earlier change, what another worker left
                again = self._order | {task.block: task for task in self._queue}
                self.close()
                self._begin([again[block] for block in sorted(again)])
            ready()
            while self._order and (block := next(iter(self._order))) in self._written:
                result = self._decoded.pop(block)
                for held in (self._order, self._placed, self._rows):
                    held.pop(block)
                self._written.discard(block)
                yield result

    def _begin(self, tasks: list[Task]) -> None:
        """Start workers on these tasks, then on the rest of the source."""
        self._queue: deque[Task] = deque(tasks)
        if tasks:
            self._next_row = min(self._placed.values(), default=self._next_row)
        # blocks under way, in order; what is known of them; where they go and with how many rows; those that are there
        self._order: dict[int, Task] = {}
        self._decoded: dict[int, Result] = {}
        self._placed: dict[int, int] = {}
        self._rows: dict[int, int] = {}
        self._written: set[int] = set()
        self._workers = []
        self._refill()

    def close(self) -> None:
        """End all workers now; returns when none is left."""
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._end(worker)

    # -- events

    def _events(self) -> Iterator[tuple[_Worker, tuple[Any, ...]]]:
        by_pipe: dict[Any, _Worker] = {worker.pipe: worker for worker in self._workers}
        self._clock.enter("wait")
        ready: list[Any] = multiprocessing.connection.wait(list(by_pipe), timeout=_POLL_SECONDS)
        self._clock.enter("serve")
        for pipe in ready:
            worker = by_pipe[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                worker.process.join(_POLL_SECONDS)  # so that its exit code is known
                self._replace(worker, f"its worker ended ({_exit_reason(worker)})")
                continue
            worker.last_change = time.monotonic()
            if message[0] == "mark":
                worker.in_flight[:] = message[1:]
                continue
            yield worker, message
        for worker in list(self._workers):
            seconds = worker.standstill(is_owing=self._is_owing(worker))
            if worker.suspect() is None:
                if seconds > max(self._timeout, _BETWEEN_SECONDS):
                    self._replace(worker, f"it stood still for {seconds:.0f} seconds between two images")
            elif seconds > self._timeout:
                self._replace(worker, f"decoding it took more than {self._timeout:g} seconds (--timeout)")
            elif seconds > _PATIENCE_SECONDS:
                self._go_around(worker)

    def _is_owing(self, worker: _Worker) -> bool:
        """Whether a worker has something to do: a block to decode, or one to write whose place is known."""
        return any(block not in self._decoded or block in self._placed for block in worker.tasks)

    def _receive(self, worker: _Worker, kind: str, *content: Any) -> None:
        if kind == "failed":
            raise content[0]
        if kind == "decoded":
            result: Result = content[0]
            if result.block not in worker.tasks:  # given to another while this one stood still
                return
            if self._rows.get(result.block, result.places) != result.places:
                raise _RowsChanged
            self._decoded[result.block] = result
            self._place()
        else:
            block, worker.stages = content
            worker.tasks.pop(block)
            self._written.add(block)
            self._idle_deaths = 0
            if worker.is_alone and not worker.tasks:
                self._end(worker)
                self._refill()
                return
        self._feed(worker)

    def _place(self) -> None:
        """Give every decoded block its first row as soon as all blocks before it are counted."""
        for block in self._order:
            if block in self._placed:
                continue
            if block not in self._decoded:
                return
            self._put(block, self._decoded[block].places)

    def _put(self, block: int, rows: int) -> None:
        self._placed[block], self._rows[block] = self._next_row, rows
        self._next_row += rows
        owner = next(worker for worker in self._workers if block in worker.tasks)
        _send(owner, ("write", block, self._placed[block]))

    def _go_around(self, worker: _Worker) -> None:
        """Let the others work on while one image takes long.

        What waits behind it goes to a fresh worker. The blocks after it are placed on the guess that it will be rejected and
        nothing else of its block; a wrong guess costs their decoding, as much as waiting would have. One guess a block; none
        where rows have sizes of their own, whose places are bytes: then the others decode what they may hold, and wait.
        """
        task = worker.suspect()
        if task is None or (not worker.is_alone and len(self._workers) >= 2 * self._count):
            return
        if not worker.is_alone:
            worker.is_alone = True
            behind = [t for t in worker.tasks.values() if t is not task and t.block not in self._decoded]
            for waiting in behind:
                worker.tasks.pop(waiting.block)
            self._queue.extendleft(reversed(behind))
            self._refill()
        before = (block for block in self._order if block not in self._placed)
        if next(before, None) == task.block and task.block not in self._guessed:
            self._guessed.add(task.block)
            guess = self._job.guessed_places(task)
            if guess is not None:
                self._put(task.block, guess)
                self._place()

    def _feed(self, worker: _Worker, undecoded: int = _UNDECODED) -> None:
        """Hand the worker blocks until it holds its share, or so many that are not decoded."""
        while (
            not worker.is_alone
            and len(worker.tasks) < _DEPTH
            and len(worker.tasks.keys() - self._decoded.keys()) < undecoded
        ):
            task = self._queue.popleft() if self._queue else next(self._source, None)
            if task is None:
                return
            self._give(worker, task)

    def _give(self, worker: _Worker, task: Task) -> None:
        self._order[task.block] = worker.tasks[task.block] = task
        _send(worker, ("decode", task))
        if task.block in self._placed:
            _send(worker, ("write", task.block, self._placed[task.block]))

    # -- processes

    def _start(self) -> _Worker:
        if self._launcher is not None:
            placed, connection = self._launcher.start(self._job)
            return self._welcome(placed, connection, [-1, 0], time.perf_counter())
        parent, child = self._context.Pipe()
        in_flight = self._context.RawArray("q", [-1, 0])
        # a forked child holds copies of the other pipes; while they are open, no worker would see the parent die
        others = [*self._inherited, *(worker.pipe for worker in self._workers), parent]
        forked = self._context.get_start_method() == "fork"
        process = self._context.Process(
            target=_work,
            args=(self._job, child, in_flight, others if forked else [], time.time()),
            daemon=True,
            name="pixpack-worker",
        )
        started = time.perf_counter()
        with without_main(), signals_held():
            process.start()
        child.close()
        return self._welcome(process, parent, in_flight, started)

    def _welcome(self, process: Any, pipe: Any, in_flight: Any, started: float) -> _Worker:
        self._started += 1
        worker = _Worker(process, pipe, in_flight, f"worker {self._started}", started, last_change=time.monotonic())
        self._workers.append(worker)
        return worker

    def _refill(self) -> None:
        """Bring the workers back to their number; those that stand alone come on top, but not without end."""
        while (
            sum(not worker.is_alone for worker in self._workers) < self._count and len(self._workers) < 2 * self._count
        ):
            self._start()
        # one each, then the next: few blocks must not all go to one. The freshest first: it has room for what another left
        for undecoded in range(1, _UNDECODED + 1):
            for worker in reversed(self._workers):
                self._feed(worker, undecoded)

    def _end(self, worker: _Worker) -> None:
        worker.process.kill()
        worker.process.join(_JOIN_SECONDS)
        worker.pipe.close()
        self._workers.remove(worker)
        # what it did since the block that it wrote last is lost, and is nothing where it had done all
        known = sum(worker.stages.values())
        waited = worker.stages.get("wait", 0.0) + max(0.0, time.perf_counter() - worker.started - known)
        self.profile[worker.name] = worker.stages | {"wait": waited}

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Give out anew what a dead worker had, and start another.

        The block whose image was in flight goes to a worker of its own, which decodes that image first: it is tried once
        more, alone. If that costs another worker, it is rejected with the reason.
        """
        self._end(worker)
        task, lost = worker.suspect(), sorted(worker.tasks.values(), key=lambda task: task.block)
        self._written.difference_update(worker.tasks)
        if task is None:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without getting anything done ({reason}).")
        else:
            lost.remove(task)
            lost.insert(0, self._retried(task, int(worker.in_flight[0]), reason))
        # all of it, where no fresh worker with room for the rest will be started
        own = len(lost) if worker.is_alone or len(self._workers) + 2 > 2 * self._count else int(task is not None)
        if own:
            alone = self._start()
            alone.is_alone = True
            for given in lost[:own]:
                self._give(alone, given)
        self._queue.extendleft(reversed(lost[own:]))
        self._refill()

    def _retried(self, task: Task, index: int, reason: str) -> Task:
        """Prepare a lost block for another worker: its rows may be placed already and then go to the same place."""
        self._failures[index] = self._failures.get(index, 0) + 1
        if self._failures[index] > 1:
            return replace(
                task, refused=task.refused | {index: reason}, first=tuple(i for i in task.first if i != index)
            )
        return replace(task, first=(index, *task.first))


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


def _drain(pipe: Any, messages: queue.SimpleQueue[Any], worker: Worker) -> None:
    """Take messages off the pipe at once: a parent that waits to send and a worker that waits to answer would wait for ever."""
    try:
        while True:
            message = pipe.recv()
            if message[0] == "decode":
                worker.expect(message[1])
            messages.put(message)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone: no one waits for this worker, also not for an image that never ends


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Start processes that see no signal before `begin_worker`: a forked one would do what the command does on it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker() -> None:
    """Begin a process that works for this one: SIGINT is the parent's to hear, and Pillow says nothing on stderr."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    silence_pillow()


def silence_pillow() -> None:
    """Keep Pillow's warnings and log off a worker's stderr; warnings that matter are recorded in samples.jsonl."""
    warnings.simplefilter("ignore")
    log = logging.getLogger("PIL")
    # a logger without a handler writes to stderr; those of a program that this process was forked from are its own
    log.addHandler(logging.NullHandler())
    log.propagate = False


def _send(worker: _Worker, message: tuple[Any, ...]) -> None:
    # a worker that died in between is noticed by its pipe, where its blocks are given out again
    with contextlib.suppress(OSError):
        worker.pipe.send(message)


def _work(job: Job, pipe: Any, in_flight: Any, others: list[Any], started: float) -> None:
    """Serve one pipe until the parent is gone; started is when it began to start this process, seconds of time.time()."""
    # the clock on the wall, as the only one that two processes share
    clock = StageClock("start", max(0.0, time.time() - started))
    begin_worker()
    for other in others:
        other.close()
    serve(job, pipe, in_flight, clock)


def serve(job: Job, pipe: Any, in_flight: Any, clock: StageClock) -> None:
    """Be a worker at the end of a pipe or connection: decode and write what it says; the process ends with it."""
    silence_pillow()
    try:
        worker = job.worker(in_flight, clock)
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=_drain, args=(pipe, messages, worker), daemon=True).start()
        while True:
            clock.enter("wait")
            kind, *content = messages.get()
            clock.enter("other")
            if kind == "decode":
                pipe.send(("decoded", worker.decode(content[0])))
            else:
                worker.write(*content)
                pipe.send(("written", content[0], clock.seconds()))
    except BrokenPipeError:
        return
    except MemoryError:  # told by the exit code: a message would need memory
        os._exit(_NO_MEMORY)
    except OSError as e:  # the store's disk: the whole pack has to know
        with contextlib.suppress(OSError):
            pipe.send(("failed", e))


def _exit_reason(worker: _Worker) -> str:
    code = worker.process.exitcode
    if code is None:
        return "the connection to it broke"
    if code == _NO_MEMORY:
        return "there was not enough memory for it"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as the system does where memory runs out"
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
