"""Worker processes: how they start, what each does at its end of the pipe, and why one ended.

Knows signals, start methods and messages; which block goes to which worker is `engine.py`'s, what a block is made of the job's.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from packer.clock import StageClock
from packer.errors import EngineError, PackError
from packer.sources.roots import retried
from packer.workers.contracts import Closable, Job, Marks, Pipe, Shared, Worker

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

# A worker's own exit code for MemoryError; no signal and no Python uses it.
_NO_MEMORY = 101
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A worker that waits for its sources gives a sign of life so often.
_SIGN_SECONDS = 0.25

_T = TypeVar("_T")


class InFlight:
    """The image that a worker has in hand, left where the engine can read it even after a crash: see `Job.worker`.

    Args:
        shared: what `start_worker` made; None: nobody looks.
        pauses: seconds between tries of a source that cannot be read.
    """

    def __init__(self, shared: Marks | None, pauses: Sequence[float]) -> None:
        self._shared, self._pauses = shared, pauses

    @property
    def memory(self) -> ctypes.Array[Any] | bytearray | None:
        """The shared memory, to be written to as `mark` does; empty where nobody looks, None where it is reported otherwise."""
        if self._shared is None:
            return bytearray()
        return self._shared if isinstance(self._shared, ctypes.Array) else None

    def mark(self, index: int, *, is_reading: bool = False, is_retried: bool = False) -> None:
        """Say which image it is, whether its source is being read, and whether that has failed and is retried; -1: none."""
        if self._shared is not None:
            self._shared[2], self._shared[3] = is_reading, is_retried
            self._shared[1] += 1
            self._shared[0] = index

    def patiently(self, index: int, read: Callable[[], _T], *, is_reading: bool = True) -> _T:
        """Return what read returns of an image's source; one that cannot be read now is waited for, with signs of life.

        Args:
            is_reading: read does nothing else, so that no answer from it is none of the source.
        """

        def sleep(seconds: float) -> None:
            """Wait as no worker does that stands still."""
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                self.mark(index, is_reading=is_reading, is_retried=True)
                time.sleep(min(left, _SIGN_SECONDS))

        self.mark(index, is_reading=is_reading)
        found = retried(read, self._pauses, sleep)
        self.mark(index)
        return found


def start_context() -> BaseContext:
    """Choose how processes start: fork where it is safe (Linux, one thread), else spawn.

    Raises:
        EngineError: PIXPACK_START_METHOD asks for something else that this system has not.
    """
    method = "spawn"
    if sys.platform == "linux" and threading.active_count() == 1:
        method = "fork"
    asked = os.environ.get("PIXPACK_START_METHOD", method)
    if asked not in multiprocessing.get_all_start_methods():
        raise EngineError(f"PIXPACK_START_METHOD is {asked!r}, expected fork or spawn.")
    return multiprocessing.get_context(asked)


def start_worker(
    context: BaseContext, job: Job, inherited: Sequence[Closable]
) -> tuple[BaseProcess, Connection, Shared]:
    """Start a process that works at the other end of a pipe; returns it, this end, and its in_flight, shared with it.

    Args:
        inherited: what else this process has open and a forked one must close.
    """
    parent, child = context.Pipe()
    in_flight = context.RawArray("q", [-1, 0, 0, 0])
    # a forked child holds copies of the parent's ends; while they are open, no worker would see the parent die
    others = [*inherited, parent] if context.get_start_method() == "fork" else []
    process = context.Process(  # type: ignore[attr-defined]
        target=_work, args=(job, child, in_flight, others, time.time()), daemon=True, name="pixpack-worker"
    )
    with without_main(), signals_held():
        process.start()
    child.close()
    return process, parent, in_flight


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
    """Begin a process that works for this one: SIGINT is for the parent, and no warning is shown.

    Those that matter are recorded in samples.jsonl.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:  # what its parent ignores stays so, as in the command
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    warnings.simplefilter("ignore")


def begin_pool_worker() -> None:
    """Begin a process of a concurrent.futures pool, as `begin_worker`.

    It ends with its parent: it holds the pipe that it reads from open, and would wait there forever.
    """
    begin_worker()
    with contextlib.suppress(RuntimeError):  # no thread may be started
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def serve(job: Job, pipe: Pipe, in_flight: Marks | None, clock: StageClock) -> None:
    """Be a worker at the end of a pipe or connection: decode and write what it says; the process ends with it."""
    warnings.simplefilter("ignore")
    end = _PipeEnd(pipe)
    try:
        worker = job.worker(in_flight, clock)
        orders = _Orders()
        threading.Thread(target=_drain, args=(end, orders, worker), daemon=True).start()
        while True:
            clock.enter("wait")
            kind, *content = orders.next()
            clock.enter("other")
            if kind == "decode":
                begun = time.perf_counter()
                result = worker.decode(content[0], orders.may_begin)
                end.send(("decoded", result, content[0].start, time.perf_counter() - begun))
            else:
                worker.write(*content)
                end.send(("written", content[0], clock.seconds()))
    except BrokenPipeError:
        return
    except MemoryError:  # reported by the exit code: a message would need memory
        os._exit(_NO_MEMORY)
    except (
        OSError,
        PackError,
        EngineError,
    ) as e:  # the store's disk, that of the inputs, or this machine: the pack must stop
        with contextlib.suppress(OSError):
            end.send(("failed", e))


class _PipeEnd:
    """A worker's end of its pipe, for several threads."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe, self._lock = pipe, threading.Lock()
        self.recv = pipe.recv

    def send(self, message: tuple[object, ...]) -> None:
        """Send a complete message."""
        with self._lock:
            self._pipe.send(message)


class _Orders:
    """What a worker was sent and has not done, in order. One thread receives, another obeys."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: deque[tuple[Any, ...]] = deque()
        # of the task that is decoded: its first input, the next that is not begun, and where it ends
        self._start = self._next = self._stop = 0
        # of tasks that were given back, so that a message in progress to write them is dropped
        self._released: set[int] = set()

    def add(self, message: tuple[object, ...]) -> None:
        """Receive a message."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify()

    def next(self) -> tuple[Any, ...]:
        """Return the next message; waits for it. With a task its first input has begun."""
        with self._changed:
            self._stop = self._next  # the task before is done
            while True:
                while not self._messages:
                    self._changed.wait()
                message = self._messages.popleft()
                if message[0] == "decode":
                    task = message[1]
                    self._released.discard(task.start)
                    self._start, self._next, self._stop = task.start, task.start + 1, task.stop
                elif message[1] in self._released:
                    continue
                return message

    def may_begin(self, index: int) -> bool:
        """Begin an input of the task that is decoded; False where it was given back."""
        with self._changed:
            if index >= self._stop:
                return False
            self._next = index + 1
            return True

    def release(self) -> list[tuple[int, int, int]]:
        """Give back all that has not begun: of each task, by its first input, inputs [start, stop)."""
        with self._changed:
            found = [(self._start, self._next, self._stop)] if self._next < self._stop else []
            self._stop = self._next
            waiting = [message[1] for message in self._messages if message[0] == "decode"]
            self._released.update(task.start for task in waiting)
            self._messages = deque(m for m in self._messages if m[0] != "decode" and m[1] not in self._released)
            return found + [(task.start, task.start, task.stop) for task in waiting]


def process_state(process: object) -> str:
    """Return in which state Linux has a process of this machine, as proc(5) has it: T is stopped, t traced; "" is not known."""
    pid = getattr(process, "pid", None)
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # behind the name, which may hold anything
            return chr(file.read().rpartition(b") ")[2][0])
    except (OSError, IndexError):
        return ""


def exit_reason(code: int | None) -> str:
    """Say why a worker ended, by the exit code of its process; None: of one that is elsewhere, or still there."""
    if code is None:
        return "the connection to it broke"
    if code == _NO_MEMORY:
        return "there was not enough memory for it"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as the system does where memory runs out"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _work(job: Job, pipe: Pipe, in_flight: Marks | None, others: list[Closable], started: float) -> None:
    """Serve one pipe until the parent is gone; started is when it began to start this process, seconds of time.time()."""
    # the clock on the wall, as the only one that two processes share
    clock = StageClock("start", max(0.0, time.time() - started))
    begin_worker()
    for other in others:
        other.close()
    serve(job, pipe, in_flight, clock)


def _drain(end: _PipeEnd, orders: _Orders, worker: Worker) -> None:
    """Take messages off the pipe at once: a parent that waits to send and a worker that waits to answer would wait forever."""
    try:
        while True:
            message = end.recv()
            if message[0] == "release":
                released = orders.release()
                for _, start, stop in released:
                    worker.forget(start, stop)
                message = "released", [(first, start) for first, start, _ in released]
                # not by this thread, which must never wait to send
                threading.Thread(target=end.send, args=(message,), daemon=True).start()
                continue
            if message[0] == "decode":
                worker.expect(message[1])
            orders.add(message)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone: no one waits for this worker, also not for an image that never ends
