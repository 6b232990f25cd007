"""What the engine and workers ask of each other: jobs and what does them, processes, ends of pipes, shared numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Protocol

from packer.clock import StageClock
from packer.store.blocks import Result, Task


class Worker(Protocol):
    """What does the work in a process of its own: decodes a block at a time, then writes its rows."""

    def expect(self, task: Task) -> None:
        """Prepare for a task that will be decoded; called by another thread."""

    def forget(self, start: int, stop: int) -> None:
        """Expect inputs [start, stop) no more; called by another thread."""

    def decode(self, task: Task, may_begin: Callable[[int], bool] = ...) -> Result:
        """Decode a task and keep its rows, up to the first input behind its first that may not be begun, or to many bytes."""

    def write(self, start: int, offset: int) -> None:
        """Write the rows of a decoded task, by its first input, at a byte of the file of rows."""


class Job(Protocol):
    """What all blocks have in common; travels to the workers."""

    def worker(self, in_flight: Marks | None, clock: StageClock) -> Worker:
        """Make what does the work, in its process.

        It leaves word in in_flight: [its image or -1, how often that changed, whether it reads it, or retries that].
        """

    def guessed_bytes(self, task: Task) -> int | None:
        """Return the bytes of a task's rows if none of its images is rejected; None: that depends on the images."""


class Closable(Protocol):
    """What a forked worker closes of its parent's."""

    def close(self) -> None:
        """Close it."""


class Pipe(Protocol):
    """A worker's end of a pipe, or of a connection to another machine."""

    def send(self, message: tuple[object, ...], /) -> None:
        """Send a message."""

    def recv(self) -> tuple[Any, ...]:
        """Return the next message; waits for it."""


class WorkerProcess(Protocol):
    """A worker's process, here or on another machine."""

    @property
    def exitcode(self) -> int | None:
        """What it exited with; None: it runs, or is elsewhere."""

    def kill(self) -> None:
        """End it at once."""

    def join(self, seconds: float, /) -> None:
        """Wait for its end."""


class Marks(Protocol):
    """Numbers that a worker leaves for the engine, by position."""

    def __getitem__(self, index: int, /) -> int: ...

    def __setitem__(self, index: int, value: int, /) -> None: ...


class Shared(Marks, Protocol):
    """Such numbers in memory that both see."""

    def __iter__(self) -> Iterator[int]: ...


class Launcher(Protocol):
    """Starts workers elsewhere; each is reached by a connection, sends its image in flight as a message, "mark", and "alive"."""

    def start(self, job: Job) -> tuple[WorkerProcess, Connection]:
        """Return a worker's process, to kill and to join, and the connection to it."""
