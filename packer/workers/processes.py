"""Worker processes: how they start, what each does at its end of the pipe, and why one ended.

Knows signals, start methods and messages; which block goes to which worker is `engine.py`'s, what a block is made of the job's.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from packer.errors import EngineError, PackError
from packer.sources.roots import retried
from packer.store.blocks import Result, Task

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


class Worker(Protocol):
    """What does the work in a process of its own."""

    def expect(self, task: Task) -> None:
        """Prepare for a block that will be decoded; called by another thread."""

    def decode(self, task: Task) -> Result:
        """Decode a block and hold its rows."""

    def write(self, block: int, offset: int) -> None:
        """Write the rows of a decoded block at a byte of the file of rows."""


class Job(Protocol):
    """What all blocks have in common; travels to the workers."""

    def worker(self, in_flight: Marks | None) -> Worker:
        """Make what does the work, in its process.

        It leaves word in in_flight: [its image or -1, how often that changed, whether it reads it, or retries that].
        """


class Closable(Protocol):
    """What a forked worker closes of its parent's."""

    def close(self) -> None:
        """Close it."""


class Marks(Protocol):
    """Numbers that a worker leaves for the engine, in memory that both see."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...

    def __iter__(self) -> Iterator[int]: ...


class InFlight:
    """The image that a worker has in hand, left where the engine can read it even after a crash: see `Job.worker`.

    Args:
        shared: what `start_worker` made; None: nobody looks.
        pauses: seconds between tries of a source that cannot be read.
    """

    def __init__(self, shared: Marks | None, pauses: Sequence[float]) -> None:
        self._shared, self._pauses = shared, pauses

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
) -> tuple[BaseProcess, Connection, Marks]:
    """Start a process that works at the other end of a pipe; returns it, this end, and its in_flight, shared with it.

    Args:
        inherited: what else this process has open and a forked one must close.
    """
    parent, child = context.Pipe()
    in_flight = context.RawArray("q", [-1, 0, 0, 0])
    # a forked child holds copies of the parent's ends; while they are open, no worker would see the parent die
    others = [*inherited, parent] if context.get_start_method() == "fork" else []
    process = context.Process(  # type: ignore[attr-defined]
        target=_work, args=(job, child, in_flight, others), daemon=True, name="pixpack-worker"
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


def serve(job: Job, pipe: Connection, in_flight: Marks | None) -> None:
    """Be a worker at the end of a pipe: decode and write what it says; the process ends with it."""
    orders: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    try:
        worker = job.worker(in_flight)
        threading.Thread(target=_receive, args=(pipe, orders, worker), daemon=True).start()
        while True:
            kind, *content = orders.get()
            if kind == "decode":
                pipe.send(("decoded", worker.decode(*content)))
            else:
                worker.write(*content)
                pipe.send(("written", content[0]))
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
            pipe.send(("failed", e))


def _receive(pipe: Connection, orders: queue.SimpleQueue[tuple[Any, ...]], worker: Worker) -> None:
    """Take messages off the pipe at once: a parent that waits to send and a worker that waits to answer would wait forever."""
    try:
        while True:
            message = pipe.recv()
            if message[0] == "decode":
                worker.expect(message[1])
            orders.put(message)
    except (EOFError, OSError):
        os._exit(0)  # the parent is gone: no one waits for this worker, also not for an image that never ends


def exit_reason(code: int | None) -> str:
    """Say why a worker ended, by the exit code of its process; None: it has not, though it closed its pipe."""
    if code is None:
        return "it closed its pipe"
    if code == _NO_MEMORY:
        return "there was not enough memory for it"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as the system does where memory runs out"
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


def _work(job: Job, pipe: Connection, in_flight: Marks | None, others: list[Closable]) -> None:
    """Serve one pipe until the parent is gone."""
    begin_worker()
    for other in others:
        other.close()
    serve(job, pipe, in_flight)
