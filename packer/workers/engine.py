"""Runs worker processes: they decode blocks, which are written one after the other and returned in order.

A worker does one thing at a time, and knows the next. It decodes a block and keeps its rows, or writes a block whose offset
is known. If a worker ends, or hangs for too long, others decode its blocks again. An image that was being decoded when a
second worker ended is rejected.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from packer.errors import EngineError, SourceError
from packer.store.lock import Lock
from packer.store.tasks import Result, Task
from packer.workers.processes import InFlight, Job, exit_reason, start_context, start_worker

# A worker that holds this many bytes gets no further block: blocks of images of very different sizes hold far more than 8 MiB.
WORKER_HELD_BYTES = 32 << 20
# Between two checks of the workers.
ENGINE_POLL_SECONDS = 0.25
# After a longer time between two checks, no worker is at fault: this process was stopped, the machine slept, or the disk was
# slow.
LONGEST_LOOK_SECONDS = 1.0
# The most that a worker may take for one image, or between two, to write or to start. A disk under load or a slow start must
# not end it.
WORKER_SECONDS = 60.0

# Blocks that a worker has at a time: those that it decodes, and those that wait for their offset.
_DEPTH = 4
# Blocks that a worker holds: one in progress, and one that follows without waiting for this process.
_DECODING = 2
# Deaths of workers without a block written in between, and not during an image.
_MAX_IDLE_DEATHS = 3
# A killed process that hangs in the kernel (a dead NFS server) is left behind rather than waited for.
_JOIN_SECONDS = 5.0


@dataclass(eq=False)
class _Block:
    """A block in progress. result: of its last decoding; offset: the byte of its rows, kept if its worker dies."""

    task: Task
    result: Result | None = None
    offset: int | None = None
    is_written: bool = False


@dataclass(eq=False)
class _Worker:
    """A worker as the engine knows it.

    orders: blocks that it decodes or writes, one after the other. held: blocks that it has decoded and not written.
    changes, still: the changes of in_flight at the last check, and seconds without a new one.
    """

    process: BaseProcess
    pipe: Connection
    in_flight: InFlight
    orders: deque[_Block] = field(default_factory=deque)
    held: list[_Block] = field(default_factory=list)
    changes: int = -1
    still: float = 0.0

    def tell(self, block: _Block, *order: object) -> None:
        """Send a worker an order for a block."""
        self.orders.append(block)
        with contextlib.suppress(OSError):  # it has ended, as its pipe will say
            self.pipe.send(order)

    def has_room(self) -> bool:
        """Whether it may hold one more block."""
        held_bytes = sum(block.result.size_bytes for block in self.held if block.result)
        return len({*self.held, *self.orders}) < _DEPTH and held_bytes < WORKER_HELD_BYTES

    def suspect(self) -> _Block | None:
        """Return the block of the worker's current image, or None between two images."""
        index = self.in_flight.index
        return next((block for block in self.orders if block.task.start <= index < block.task.stop), None)


class LocalEngine:
    """Worker processes on this machine.

    Args:
        inherited: objects of this process that a forked worker must close.
    """

    def __init__(self, job: Job, *, workers: int, inherited: Sequence[Lock] = ()) -> None:
        self._job, self._count, self._inherited = job, workers, inherited
        self._context = start_context()
        self._workers: list[_Worker] = []
        # blocks that are not returned yet, in order; `_lost` are those of lost workers
        self._blocks: deque[_Block] = deque()
        # the next tasks
        self._coming: deque[Task] = deque()
        self._lost: list[_Block] = []
        self._suspects: Counter[int] = Counter()
        self._idle_deaths = 0
        self._looked = time.monotonic()

    def run(self, tasks: Iterator[Task], offset: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield the results of tasks in their order, each when its rows are written; the first one's go to byte `offset`.

        Args:
            ready: called a few times a second.

        Raises:
            SourceError: the disk or network of the inputs does not answer. EngineError: workers end without a written block,
                or an image was changed while it was packed.
        """
        while self._feed(tasks):
            for worker, message in self._messages():
                self._take(worker, *message)
            self._look_after_workers()
            for block in self._blocks:
                if block.offset is None:
                    if block.result is None:
                        break
                    block.offset, offset = offset, offset + block.result.size_bytes
            ready()
            while self._blocks and self._blocks[0].is_written:
                result = self._blocks.popleft().result
                assert result is not None
                yield result

    def close(self) -> None:
        """End all workers now, and wait for them."""
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._end(worker)

    # -- work

    def _feed(self, tasks: Iterator[Task]) -> bool:
        """Start missing workers, and give orders to all; returns whether any block is in progress."""
        while len(self._workers) < self._count:
            self._workers.append(_Worker(*start_worker(self._context, self._job, self._inherited)))
        for worker in self._workers:
            for block in worker.held:
                if block.offset is not None and block not in worker.orders:
                    worker.tell(block, "write", block.task.block, block.offset)
        for number in range(_DECODING):
            for worker in self._workers:
                if sum(block not in worker.held for block in worker.orders) == number:
                    self._give(worker, tasks, waits=not number)
        return bool(self._blocks)

    def _give(self, worker: _Worker, tasks: Iterator[Task], *, waits: bool) -> None:
        """Give a worker a lost block, else the next one, if it has room; waits: it decodes none now."""
        if self._lost:
            block = self._lost.pop(0)
            worker.tell(block, "decode", block.task)
            return
        self._coming += islice(tasks, self._count - len(self._coming))
        # the last blocks are for idle workers
        if self._coming and worker.has_room() and (waits or len(self._coming) == self._count):
            self._blocks.append(block := _Block(self._coming.popleft()))
            worker.tell(block, "decode", block.task)

    def _messages(self) -> Iterator[tuple[_Worker, tuple[str, Any]]]:
        """Yield the messages of workers; replace workers that have died."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in multiprocessing.connection.wait([*by_pipe], timeout=ENGINE_POLL_SECONDS):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(ENGINE_POLL_SECONDS)  # so that its exit code is known
                self._lose(worker, f"its worker ended ({exit_reason(worker.process.exitcode)})")
                continue
            yield worker, message

    def _take(self, worker: _Worker, kind: str, content: Any) -> None:
        """Handle a worker's message: its block is decoded or written, or an error ends the pack."""
        if kind == "failed":
            raise content
        block, worker.still = worker.orders.popleft(), 0.0
        if kind == "decoded":
            if block.offset is not None and block.result and block.result.size_bytes != content.size_bytes:
                raise EngineError(f"{block.task.paths[0]}, or an image soon after it, was changed meanwhile.")
            block.result = content
            worker.held.append(block)
        else:
            block.is_written = True
            worker.held.remove(block)
            self._idle_deaths = 0

    # -- workers

    def _look_after_workers(self) -> None:
        """Replace workers that exceed the time limit of an image; raises SourceError if a source does not answer."""
        now, most = time.monotonic(), WORKER_SECONDS
        # if this process was stopped, or the machine slept, no worker is at fault
        passed, self._looked = min(now - self._looked, LONGEST_LOOK_SECONDS), now
        for worker in list(self._workers):
            if worker.changes != worker.in_flight.changes or not worker.orders:
                worker.changes, worker.still = worker.in_flight.changes, 0.0
            worker.still += passed
            if worker.still <= most:
                continue
            suspect = worker.suspect()
            if suspect and worker.in_flight.is_reading:
                path = suspect.task.paths[worker.in_flight.index - suspect.task.start]
                raise SourceError(f"{path} cannot be read: no answer came within {most:g} seconds")
            self._lose(worker, f"{'decoding it' if suspect else 'a block'} took more than {most:g} seconds")

    def _end(self, worker: _Worker) -> None:
        """End a worker; its record still has its unfinished blocks."""
        worker.process.kill()
        worker.process.join(_JOIN_SECONDS)
        worker.pipe.close()
        self._workers.remove(worker)

    def _lose(self, worker: _Worker, reason: str) -> None:
        """End a worker and have its blocks decoded again; its current image is rejected with the reason at the second time."""
        self._end(worker)
        suspect = worker.suspect()
        # a block that was decoded before, and has its offset, is not at fault
        if suspect is not None and suspect.offset is None:
            index = worker.in_flight.index
            self._suspects[index] += 1
            if self._suspects[index] > 1:
                suspect.task = replace(suspect.task, refused=suspect.task.refused | {index: reason})
        else:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without finishing a block ({reason}).")
        lost = {block.task.block: block for block in (*self._lost, *worker.held, *worker.orders)}
        self._lost = [lost[number] for number in sorted(lost)]
        for block in self._lost:
            if block.offset is None:
                block.result = None
