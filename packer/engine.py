"""Who does which block, and where its rows go: keep workers busy, keep blocks in order, replace one that dies or stalls.

A block under way is one record, from when it is first given out until it and all before it are written: its task, what it was
decoded to, its place, whether its rows are there. A worker holds the records of the blocks that it was given; what it leaves
behind is given to another. How workers start and answer is `processes.py`'s, what becomes of a finished block the caller's.
"""

from __future__ import annotations

import contextlib
import multiprocessing.connection
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from packer.processes import EngineError, Job, exit_reason, start_context, start_worker
from packer.profile import Profile, StageClock
from packer.roots import SourceError
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


class Launcher(Protocol):
    """Starts workers elsewhere; each is reached by a connection, and tells its image in flight as a message, "mark"."""

    def start(self, job: Job) -> tuple[Any, Any]:
        """Return a worker's process, to kill and to join, and the connection to it."""


class _RowsChanged(Exception):
    """A block decoded again has another number of rows: its source changed. Blocks after it stand in the wrong place."""


@dataclass(eq=False)
class _Block:
    """A block under way.

    task: as it is given out next: with the images that cost a worker, to be tried first or refused.
    result: of its last decoding, even where that worker is gone: what it takes is counted.
    first_row: where its rows go, and places: how much they take there, as `Result.places` counts; None until all blocks
        before it are counted.
    is_guessed: what it takes was guessed once, perhaps in vain; known also after a change of rows.
    """

    task: Task
    result: Result | None = None
    first_row: int | None = None
    places: int | None = None
    is_written: bool = False
    is_guessed: bool = False

    @property
    def number(self) -> int:
        """Its number, by which all blocks are in order."""
        return self.task.block


@dataclass(eq=False)
class _Worker:
    """A process and what it was given. One that stands alone has a suspect's block, gets no other, and ends with it.

    stages: its seconds of each, as of the block that it wrote last.
    blocks: by number, in the order in which they were given to it; until they are written.
    """

    process: Any
    pipe: Any
    in_flight: Any
    name: str
    started: float
    stages: dict[str, float] = field(default_factory=dict)
    is_alone: bool = False
    blocks: dict[int, _Block] = field(default_factory=dict)
    last_count: int = -1
    last_change: float = 0.0

    def give(self, block: _Block) -> None:
        """Have it decode a block; one that another worker had may have its place already, and goes there."""
        self.blocks[block.number] = block
        self._send("decode", block.task)
        if block.first_row is not None:
            self.write(block)

    def write(self, block: _Block) -> None:
        """Have it write a block to its place, once it is decoded."""
        self._send("write", block.number, block.first_row)

    def _send(self, *message: Any) -> None:
        # a worker that died in between is noticed by its pipe, where its blocks are given out again
        with contextlib.suppress(OSError):
            self.pipe.send(message)

    def has_room(self, undecoded: int) -> bool:
        """Whether it may be given one more block, where it is to have so many that are not decoded."""
        waiting = sum(block.result is None for block in self.blocks.values())
        return not self.is_alone and len(self.blocks) < _DEPTH and waiting < undecoded

    def suspect(self) -> _Block | None:
        """Return the block of the image in flight, readable even after a crash; None between blocks."""
        index = self.in_flight[0]
        return next((b for b in self.blocks.values() if 0 <= index - b.task.start < len(b.task.paths)), None)

    def standstill(self) -> float:
        """Return for how many seconds the image in flight, or what is owed between two, has been so; to be asked often."""
        index, count, _ = self.in_flight
        if count != self.last_count or (index < 0 and not self._is_owing()):
            self.last_count, self.last_change = count, time.monotonic()
        return time.monotonic() - self.last_change

    def _is_owing(self) -> bool:
        """Whether it has something to do: a block to decode, or one to write whose place is known."""
        return any(block.result is None or block.first_row is not None for block in self.blocks.values())

    def end(self) -> None:
        """End its process; what it wrote stays written."""
        self.process.kill()
        self.process.join(_JOIN_SECONDS)
        self.pipe.close()

    def seconds(self) -> dict[str, float]:
        """Return its seconds of each stage, once it has ended."""
        # what it did since the block that it wrote last is lost, and is nothing where it had done all
        known = sum(self.stages.values())
        waited = self.stages.get("wait", 0.0) + max(0.0, time.perf_counter() - self.started - known)
        return self.stages | {"wait": waited}


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
        self._job, self._timeout, self._inherited, self._launcher = job, timeout, inherited, launcher
        # workers that share the work; all, with those that stand alone
        self._count, self._most = workers, 2 * workers
        self._clock = clock or StageClock("serve")
        self.profile: Profile = {}
        self._context = start_context()
        self._workers: list[_Worker] = []
        # those under way, by number and in that order; those of them that wait for a worker
        self._blocks: dict[int, _Block] = {}
        self._queue: deque[_Block] = deque()
        self._idle_deaths = self._started = 0

    def run(self, tasks: Iterator[Task], first_row: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield each block's result once its rows are written, in order.

        Args:
            tasks: in block order.
            first_row: where the first block's rows go, in what `Result.places` counts.
            ready: called between events, so that the caller can report or stop (by raising).
        """
        self._source, self._next_row = tasks, first_row
        self._refill()
        while self._blocks:
            try:
                for worker, message in self._events():
                    self._receive(worker, *message)
                self._look_after_the_slow()
            except _RowsChanged:
                self._begin_again()
            ready()
            yield from self._finished()

    def close(self) -> None:
        """End all workers now; returns when none is left."""
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._end(worker)

    # -- events

    def _events(self) -> Iterator[tuple[_Worker, tuple[Any, ...]]]:
        """Yield what workers have to say; replace those that will say nothing any more."""
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
                self._replace(worker, f"its worker ended ({exit_reason(worker.process.exitcode)})")
                continue
            worker.last_change = time.monotonic()
            if message[0] == "mark":
                worker.in_flight[:] = message[1:]
            else:
                yield worker, message

    def _receive(self, worker: _Worker, kind: str, *content: Any) -> None:
        """Take what a worker has to say, and hand it more."""
        if kind == "failed":
            raise content[0]
        if kind == "decoded":
            self._take_result(worker, *content)
        else:
            self._take_written(worker, *content)
        self._feed(worker)

    def _take_result(self, worker: _Worker, result: Result) -> None:
        """Keep what a block was decoded to, and place what can be placed now."""
        block = worker.blocks.get(result.block)
        if block is None:  # given to another while this one stood still
            return
        if block.places not in (None, result.places):
            raise _RowsChanged
        block.result = result
        self._place()

    def _take_written(self, worker: _Worker, number: int, stages: dict[str, float]) -> None:
        """Take a block from the worker that has written it."""
        worker.blocks.pop(number).is_written = True
        worker.stages = stages
        self._idle_deaths = 0
        if worker.is_alone and not worker.blocks:
            self._end(worker)
            self._refill()

    def _finished(self) -> Iterator[Result]:
        """Yield the results of blocks that are written, up to the first that is not; they are no longer under way."""
        while self._blocks:
            block = next(iter(self._blocks.values()))
            if block.result is None or not block.is_written:
                return
            del self._blocks[block.number]
            yield block.result

    def _begin_again(self) -> None:
        """Decode all blocks under way once more, on fresh workers, and place them from where the first of them stood."""
        self.close()
        first = next(iter(self._blocks.values())).first_row
        self._next_row = self._next_row if first is None else first
        self._blocks = {b.number: _Block(b.task, is_guessed=b.is_guessed) for b in self._blocks.values()}
        self._queue = deque(self._blocks.values())
        self._refill()

    # -- places

    def _place(self) -> None:
        """Give every decoded block its first row as soon as all blocks before it are counted."""
        for block in self._unplaced():
            if block.result is None:
                return
            self._put(block, block.result.places)

    def _unplaced(self) -> Iterator[_Block]:
        """Pass through the blocks that have no place; those that have one come before them all."""
        return (block for block in self._blocks.values() if block.first_row is None)

    def _put(self, block: _Block, places: int) -> None:
        """Give a block the next so many places, and have it written there."""
        block.first_row, block.places = self._next_row, places
        self._next_row += places
        next(worker for worker in self._workers if block.number in worker.blocks).write(block)

    # -- the slow

    def _look_after_the_slow(self) -> None:
        """Replace workers that stand still for too long; let the others go around those that do for long."""
        for worker in list(self._workers):
            seconds, suspect = worker.standstill(), worker.suspect()
            if suspect is None:
                if seconds > max(self._timeout, _BETWEEN_SECONDS):
                    self._replace(worker, f"it stood still for {seconds:.0f} seconds between two images")
            elif seconds > self._timeout:
                self._check_source(worker, suspect.task)
                self._replace(worker, f"decoding it took more than {self._timeout:g} seconds (--timeout)")
            elif seconds > _PATIENCE_SECONDS:
                self._go_around(worker, suspect)

    def _check_source(self, worker: _Worker, task: Task) -> None:
        """Raise SourceError where an image is waited for in vain once more: who does not answer is no fault of the image."""
        index, _, is_reading = worker.in_flight
        if is_reading and index in task.first:
            raise SourceError(
                f"{task.paths[index - task.start]} cannot be read: twice no answer came within {self._timeout:g} seconds"
                " (--timeout)"
            )

    def _go_around(self, worker: _Worker, slow: _Block) -> None:
        """Let the others work on while one image takes long.

        What waits behind it goes to a fresh worker. The blocks after it are placed on the guess that it will be rejected and
        nothing else of its block; a wrong guess costs their decoding, as much as waiting would have. One guess a block; none
        where rows have sizes of their own, whose places are bytes: then the others decode what they may hold, and wait.
        """
        if not worker.is_alone:
            if len(self._workers) >= self._most:
                return
            worker.is_alone = True
            behind = [block for block in worker.blocks.values() if block is not slow and block.result is None]
            for block in behind:
                del worker.blocks[block.number]
            self._queue.extendleft(reversed(behind))
            self._refill()
        if slow is next(self._unplaced(), None) and not slow.is_guessed:
            slow.is_guessed = True
            guess = self._job.guessed_places(slow.task)
            if guess is not None:
                self._put(slow, guess)
                self._place()

    # -- workers

    def _refill(self) -> None:
        """Bring the workers back to their number; those that stand alone come on top, but not without end."""
        together = sum(not worker.is_alone for worker in self._workers)
        for _ in range(min(self._count - together, self._most - len(self._workers))):
            self._start()
        # one each, then the next: few blocks must not all go to one. The freshest first: it has room for what another left
        for undecoded in range(1, _UNDECODED + 1):
            for worker in reversed(self._workers):
                self._feed(worker, undecoded)

    def _feed(self, worker: _Worker, undecoded: int = _UNDECODED) -> None:
        """Hand the worker blocks until it holds its share, or so many that are not decoded."""
        while worker.has_room(undecoded):
            block = self._next_block()
            if block is None:
                return
            worker.give(block)

    def _next_block(self) -> _Block | None:
        """Return a block that waits for a worker, else the next of the source; None where there is neither."""
        if self._queue:
            return self._queue.popleft()
        task = next(self._source, None)
        return self._blocks.setdefault(task.block, _Block(task)) if task else None

    def _start(self, *, is_alone: bool = False) -> _Worker:
        """Start a worker that has nothing to do yet."""
        if self._launcher is None:
            started = time.perf_counter()
            inherited = [*self._inherited, *(worker.pipe for worker in self._workers)]
            process, pipe, in_flight = start_worker(self._context, self._job, inherited)
        else:
            process, pipe = self._launcher.start(self._job)
            started, in_flight = time.perf_counter(), [-1, 0, 0]
        self._started += 1
        worker = _Worker(process, pipe, in_flight, f"worker {self._started}", started, is_alone=is_alone)
        self._workers.append(worker)
        return worker

    def _end(self, worker: _Worker) -> None:
        """End a worker; it has still the blocks that it leaves behind."""
        worker.end()
        self._workers.remove(worker)
        self.profile[worker.name] = worker.seconds()

    def _replace(self, worker: _Worker, reason: str) -> None:
        """Give out anew what a dead worker had, and start another.

        The block whose image was in flight goes to a worker of its own, which decodes that image first: it is tried once
        more, alone. If that costs another worker, it is rejected with the reason.
        """
        self._end(worker)
        suspect = worker.suspect()
        lost = sorted(worker.blocks.values(), key=lambda block: (block is not suspect, block.number))
        if suspect is not None:
            suspect.task = _retried(suspect.task, int(worker.in_flight[0]), reason)
        else:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without getting anything done ({reason}).")
        own = int(suspect is not None)
        if worker.is_alone or len(self._workers) + 2 > self._most:
            own = len(lost)  # no fresh worker with room for the rest will be started
        if own:
            alone = self._start(is_alone=True)
            for block in lost[:own]:
                alone.give(block)
        self._queue.extendleft(reversed(lost[own:]))
        self._refill()


def _retried(task: Task, index: int, reason: str) -> Task:
    """Prepare a block for another worker: an image that cost one is decoded first; one that cost two is refused."""
    if index not in task.first:
        return replace(task, first=(index, *task.first))
    return replace(task, refused=task.refused | {index: reason}, first=tuple(i for i in task.first if i != index))
