"""Who does which block: keep workers busy, and replace one that dies or stalls.

A block in progress is cut into pieces where it must be: an image that cost a worker stands alone, a worker without work gets
what another has not begun, and a piece ends where its rows are many bytes. What is known of a piece and of a worker is in
`pieces.py`, where rows go in `offsets.py`. How workers start and answer is `processes.py`'s, what becomes of a finished block
the caller's.
"""

from __future__ import annotations

import bisect
import multiprocessing.connection
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from packer.clock import Profile, StageClock
from packer.errors import EngineError, RowsChanged, SourceError
from packer.store.blocks import Result, Task
from packer.workers.contracts import Closable, Job, Launcher, Shared, WorkerProcess
from packer.workers.offsets import Offsets
from packer.workers.pieces import Piece, WorkerHandle, first_input
from packer.workers.processes import exit_reason, process_state, start_context, start_worker
from reader.tuning import tuning

# Blocks a worker may hold: one being decoded, one queued so that it never waits for the parent, two waiting their turn. It is
# given no third to decode: near the end another worker would have none.
_DEPTH, _UNDECODED = 4, 2
_MAX_IDLE_DEATHS = 3
# An image that takes so many times longer than others do holds up the blocks behind it, see slow_image_seconds.
_PATIENCE_IMAGES = 4
# How the reasons of rejects begin that ended their worker, or that it had to be ended for.
WORKER_REASONS = ("its worker ended", "it was stopped", "it stood still", "decoding it took")
# A worker on another machine reports every second that it runs. After so long without a message it is taken to be stopped.
_SILENT_SECONDS = 3.0


class LocalEngine:
    """Runs tasks on processes of this machine and yields results in block order, written to the file.

    Args:
        job: what all blocks have in common.
        workers: number of processes.
        timeout: seconds that one image may take before its worker is killed.
        inherited: open things of the caller that a forked worker must close, its lock among them.
        launcher: starts the workers, on other machines perhaps; None: processes of this one.
        clock: the caller's, which counts how long this waits.
        at_most: number of processes where few blocks take long, and are shared among more; None: workers.
        inputs_ahead: a worker is given more blocks where they have fewer inputs, so that it can ask for their sources ahead.
        move: moves bytes of the file of rows, (from, to, how many); to is before from. None: nothing can, and what is at the
            wrong offset is decoded again.

    `profile` has the seconds of every worker that has ended.
    """

    def __init__(
        self,
        job: Job,
        *,
        workers: int,
        timeout: float,
        inherited: Sequence[Closable] = (),
        launcher: Launcher | None = None,
        clock: StageClock | None = None,
        at_most: int | None = None,
        inputs_ahead: int = 0,
        move: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._job, self._timeout, self._inherited, self._launcher = job, timeout, inherited, launcher
        # workers that share the work; all, with those that stand alone
        self._count, self._most, self._ahead = workers, 2 * workers, inputs_ahead
        self._at_most, self._clock = at_most or workers, clock or StageClock("serve")
        self.profile: Profile = {}
        self._context = start_context()
        self._workers: list[WorkerHandle] = []
        self._offsets = Offsets(job.guessed_bytes, self._write, move, self._clock)
        # the pieces that wait for a worker, in order
        self._queue: list[Piece] = []
        self._is_exhausted = self._is_shared = False
        self._idle_deaths = self._started = self._block_inputs = 0
        # blocks that a worker may have not decoded: a block may have one input until one is seen
        self._most_undecoded = max(_UNDECODED, inputs_ahead)
        # seconds that an image took lately; 0.0: none is known
        self._pace, self._looked = 0.0, time.monotonic()
        self._limits = tuning()

    def run(self, tasks: Iterator[Task], offset: int, *, ready: Callable[[], None]) -> Iterator[Result]:
        """Yield each block's result once its rows are written, in order.

        Args:
            tasks: in block order.
            offset: the byte of the file of rows where the first block's go.
            ready: called between events, so that the caller can report or stop (by raising).
        """
        self._source = tasks
        self._offsets.begin(offset)
        self._refill()
        while self._offsets:
            try:
                for worker, message in self._events():
                    self._receive(worker, *message)
                self._look_after_workers()
            except RowsChanged:
                self._begin_again()
            ready()
            yield from self._offsets.finished()

    def waits_for(self) -> str:
        """Return the path of an image whose source cannot be read now and is retried; "" where there is none."""
        return next(filter(None, (worker.waits_for() for worker in self._workers)), "")

    def close(self) -> None:
        """End all workers now; returns when none is left."""
        for worker in self._workers:
            worker.process.kill()
        for worker in list(self._workers):
            self._end(worker)

    # -- events

    def _events(self) -> Iterator[tuple[WorkerHandle, tuple[Any, ...]]]:
        """Yield what workers have to say; replace those that will say nothing any more."""
        by_pipe: dict[Connection, WorkerHandle] = {worker.pipe: worker for worker in self._workers}
        self._clock.enter("wait")
        timeout = self._limits.engine_poll_seconds
        if self._is_exhausted:
            timeout = min(timeout, self._limits.shared_work_seconds)
        ready: list[Any] = multiprocessing.connection.wait(list(by_pipe), timeout=timeout)
        self._clock.enter("serve")
        for pipe in ready:
            worker = by_pipe[pipe]
            try:
                message = pipe.recv()
            except (EOFError, OSError):
                worker.process.join(self._limits.engine_poll_seconds)  # so that its exit code is known
                self._replace(worker, f"its worker ended ({exit_reason(worker.process.exitcode)})")
                continue
            worker.silent = 0.0
            if message[0] == "mark":
                worker.in_flight = list(message[1:])
            elif message[0] != "alive":
                if message[0] != "released":  # which another of its threads says
                    worker.hear(time.monotonic())
                yield worker, message

    def _receive(self, worker: WorkerHandle, kind: str, *content: Any) -> None:
        """Take what a worker has to say, and hand it more."""
        if kind == "failed":
            raise content[0]
        if kind == "decoded":
            self._take_result(worker, *content)
        elif kind == "released":
            self._take_back(worker, *content)
        else:
            self._take_written(worker, *content)
        self._feed(worker)

    def _take_result(self, worker: WorkerHandle, result: Result, start: int, seconds: float = 0.0) -> None:
        """Keep what a piece was decoded to, and give offsets to what can have them now."""
        piece = worker.pieces[start]
        if result.inputs < len(piece.task.paths):
            # the rest is for others where it was asked back, else for later: then its rows became many bytes
            is_for_others = worker.is_alone or worker.is_asked
            self._is_shared |= is_for_others and self._is_exhausted
            rests = self._queue if is_for_others else worker.later
            bisect.insort(rests, self._offsets.cut(piece, start + result.inputs), key=first_input)
        if seconds:
            pace = seconds / max(1, result.inputs)
            self._pace += (pace - self._pace) / (4 if self._pace else 1)
        self._offsets.count(piece, result)

    def _take_back(self, worker: WorkerHandle, released: list[tuple[int, int]]) -> None:
        """Take from a worker what it has not begun: of each piece, by its first input, all from an input on."""
        worker.is_asked = False
        for start, stop in released:
            piece = worker.pieces.get(start)
            if piece is None or piece.is_held or stop >= piece.task.stop:  # it has decoded more meanwhile
                continue
            if stop == start:
                del worker.pieces[start]
            bisect.insort(self._queue, piece if stop == start else self._offsets.cut(piece, stop), key=first_input)
            self._is_shared = self._is_exhausted
        self._end_if_done(worker)
        self._refill()

    def _take_written(self, worker: WorkerHandle, start: int, stages: dict[str, float]) -> None:
        """Take a piece from the worker that has written it."""
        worker.pieces.pop(start).is_written = True
        worker.stages = stages
        self._idle_deaths = 0
        if self._end_if_done(worker):
            self._refill()

    def _begin_again(self) -> None:
        """Decode once more, on fresh workers, all rows that are not at their final offset."""
        self.close()
        self._queue = self._offsets.restart()
        self._refill()

    # -- the slow, the stopped, and the idle

    def _look_after_workers(self) -> None:
        """Replace workers that stand still for too long, let others go around those that do for long, and share what is left."""
        now = time.monotonic()
        passed = now - self._looked
        if passed >= self._limits.engine_poll_seconds:
            self._looked = now
            self._refill()
            for worker in list(self._workers):
                worker.look(
                    min(passed, self._limits.longest_look_seconds), None if self._launcher is None else _SILENT_SECONDS
                )
                self._look_after(worker)
        self._share()

    def _look_after(self, worker: WorkerHandle) -> None:
        """Replace a worker that stands still for too long, or let the others go around it; being stopped is not being slow."""
        seconds, suspect = worker.still - worker.halted, worker.suspect()
        if (
            worker.halted > max(self._timeout, self._limits.between_images_seconds)
            and process_state(worker.process) != "t"
        ):
            self._replace(worker, f"it was stopped for {worker.halted:.0f} seconds", is_blamed=False)
        elif suspect is None:
            if seconds > max(self._timeout, self._limits.between_images_seconds):
                self._replace(worker, f"it stood still for {seconds:.0f} seconds between two images")
        elif seconds > self._timeout:
            self._check_source(worker, suspect)
            self._replace(worker, f"decoding it took more than {self._timeout:g} seconds (--timeout)")
        elif worker.still > max(self._limits.slow_image_seconds, _PATIENCE_IMAGES * self._pace):
            self._go_around(worker, suspect)

    def _check_source(self, worker: WorkerHandle, piece: Piece) -> None:
        """Raise SourceError where an image is waited for in vain once more: who does not answer is no fault of the image."""
        index, _, is_reading, _ = worker.in_flight
        if is_reading and piece.is_suspect:
            raise SourceError(
                f"{piece.task.paths[index - piece.start]} cannot be read: twice no answer came within {self._timeout:g} seconds"
                " (--timeout)"
            )

    def _go_around(self, worker: WorkerHandle, slow: Piece) -> None:
        """Let the others work on while one image takes long.

        What waits behind it goes to a fresh worker. The pieces after it get offsets on the guess that all its images become rows;
        after a wrong guess they are moved. None is made where rows have sizes of their own, whose bytes are not known: then the
        others decode what they may hold, and wait.
        """
        # one that does not answer is stopped: what waits behind its image is guessed, too
        is_mute = worker.is_asked
        if not worker.is_alone:
            if len(self._workers) >= self._most:
                return
            worker.is_alone = True
            # a fresh worker is started when it has answered, or at the next look: a stopped one does not answer
            self._ask_back(worker)
        self._offsets.guess(lambda piece: piece is slow or (is_mute and worker.pieces.get(piece.start) is piece))

    def _ask_back(self, worker: WorkerHandle) -> None:
        """Have a worker give back what it has not begun; only when it has answered can another be given that."""
        self._queue = sorted([*self._queue, *worker.later], key=first_input)
        worker.later.clear()
        if worker.undecoded and not worker.is_asked:
            worker.is_asked = True
            worker.send("release")

    def _share(self) -> None:
        """Where a worker has nothing to do, have those with more than they need give back what they have not begun."""
        if self._queue or not self._is_exhausted:
            return
        loaded = [worker for worker in self._workers if not worker.is_asked and self._is_long(worker)]
        together = [worker for worker in self._workers if not worker.is_alone]
        if not loaded or not any(self._has_room(worker, 1) for worker in together):
            if not loaded or len(together) >= self._at_most or self._launcher is not None:
                return
            self._count = min(self._at_most, len(together) + sum(worker.behind() for worker in loaded))
            self._most = max(self._most, 2 * self._count)
        for worker in loaded:
            self._ask_back(worker)
        self._refill()

    def _is_long(self, worker: WorkerHandle) -> bool:
        """Whether what a worker has not begun will take it long."""
        count = worker.behind()
        return count > 0 and max(self._pace * count, time.monotonic() - worker.heard) > self._limits.shared_work_seconds

    # -- workers

    def _refill(self) -> None:
        """Bring the workers back to their number; those that stand alone come on top, but not without end."""
        together = sum(not worker.is_alone for worker in self._workers)
        room = self._most - len(self._workers)
        if self._queue and not any(worker.is_owing() for worker in self._workers):
            room = max(room, 1)  # all that there may be hold rows behind a piece that waits, and are given nothing
        for _ in range(min(self._count - together, room)):
            self._start()
        # one each, then the next: few blocks must not all go to one. The freshest first: it has room for what another left
        for undecoded in range(1, self._most_undecoded + 1):
            for worker in reversed(self._workers):
                self._feed(worker, undecoded)

    def _feed(self, worker: WorkerHandle, undecoded: int = sys.maxsize) -> None:
        """Hand the worker pieces until it holds its share, or so many that are not decoded."""
        undecoded = 1 if self._is_shared else undecoded
        while self._has_room(worker, undecoded):
            piece = worker.later.pop(0) if worker.later else self._next_piece()
            if piece is None:
                return
            worker.give(piece)
        if worker.is_alone or worker.undecoded or not (worker.later or self._queue):
            return
        # one that is full takes nonetheless what all that is decoded waits for: no other may have room either
        first = next((piece for piece in self._offsets.pieces() if not (piece.is_held or piece.is_written)), None)
        for waiting in (worker.later, self._queue):
            if waiting and waiting[0] is first:
                worker.give(waiting.pop(0))
                return

    def _has_room(self, worker: WorkerHandle, undecoded: int) -> bool:
        most_inputs = (self._most_undecoded + _DEPTH - _UNDECODED - 1) * self._block_inputs
        return worker.has_room(min(undecoded, self._most_undecoded), most_inputs, self._limits.worker_held_bytes)

    def _next_piece(self) -> Piece | None:
        """Return a piece that waits for a worker, else the next of the source; None where there is neither."""
        if self._queue:
            piece = self._queue.pop(0)
            if self._is_shared:
                together = sum(not worker.is_alone for worker in self._workers)
                share = -(-sum(len(p.task.paths) for p in [piece, *self._queue]) // max(1, together))
                if share < len(piece.task.paths):
                    self._queue.insert(0, self._offsets.cut(piece, piece.start + share))
            return piece
        task = next(self._source, None)
        if task is None:
            self._is_exhausted = True
            return None
        self._block_inputs = max(self._block_inputs, len(task.paths))
        self._most_undecoded = max(_UNDECODED, -(-self._ahead // max(1, self._block_inputs)))
        return self._offsets.add(task)

    def _write(self, piece: Piece) -> None:
        """Have a piece written by the worker that has it, if one does."""
        for worker in self._workers:
            if piece.start in worker.pieces:
                worker.write(piece)
                return

    def _start(self, *, is_alone: bool = False) -> WorkerHandle:
        """Start a worker that has nothing to do yet."""
        process: WorkerProcess
        in_flight: Shared
        if self._launcher is None:
            started = time.perf_counter()
            inherited = [*self._inherited, *(worker.pipe for worker in self._workers)]
            process, pipe, in_flight = start_worker(self._context, self._job, inherited)
        else:
            process, pipe = self._launcher.start(self._job)
            started, in_flight = time.perf_counter(), [-1, 0, 0, 0]
        self._started += 1
        name, now = f"worker {self._started}", time.monotonic()
        self._workers.append(WorkerHandle(process, pipe, in_flight, name, started, now, is_alone=is_alone))
        return self._workers[-1]

    def _end_if_done(self, worker: WorkerHandle) -> bool:
        """End a worker that stands alone and has nothing left; returns whether it did."""
        is_done = worker.is_alone and not worker.pieces and not worker.later
        if is_done:
            self._end(worker)
        return is_done

    def _end(self, worker: WorkerHandle) -> None:
        """End a worker; it has still the pieces that it leaves behind."""
        worker.end()
        self._workers.remove(worker)
        self.profile[worker.name] = worker.seconds(time.perf_counter())

    def _replace(self, worker: WorkerHandle, reason: str, *, is_blamed: bool = True) -> None:
        """Give out again what a dead worker had, and start another.

        The image in flight goes to a worker of its own, so that it is tried once more, alone. If that costs another worker, it
        is rejected with the reason. One that is not to blame is tried again as any other.
        """
        self._end(worker)
        lost, suspect = {*worker.pieces.values(), *worker.later}, worker.suspect() if is_blamed else None
        for piece in lost:
            piece.is_held = False
        if suspect is not None:
            suspect, others = self._offsets.isolate(suspect, int(worker.in_flight[0]), reason)
            lost = (lost | {*others}) - {suspect}
        else:
            self._idle_deaths += 1
            if self._idle_deaths > _MAX_IDLE_DEATHS:
                raise EngineError(f"workers end without getting anything done ({reason}).")
        self._queue = sorted([*self._queue, *lost], key=first_input)
        if suspect is not None:
            self._start(is_alone=True).give(suspect)
        self._refill()
