"""Who is told what, move by move: workers that a test plays, without a process and without waiting for a clock.

Blocks have 2 inputs each, block 3 those numbered 6 and 7; the file begins at place 100.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import pytest

from packer import engine as engines
from packer.processes import EngineError
from packer.tasks import Result, Task

FIRST = 100


class Played:
    """A worker's process, and its end of the connection; `told` is what it was told and has not answered, as words."""

    exitcode: int | None = None

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.is_ended, self._in_flight, self._marks = False, -1, 0
        self.theirs, self._end = Pipe()
        self._messages: list[tuple[Any, ...]] = []
        self._held: dict[int, int] = {}

    def kill(self) -> None:
        self.is_ended = True
        self._end.close()

    def join(self, seconds: float) -> None:
        """Learn its exit code, as of a process that had no memory."""
        self.exitcode = 101

    @property
    def told(self) -> list[str]:
        while not self.is_ended and self._end.poll():
            self._messages.append(self._end.recv())
        return [words(*message) for message in self._messages]

    def begin(self, index: int) -> None:
        """Say which image is in flight; -1: none."""
        self._in_flight, self._marks = index, self._marks + 1
        self._end.send(("mark", index, self._marks, 0))

    def decoded(self, block: int, rows: int = 2) -> None:
        """Answer that a block is decoded; then nothing is in flight."""
        if self._in_flight != -1:
            self.begin(-1)
        self._answer("decode", block)
        self._held[block] = rows
        self._end.send(("decoded", Result(block, 2, rows=rows)))

    def written(self, block: int) -> None:
        """Answer that a block is written, and write it."""
        _, _, first_row = self._answer("write", block)
        for number in range(self._held.pop(block)):
            self.scene.file[first_row + number] = (block, number)
        self._end.send(("written", block, {}))

    def failed(self, error: OSError) -> None:
        """Say what the disk said."""
        self._end.send(("failed", error))

    def _answer(self, kind: str, block: int) -> tuple[Any, ...]:
        told = self.told  # reads them
        found = [m for m in self._messages if m[0] == kind and (m[1].block if kind == "decode" else m[1]) == block]
        assert found, f"{kind} {block} is not among {told}"
        self._messages.remove(found[0])
        return found[0]

    def obey(self) -> None:
        """Answer all that it was told, in order; an image that is refused is no row."""
        for kind, block, *_ in [word.split() for word in self.told]:
            if kind == "decode":
                refused = next(m[1].refused for m in self._messages if m[0] == "decode" and m[1].block == int(block))
                self.decoded(int(block), 2 - len(refused))
            else:
                self.written(int(block))


def words(kind: str, what: Any, place: int | None = None) -> str:
    """Say a message in words: "write 3 at 106", "decode 3 first 7", "decode 3 refused 7: why"."""
    if kind == "write":
        return f"write {what} at {place}"
    first, refused = (
        "".join(f" first {i}" for i in what.first),
        "".join(f" refused {i}: {why}" for i, why in what.refused.items()),
    )
    return f"decode {what.block}{first}{refused}"


class Scene:
    """Job and launcher of an engine, all its workers, its clock, and the file that they write."""

    def __init__(self) -> None:
        self.all: list[Played] = []
        self.file: dict[int, tuple[int, int]] = {}
        self.now, self.timeout, self.guesses = 0.0, 30, True

    @property
    def workers(self) -> list[Played]:
        return [worker for worker in self.all if not worker.is_ended]

    def start(self, job: Any) -> tuple[Any, Any]:
        self.all.append(Played(self))
        return self.all[-1], self.all[-1].theirs

    def guessed_places(self, task: Task) -> int | None:
        return 1 - len(task.refused) if self.guesses else None

    def play(self, moves: Iterator[Any], *, workers: int, blocks: int) -> list[Result]:
        """Run the engine, a move of the script whenever it has heard all workers out; then they obey. Returns the results."""
        tasks = (Task(n, 2 * n, ["", ""], [0, 0]) for n in range(blocks))
        engine = engines.LocalEngine(self, workers=workers, timeout=self.timeout, launcher=self)  # type: ignore[arg-type]
        looks = 0

        def ready() -> None:
            nonlocal looks
            looks += 1
            assert looks < 1000, f"nothing goes on: {[worker.told for worker in self.workers]}"
            if any(not worker.theirs.closed and worker.theirs.poll() for worker in self.all):
                return
            if next(moves, "over") == "over":
                for worker in self.workers:
                    worker.obey()

        try:
            results = list(engine.run(tasks, FIRST, ready=ready))
        finally:
            engine.close()
        assert [result.block for result in results] == list(range(blocks))
        rows = [(result.block, number) for result in results for number in range(result.rows)]
        # each row in its place, whatever was written elsewhere meanwhile
        assert [self.file[FIRST + place] for place in range(len(rows))] == rows
        return results


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    clock = types.SimpleNamespace(monotonic=lambda: scene.now, perf_counter=lambda: scene.now)
    monkeypatch.setattr(engines, "time", clock)
    monkeypatch.setattr(engines, "_POLL_SECONDS", 0.0)
    return scene


def test_a_worker_holds_four_blocks_of_which_it_has_two_to_decode(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        assert (first.told, other.told) == (["decode 0", "decode 2"], ["decode 1", "decode 3"])
        for block, more in ((1, ["decode 4"]), (3, ["decode 5"]), (4, []), (5, [])):
            left = [word for word in other.told if word != f"decode {block}"]
            other.decoded(block)
            yield
            assert other.told == left + more
        first.decoded(0)
        yield
        assert first.told == ["decode 2", "write 0 at 100", "decode 6"]
        assert other.told == ["write 1 at 102"]

    scene.play(script(), workers=2, blocks=8)


def test_a_block_that_is_lost_goes_to_the_place_that_it_had(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.decoded(0)
        worker.decoded(1)
        yield
        assert worker.told == ["write 0 at 100", "decode 2", "write 1 at 102", "decode 3"]
        worker.kill()
        yield
        (worker,) = scene.workers
        assert worker.told == ["decode 0", "write 0 at 100", "decode 1", "write 1 at 102", "decode 2", "decode 3"]

    scene.play(script(), workers=1, blocks=5)


def test_what_a_lost_block_takes_is_known_before_it_is_decoded_again(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        other.decoded(1)
        yield
        other.kill()
        yield
        _, other = scene.workers
        assert other.told == ["decode 1", "decode 3", "decode 4"]
        first.decoded(0)
        yield
        assert other.told == ["decode 1", "decode 3", "decode 4", "write 1 at 102"]
        other.begin(2)
        yield
        scene.now += 2
        first.begin(4)
        yield
        assert other.told == ["decode 1", "decode 3", "decode 4", "write 1 at 102"]
        assert scene.workers[2].told == ["decode 3", "decode 4"]

    scene.play(script(), workers=2, blocks=8)


def test_what_is_lost_is_given_out_in_order(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        for block in (1, 3, 4):
            other.decoded(block)
            yield
        first.kill()
        yield
        assert other.told == ["decode 2"]
        other.kill()
        yield
        first, other = scene.workers
        assert first.told == ["decode 0"]
        assert other.told == ["decode 1", "decode 2", "decode 3", "decode 4"]

    scene.play(script(), workers=2, blocks=5)


def test_a_worker_that_dies_as_it_is_told_a_place_is_replaced(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        first.decoded(0)
        first.decoded(2)
        yield
        first.kill()
        other.decoded(1)
        yield
        _, fresh = scene.workers
        assert fresh.told[:4] == ["decode 0", "write 0 at 100", "decode 2", "write 2 at 104"]

    scene.play(script(), workers=2, blocks=8)


def test_what_the_disk_says_ends_all(scene: Scene) -> None:
    def script() -> Iterator[None]:
        scene.workers[0].failed(OSError(28, "No space left on device"))
        yield

    with pytest.raises(OSError, match="No space left"):
        scene.play(script(), workers=2, blocks=8)
    assert scene.workers == []


def test_a_suspect_is_tried_alone_then_refused_and_the_rest_is_given_to_a_fresh_worker(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.decoded(0)
        worker.begin(3)
        yield
        worker.kill()
        yield
        alone, fresh = scene.workers
        assert alone.told == ["decode 1 first 3"]
        assert fresh.told == ["decode 0", "write 0 at 100", "decode 2", "decode 3"]
        alone.begin(2)  # another image of its block
        yield
        alone.kill()
        yield
        _, alone = scene.workers
        assert alone.told == ["decode 1 first 2 first 3"]
        alone.begin(3)
        yield
        alone.kill()
        yield
        _, alone = scene.workers
        why = "its worker ended (there was not enough memory for it)"
        assert alone.told == [f"decode 1 first 2 refused 3: {why}"]
        alone.obey()
        yield
        alone.written(1)
        yield
        assert alone.is_ended

    results = scene.play(script(), workers=1, blocks=5)
    assert [result.rows for result in results] == [2, 1, 2, 2, 2]


def test_the_others_go_around_a_slow_image_and_place_their_blocks_on_a_guess(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, slow = scene.workers
        slow.begin(0)
        other.decoded(1)
        yield
        scene.now += 2
        yield
        _, _, fresh = scene.workers
        assert slow.told == ["decode 0", "decode 2", "write 0 at 100"]
        assert fresh.told == ["decode 2", "decode 5"]
        assert other.told == ["decode 3", "decode 4", "write 1 at 101"]
        slow.decoded(0, 1)
        slow.decoded(2)  # which is another's by now
        yield
        assert slow.told == ["write 0 at 100"]
        assert fresh.told == ["decode 2", "decode 5"]
        slow.written(0)
        yield
        assert slow.is_ended

    scene.play(script(), workers=2, blocks=8)


def test_what_a_slow_worker_has_decoded_stays_with_it(scene: Scene) -> None:
    def script() -> Iterator[None]:
        slow, first = scene.workers
        slow.decoded(1)
        slow.begin(6)
        yield
        scene.now += 2
        first.begin(0)
        first.begin(1)
        yield
        assert slow.told == ["decode 3", "decode 4"]
        assert scene.workers[2].told == ["decode 4", "decode 5"]
        first.decoded(0)
        yield
        assert slow.told == ["decode 3", "decode 4", "write 1 at 102"]
        slow.kill()
        yield
        _, _, alone = scene.workers
        assert alone.told == ["decode 3 first 6", "decode 1", "write 1 at 102"]

    scene.play(script(), workers=2, blocks=8)


def test_after_a_wrong_guess_all_begins_again_and_no_second_guess_is_made(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, slow = scene.workers
        slow.decoded(0)
        yield
        slow.written(0)
        slow.begin(4)
        other.decoded(1)
        other.decoded(3)
        yield
        scene.now += 2
        yield
        assert slow.told[-1] == "write 2 at 104"
        slow.decoded(2)
        yield
        assert slow.is_ended
        other, slow = scene.workers
        assert (slow.told, other.told) == (["decode 1", "decode 3"], ["decode 2", "decode 4"])
        slow.decoded(1)
        other.begin(4)
        yield
        scene.now += 2
        yield
        _, _, fresh = scene.workers
        assert other.told == ["decode 2", "decode 4"]
        assert fresh.told == ["decode 4", "decode 6"]
        fresh.kill()
        yield
        _, _, fresh = scene.workers
        assert fresh.told == ["decode 4", "decode 6"]

    scene.play(script(), workers=2, blocks=8)


@pytest.mark.parametrize("guesses", [True, False])
def test_a_guess_is_made_once_all_before_are_counted_and_only_where_one_can_be(scene: Scene, guesses: bool) -> None:
    scene.guesses = guesses

    def script() -> Iterator[None]:
        slow, first = scene.workers
        slow.begin(2)
        first.begin(0)
        yield
        scene.now += 2
        first.begin(1)
        yield
        assert slow.told == ["decode 1", "decode 3"]
        first.decoded(0)
        yield
        assert slow.told == ["decode 1", "decode 3", *(["write 1 at 102"] if guesses else [])]

    scene.play(script(), workers=2, blocks=8)


def test_where_all_stand_still_there_are_twice_as_many_workers_and_no_more(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (slow,) = scene.workers
        slow.begin(0)
        yield
        scene.now += 2
        yield
        _, second = scene.workers
        assert second.told == ["decode 1", "decode 2"]
        second.begin(2)
        yield
        scene.now += 2
        yield
        assert len(scene.workers) == 2
        second.kill()
        yield
        _, third = scene.workers
        assert third.told == ["decode 1 first 2", "decode 2"]
        slow.decoded(0, 1)
        yield
        slow.written(0)
        yield
        _, fresh = scene.workers
        assert fresh.told == ["decode 3", "decode 4"]

    scene.play(script(), workers=1, blocks=6)


def test_a_worker_that_waits_for_its_turn_may_wait_for_ever(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        other.decoded(1)
        other.decoded(3)
        for number in range(100):
            first.begin(number % 2)
            scene.now += 0.9
            yield
        assert scene.workers == [other, first]

    scene.play(script(), workers=2, blocks=4)


@pytest.mark.parametrize(("timeout", "patience"), [(30, 60), (90, 90)])
def test_each_block_that_is_written_shows_that_a_worker_is_alive(scene: Scene, timeout: int, patience: int) -> None:
    scene.timeout = timeout

    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.decoded(0)
        worker.decoded(1)
        yield
        scene.now += patience - 1
        yield
        worker.written(0)
        yield
        scene.now += patience - 1
        yield
        assert scene.workers == [worker]
        scene.now += 2
        yield
        (worker,) = scene.workers
        assert worker.told[:2] == ["decode 1", "write 1 at 102"]

    scene.play(script(), workers=1, blocks=5)


@pytest.mark.parametrize("is_written", [True, False])
def test_workers_that_end_four_times_without_getting_anything_done_are_given_up(scene: Scene, is_written: bool) -> None:
    def script() -> Iterator[None]:
        for number in range(6):
            if number == 3 and is_written:
                (worker,) = scene.workers
                worker.decoded(0)
                yield
                worker.written(0)
                yield
            scene.workers[0].kill()
            yield

    if is_written:
        scene.play(script(), workers=1, blocks=4)
    else:
        with pytest.raises(EngineError, match=r"workers end without getting anything done \(its worker ended"):
            scene.play(script(), workers=1, blocks=4)
        assert len(scene.all) == 4
