"""Worker processes: their start, their loop at the end of a pipe, and the reason for their end.

Knows signals, start methods and messages; `engine.py` assigns blocks to workers, and the job decodes them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import types
import warnings
from collections.abc import Iterator, MutableSequence, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from packer.errors import EngineError, PackError
from packer.store.tasks import Result, Task

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from packer.store.lock import Lock

# The most threads of a process that forks: a child keeps every lock that another thread held, and nobody releases it.
MOST_FORKING_THREADS = 1
# A worker's own exit code for MemoryError; no signal and no Python uses it.
_NO_MEMORY = 101
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Worker(Protocol):
    """The object that does the work in its own process."""

    def expect(self, task: Task) -> None:
        """Request the remote sources of a block ahead of its decoding; called by another thread."""

    def decode(self, task: Task) -> Result:
        """Decode a block and hold its rows."""

    def write(self, block: int, offset: int) -> None:
        """Write the rows of a decoded block at a byte of the file of rows."""


class Job(Protocol):
    """The settings of all blocks; sent to the workers."""

    def worker(self, in_flight: InFlight) -> Worker:
        """Make the worker in its process; it marks each image in in_flight."""


class InFlight:
    """A worker's current image, in shared memory, which the engine can read even after a crash.

    Args:
        shared: index or -1, number of changes, whether it is being read.
    """

    def __init__(self, shared: MutableSequence[int] | None = None) -> None:
        self._shared = [-1, 0, 0] if shared is None else shared

    def mark(self, index: int, *, is_reading: bool = False) -> None:
        """Note the current image, and whether its source is being read; -1: none."""
        self._shared[2] = is_reading
        self._shared[1] += 1
        self._shared[0] = index

    @property
    def index(self) -> int:
        """The image's number in the pack; -1: none."""
        return self._shared[0]

    @property
    def changes(self) -> int:
        """The number of marks so far."""
        return self._shared[1]

    @property
    def is_reading(self) -> bool:
        """Whether the worker waits for the image's source."""
        return bool(self._shared[2])


def start_context() -> BaseContext:
    """Choose how processes start: fork if it is safe (Linux, one thread), else spawn."""
    is_safe = sys.platform == "linux" and threading.active_count() <= MOST_FORKING_THREADS
    return multiprocessing.get_context("fork" if is_safe else "spawn")


def start_worker(context: BaseContext, job: Job, inherited: Sequence[Lock]) -> tuple[BaseProcess, Connection, InFlight]:
    """Start a process that works at the other end of a pipe; returns it, this end, and its in_flight, shared with it.

    Args:
        inherited: objects of this process that a forked one must close.
    """
    parent, child = context.Pipe()
    in_flight = InFlight(context.RawArray("q", [-1, 0, 0]))
    others = inherited if context.get_start_method() == "fork" else []
    process = context.Process(  # type: ignore[attr-defined]
        target=_serve, args=(job, child, in_flight, others), daemon=True, name="pixpack-worker"
    )
    with without_main(), signals_held():
        process.start()
    child.close()
    return process, parent, in_flight


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Start processes that do not import the caller's script again: workers need nothing from it.

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
    """Start processes with signals blocked until `begin_worker`: a forked one would run the command's handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker() -> None:
    """Begin a process that works for this one: SIGINT is for the parent, no warning is shown, and it ends with its parent.

    Warnings that matter are recorded in samples.jsonl. A pipe does not show that the parent is gone: a process that was
    forked later holds its other end, and decoding may hang.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) != signal.SIG_IGN:  # the parent's choice stays, as in the command
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    warnings.simplefilter("ignore")
    with contextlib.suppress(RuntimeError):  # no thread can be started
        threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _serve(job: Job, pipe: Connection, in_flight: InFlight, others: Sequence[Lock]) -> None:
    """Run a worker at the end of a pipe: decode and write blocks until the parent is gone."""
    begin_worker()
    for other in others:
        other.close()
    orders: SimpleQueue[Any] = SimpleQueue()
    try:
        worker = job.worker(in_flight)
        threading.Thread(target=_receive, args=(worker, pipe, orders), daemon=True).start()
        while True:
            order, *content = orders.get()
            if order == "error":
                raise content[0]
            if order == "decode":
                pipe.send(("decoded", worker.decode(*content)))
            else:
                worker.write(*content)
                pipe.send(("written", None))
    except (EOFError, BrokenPipeError):
        return
    except MemoryError:  # reported by the exit code: a message would need memory
        os._exit(_NO_MEMORY)
    except (
        OSError,
        PackError,
        EngineError,
    ) as e:  # the disk of the store or of the inputs, or this machine: the pack must stop
        with contextlib.suppress(OSError):
            pipe.send(("failed", e))


def _receive(worker: Worker, pipe: Connection, orders: SimpleQueue[Any]) -> None:
    """Take orders when they come: an engine that sends a long one must not wait while this worker sends a long result."""
    try:
        while True:
            order = pipe.recv()
            if order[0] == "decode":
                worker.expect(order[1])
            orders.put(order)
    except Exception as e:
        orders.put(("error", e))


def exit_reason(code: int | None) -> str:
    """Return why a worker ended, by the exit code of its process; None: it has not, though it closed its pipe."""
    if code is None:
        return "it closed its pipe"
    if code == _NO_MEMORY:
        return "there was not enough memory for it"
    if code == -signal.SIGKILL:
        return "killed by SIGKILL, as the system does when memory runs out"
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
