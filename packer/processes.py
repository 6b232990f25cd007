"""Worker processes: how they start, what each does at its end of the pipe, and why one ended.

Knows signals, start methods and messages; which block goes to which worker is `engine.py`'s, what a block is made of the job's.
"""

from __future__ import annotations

import contextlib
import logging
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
from typing import Any, Protocol, TypeVar

from packer.profile import StageClock
from packer.report import PackError
from packer.roots import retried
from packer.tasks import Result, Task

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

    def __init__(self, shared: Any, pauses: Sequence[float]) -> None:
        self._shared, self._pauses = shared, pauses

    def mark(self, index: int, *, is_reading: bool = False) -> None:
        """Say which image it is, and whether its source is being waited for; -1: none."""
        if self._shared is not None:
            self._shared[2] = is_reading
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
                time.sleep(min(left, _SIGN_SECONDS))
                self.mark(index, is_reading=is_reading)

        self.mark(index, is_reading=is_reading)
        found = retried(read, self._pauses, sleep)
        self.mark(index)
        return found


class Worker(Protocol):
    """What does the work in a process of its own: a block at a time, then its rows to their place."""

    def expect(self, task: Task) -> None:
        """Prepare for a block that will be decoded; called by another thread."""

    def decode(self, task: Task) -> Result:
        """Decode a block and keep its rows."""

    def write(self, block: int, first_row: int) -> None:
        """Write the rows of a decoded block to their place."""


class Job(Protocol):
    """What all blocks have in common; travels to the workers."""

    def worker(self, in_flight: Any, clock: StageClock) -> Worker:
        """Make what does the work, in its process.

        It leaves word in in_flight: [its image or -1, how often that changed, whether it reads it].
        """

    def guessed_places(self, task: Task) -> int | None:
        """Guess what a block will take if just one more of its images is rejected; None: that cannot be guessed."""


class EngineError(RuntimeError):
    """The workers cannot do the work at all; says why."""


def start_context() -> Any:
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


def start_worker(context: Any, job: Job, inherited: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Start a process that works at the other end of a pipe; returns it, this end, and its in_flight, shared with it.

    Args:
        inherited: what else this process has open and a forked one must close.
    """
    parent, child = context.Pipe()
    in_flight = context.RawArray("q", [-1, 0, 0])
    # a forked child holds copies of the parent's ends; while they are open, no worker would see the parent die
    others = [*inherited, parent] if context.get_start_method() == "fork" else []
    process = context.Process(
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
    except (OSError, PackError) as e:  # the store's disk, or that of the inputs: the whole pack has to know
        with contextlib.suppress(OSError):
            pipe.send(("failed", e))


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


def _work(job: Job, pipe: Any, in_flight: Any, others: list[Any], started: float) -> None:
    """Serve one pipe until the parent is gone; started is when it began to start this process, seconds of time.time()."""
    # the clock on the wall, as the only one that two processes share
    clock = StageClock("start", max(0.0, time.time() - started))
    begin_worker()
    for other in others:
        other.close()
    serve(job, pipe, in_flight, clock)


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
