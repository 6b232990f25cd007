"""Blocks decoded by worker processes, written where the blocks before them end, and given back in order.

A worker decodes a block and says how many bytes it has; it is told where they go once that is known of all blocks before, and
writes them. A worker that ends, or stands still for too long, loses its blocks, and others decode them again; an image that is
in hand when a second worker ends is rejected.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing.connection
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from packer.errors import EngineError, SourceError
from packer.store.blocks import Result, Task
from packer.workers.processes import Closable, Job, Marks, exit_reason, start_context, start_worker
from reader.tuning import tuning

# Blocks that a worker has at a time: one that it decodes, one to go on with, and those that wait for their place.
_DEPTH, _UNDECODED = 4, 2
# Without one block written in between, and not by an image.
_MAX_IDLE_DEATHS = 3
# A killed process that hangs in the kernel (a dead NFS server) is left behind rather than waited for.
_JOIN_SECONDS = 5.0


@dataclass(eq=False)
class _Block:
    """A block in progress. result: of its last decoding; offset: the byte where its rows go, also where their worker is gone."""

    task: Task
    result: Result | None = None
    offset: int | None = None
    is_written: bool = False


@dataclass(eq=False)
class _Worker:
    """A worker as the engine knows it; blocks: by number, those that it has not written. still: seconds without a change."""

    process: BaseProcess
    pipe: Connection
    marks: Marks
    blocks: dict[int, _Block] = field(default_factory=dict)
    decoded: set[int] = field(default_factory=set)
    changes: int = -1
    still: float = 0.0

    def send(self, *message: object) -> None:
        with contextlib.suppress(OSError):  # it has ended, as its pipe will say
            self.pipe.send(message)

    @property
    def undecoded(self) -> int:
        return len(self.blocks) - len(self.decoded)

    def is_owing(self) -> bool:
        """Whether it has something to decode or to write; else it may wait forever."""
        return self.undecoded > 0 or any(block.offset is not None for block in self.blocks.values())

    def held_bytes(self) -> int:
        """Return the bytes of rows that it holds."""
        return sum(block.result.size_bytes for n, block in self.blocks.items() if n in self.decoded and block.result)

    def suspect(self) -> _Block | None:
        """Return the block whose image it has in hand; None between two images."""
        index = self.marks[0]
        return next((block for block in self.blocks.values() if block.task.start <= index < block.task.stop), None)


class LocalEngine:
    """Worker processes on this machine.

    Args:
        timeout: seconds after which an image that is not done costs its worker.
        inherited: what this process has open and a forked worker must close.
    """

    def __init__(self, job: Job, *, workers: int, timeout: float, inherited: Sequence[Closable] = ()) -> None:
        self._job, self._count, self._timeout, self._inherited = job, workers, timeout, inherited
        self._context, self._limits = start_context(), tuning()
        self._workers: list[_Worker] = []
        # by number: those that are not given back, in order, and of these those that a lost worker had
        self._blocks: dict[int, _Block] = {}
        self._waiting: dict[int, _Block] = {}
        self._suspects: Counter[int] = Counter()
        self._idle_deaths = 0
        self._looked = time.monotonic()

    def run(self, tasks: Iterator[Task], offset: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield the results of tasks in their order, each when its rows are written; the first one's go to byte `offset`.

        Args:
            ready: called a few times a second.

        Raises:
            SourceError: what the inputs are on does not answer. EngineError: workers end without getting anything done, or an
                image was changed while it was packed.
        """
        first_task = next(tasks, None)
        if first_task is None:
            return
        tasks = itertools.chain([first_task], tasks)
        while self._feed(tasks):
            for worker, message in self._messages():
                self._take(worker, *message)
            self._look_after_workers()
            for block in self._blocks.values():
                if block.offset is None:
                    if block.result is None:
                        break
                    block.offset = offset
                    self._write(block)
                offset = block.offset + (block.result.size_bytes if block.result else 0)
            ready()
            while (first := next(iter(self._blocks.values()), None)) and first.is_written:
                del self._blocks[first.task.block]
                assert first.result is not None
                yield first.result

    def waits_for(self) -> str:
        """Return the path of an image whose source cannot be read now and is retried; "" where there is none."""
        for worker in self._workers:
            index, _, _, is_retried = worker.marks
            if is_retried and (block := worker.suspect()):
                return block.task.paths[index - block.task.start]
        return ""

    def close(self) -> None:
        """End all workers now; returns when none is left."""
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._end(worker)

    # -- work

    def _feed(self, tasks: Iterator[Task]) -> bool:
        """Bring the workers to their number and give them blocks; returns whether any block is in progress."""
        while len(self._workers) < self._count:
            self._start()
        # one each, then the next: few blocks must not all go to one
        for undecoded in range(_UNDECODED):
            for worker in self._workers:
                if worker.undecoded > undecoded or not self._has_room(worker):
                    continue
                block = self._next(tasks)
                if block is None:
                    return bool(self._blocks)
                worker.blocks[block.task.block] = block
                worker.send("decode", block.task)
        return True

    def _has_room(self, worker: _Worker) -> bool:
        """Whether a worker may hold one more block. Where none decodes, all may wait for the block that is next."""
        has_room = len(worker.blocks) < _DEPTH and worker.held_bytes() < self._limits.worker_held_bytes
        return has_room or not any(each.undecoded for each in self._workers)

    def _next(self, tasks: Iterator[Task]) -> _Block | None:
        """Return a block that was lost, the first one first, else that of the next task; None where there is neither."""
        if self._waiting:
            return self._waiting.pop(min(self._waiting))
        task = next(tasks, None)
        if task is None:
            return None
        return self._blocks.setdefault(task.block, _Block(task))

    def _write(self, block: _Block) -> None:
        """Have a block's rows written by the worker that holds them; one that is lost is written when it is decoded again."""
        for worker in self._workers:
            if block.task.block in worker.decoded:
                worker.send("write", block.task.block, block.offset)

    def _messages(self) -> Iterator[tuple[_Worker, tuple[Any, ...]]]:
        """Yield what workers have to say; replace those that will say nothing any more."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        for pipe in multiprocessing.connection.wait([*by_pipe], timeout=self._limits.engine_poll_seconds):
            worker = by_pipe[pipe]  # type: ignore[index]
            try:
                message = worker.pipe.recv()
            except (EOFError, OSError):
                worker.process.join(self._limits.engine_poll_seconds)  # so that its exit code is known
                self._lose(worker, f"its worker ended ({exit_reason(worker.process.exitcode)})")
                continue
            yield worker, message

    def _take(self, worker: _Worker, kind: str, *content: Any) -> None:
        """Take what a worker has to say."""
        if kind == "failed":
            raise content[0]
        worker.still = 0.0
        if kind == "decoded":
            result: Result = content[0]
            block = worker.blocks[result.block]
            if block.offset is not None and block.result is not None and block.result.size_bytes != result.size_bytes:
                raise EngineError(f"{block.task.paths[0]}, or an image soon behind it, was changed meanwhile.")
            block.result = result
            worker.decoded.add(result.block)
            if block.offset is not None:
                self._write(block)
        else:
            number = content[0]
            worker.blocks.pop(number).is_written = True
            worker.decoded.remove(number)
            self._idle_deaths = 0

    # -- workers

    def _look_after_workers(self) -> None:
        """Replace workers that stand still for too long: at an image for the timeout, between two images for longer."""
        now = time.monotonic()
        # where this process was stopped, or the machine slept, no worker is to blame
        passed, self._looked = min(now - self._looked, self._limits.longest_look_seconds), now
        for worker in list(self._workers):
            if worker.changes != worker.marks[1] or not worker.is_owing():
                worker.changes, worker.still = worker.marks[1], 0.0
            worker.still += passed
            if worker.suspect() is None:
                if worker.still > max(self._timeout, self._limits.between_images_seconds):
                    self._lose(worker, f"it stood still for {worker.still:.0f} seconds between two images")
            elif worker.still > self._timeout:
                self._check_source(worker)
                self._lose(worker, f"decoding it took more than {self._timeout:g} seconds (--timeout)")

    def _check_source(self, worker: _Worker) -> None:
        """Raise SourceError where a source does not answer once more: that is no fault of the image."""
        index, _, is_reading, _ = worker.marks
        block = worker.suspect()
        if is_reading and block and self._suspects[index]:
            raise SourceError(
                f"{block.task.paths[index - block.task.start]} cannot be read: twice no answer came within"
                f" {self._timeout:g} seconds (--timeout)"
            )

    def _start(self) -> None:
        inherited = [*self._inherited, *(worker.pipe for worker in self._workers)]
        self._workers.append(_Worker(*start_worker(self._context, self._job, inherited)))

    def _end(self, worker: _Worker) -> None:
        """End a worker; it has still the blocks that it leaves behind."""
        worker.process.kill()
        worker.process.join(_JOIN_SECONDS)
        worker.pipe.close()
        self._workers.remove(worker)

    def _lose(self, worker: _Worker, reason: str) -> None:
        """End a worker and have its blocks decoded again; the second time its image in hand is refused for the reason."""
        self._end(worker)
        if (block := worker.suspect()) is not None:
            index = worker.marks[0]
            self._suspects[index] += 1
            if self._suspects[index] > 1:
                block.task = replace(block.task, refused=block.task.refused | {index: reason})
        else:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without getting anything done ({reason}).")
        for number, block in worker.blocks.items():
            if block.offset is None:
                block.result = None
            self._waiting[number] = block
