"""Workers that are killed at each message, by real processes: every block is at its place, with the bytes of one worker's run."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Tune

from packer.errors import EngineError
from packer.store.tasks import Result, Task
from packer.workers.engine import LocalEngine
from packer.workers.processes import InFlight

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked")
BLOCKS, FIRST = 7, 100
POINTS = ("begin", "image", "decoded", "sent", "write", "half", "written", "told")


@dataclass(frozen=True)
class FakeJob:
    """Blocks of n + 1 bytes each; a worker kills itself at the points that `deaths` names, as many times as that says."""

    folder: Path
    deaths: tuple[tuple[str, int], ...] = ()
    times: int = 1

    def worker(self, in_flight: InFlight) -> FakeWorker:
        return FakeWorker(self, in_flight)


class FakeWorker:
    """Dies by SIGKILL before or after it does something, or half done with it."""

    def __init__(self, job: FakeJob, in_flight: InFlight) -> None:
        self._job, self._marks = job, in_flight
        self._file = os.open(job.folder / "rows", os.O_WRONLY)
        self._last, self._rows = ("", -1), dict[int, bytes]()

    def expect(self, task: Task) -> None:
        """Nothing is far away."""

    def decode(self, task: Task) -> Result:
        self._next()
        self._at("begin", task.block)
        if task.start not in task.refused:
            self._marks.mark(task.start)
            self._at("image", task.block)
            if (self._job.folder / f"write-{task.block}-0").exists():
                self._at("again", task.block)
                self._at("once more", task.block)
            self._marks.mark(-1)
        self._at("decoded", task.block)
        self._last = "sent", task.block
        self._rows[task.block] = b"" if task.start in task.refused else bytes([task.block + 1]) * (task.block + 1)
        return Result(task.block, 1, rows=bool(self._rows[task.block]), size_bytes=len(self._rows[task.block]))

    def write(self, block: int, offset: int) -> None:
        self._next()
        self._at("write", block)
        data = self._rows.pop(block)
        os.pwrite(self._file, data[: len(data) // 2], offset)
        self._at("half", block)
        os.pwrite(self._file, data, offset)
        self._at("written", block)
        self._last = "told", block

    def _next(self) -> None:
        """The message before has been sent."""
        self._at(*self._last)

    def _at(self, point: str, block: int) -> None:
        if (point, block) in self._job.deaths:
            for number in range(self._job.times):
                with contextlib.suppress(FileExistsError):
                    (self._job.folder / f"{point}-{block}-{number}").mkdir()
                    os.kill(os.getpid(), signal.SIGKILL)


def run(job: FakeJob, workers: int) -> tuple[list[Result], bytes]:
    """Return the results, and the file of rows."""
    (job.folder / "rows").write_bytes(b"")
    tasks: Iterator[Task] = (Task(n, n, [f"{n}"], [0]) for n in range(BLOCKS))
    engine = LocalEngine(job, workers=workers)
    looks = itertools.count()
    try:
        found = list(engine.run(tasks, FIRST, ready=lambda: _not_forever(next(looks))))
    finally:
        engine.close()
    return found, (job.folder / "rows").read_bytes()[FIRST:]


def _not_forever(looks: int) -> None:
    assert looks < 400, "no worker makes progress"


EXPECTED = b"".join(bytes([n + 1]) * (n + 1) for n in range(BLOCKS))


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("point", POINTS)
def test_a_worker_that_is_killed_at_a_message_costs_nothing(point: str, workers: int, tmp_path: Path) -> None:
    for block in range(BLOCKS):
        folder = tmp_path / str(block)
        folder.mkdir()
        results, rows = run(FakeJob(folder, ((point, block),)), workers)
        assert [result.block for result in results] == list(range(BLOCKS))
        assert rows == EXPECTED


@pytest.mark.parametrize(("one", "other"), [*itertools.combinations(POINTS, 2)])
def test_two_workers_that_are_killed_cost_nothing(one: str, other: str, tmp_path: Path) -> None:
    """Of one block, and of the one before: a block that has its place is lost while others wait behind it."""
    for number, deaths in enumerate((((one, 2), (other, 2)), ((one, 2), (other, 1)))):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert run(FakeJob(folder, deaths), 2)[1] == EXPECTED


def test_an_image_that_kills_twice_is_refused_and_costs_no_other(tmp_path: Path) -> None:
    results, rows = run(FakeJob(tmp_path, (("image", 3), ("image", 4)), times=9), 2)
    assert [result.rows for result in results] == [1, 1, 1, 0, 0, 1, 1]
    assert rows == b"".join(bytes([n + 1]) * (n + 1) for n in range(BLOCKS) if n not in (3, 4))
    assert sorted(path.name for path in tmp_path.glob("image-*")) == [
        "image-3-0",
        "image-3-1",
        "image-4-0",
        "image-4-1",
    ]


def test_an_image_that_was_decoded_whole_is_not_to_blame_for_what_ends_later_workers(tmp_path: Path) -> None:
    assert run(FakeJob(tmp_path, (("write", 3), ("again", 3), ("once more", 3))), 2)[1] == EXPECTED
    assert {"again-3-0", "once more-3-0"} <= {path.name for path in tmp_path.iterdir()}


def test_a_block_that_is_another_once_it_has_its_place_ends_the_run(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Changing(FakeJob):
        def worker(self, in_flight: InFlight) -> FakeWorker:
            worker = FakeWorker(self, in_flight)
            decode = worker.decode

            def changed(task: Task) -> Result:
                result = decode(task)
                result.size_bytes += task.block == 3 and (self.folder / "write-3-0").exists()
                return result

            worker.decode = changed  # type: ignore[method-assign]
            return worker

    with pytest.raises(EngineError, match="3, or an image soon after it, was changed meanwhile"):
        run(Changing(tmp_path, (("write", 3),)), 2)


@pytest.mark.parametrize("point", ["begin", "write"])
def test_workers_that_end_without_getting_anything_done_are_given_up(point: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="workers end without finishing a block .its worker ended .killed by SIGKILL"):
        run(FakeJob(tmp_path, tuple((point, n) for n in range(BLOCKS)), times=9), 2)


def test_a_worker_that_waits_for_its_place_may_wait_longer_than_the_timeout(tmp_path: Path, tune: Tune) -> None:
    tune(worker_seconds=1.5)

    @dataclass(frozen=True)
    class Slow(FakeJob):
        def worker(self, in_flight: InFlight) -> FakeWorker:
            worker = FakeWorker(self, in_flight)
            decode = worker.decode

            def slowly(task: Task) -> Result:
                if task.block == 0:
                    for _ in range(30):
                        worker._marks.mark(0)
                        signal.sigtimedwait((), 0.1)
                return decode(task)

            worker.decode = slowly  # type: ignore[method-assign]
            return worker

    results, rows = run(Slow(tmp_path), 2)
    assert rows == EXPECTED
    assert not any(result.rejects for result in results)
