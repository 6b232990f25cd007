"""Who is sent what, move by move: workers that a test plays, without a process and without waiting for a clock.

Blocks have 2 inputs each, block 3 those numbered 6 and 7; a row is one byte, and the first is at byte 100.
A piece of a block is named by its inputs: 6: is the first half of block 3, :7 the second.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from multiprocessing.connection import Pipe
from typing import Any

import pytest
from conftest import Tune

from packer.errors import EngineError
from packer.store.blocks import Result, Task
from packer.workers import engine as engines
from packer.workers import pieces

FIRST = 100


class Played:
    """A worker's process, and its end of the connection; `orders` is what it was sent and has not answered, as words."""

    exitcode: int | None = None

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.is_ended, self._in_flight, self._marks = False, -1, 0
        self.theirs, self._end = Pipe()
        self._messages: list[tuple[Any, ...]] = []
        self._held: dict[int, int] = {}
        # what it has given back, and is still asked to write
        self._gone: set[int] = set()

    def kill(self) -> None:
        self.is_ended = True
        self._end.close()

    def join(self, seconds: float) -> None:
        """Learn its exit code, as of a process that had no memory."""
        self.exitcode = 101

    @property
    def orders(self) -> list[str]:
        while not self.is_ended and self._end.poll():
            message = self._end.recv()
            if message[0] == "release":
                self._release()
                continue
            if message[0] == "decode":
                self._gone.discard(message[1].start)
            if message[0] == "decode" or message[1] not in self._gone:
                self._messages.append(message)
        return [words(*message) for message in self._messages]

    def begin(self, index: int) -> None:
        """Say which image is in flight; -1: none."""
        self._in_flight, self._marks = index, self._marks + 1
        self._end.send(("mark", index, self._marks, 0, 0))

    def decoded(self, name: str | int, rows: int | None = None, inputs: int | None = None) -> None:
        """Answer that a piece is decoded, or its first inputs; then nothing is in flight."""
        task = self._answer("decode", name)[1]
        if self._in_flight != -1:
            self.begin(-1)
        count = len(task.paths) if inputs is None else inputs
        rows = count - len(task.refused) if rows is None else rows
        self._held[task.start] = rows
        self._end.send(("decoded", Result(task.block, count, rows=rows, size_bytes=rows), task.start))

    def written(self, name: str | int) -> None:
        """Answer that a piece is written, and write it."""
        _, start, offset = self._answer("write", name)
        rows = self._held.pop(start)
        for number in range(rows):
            self.scene.file[offset + number] = (start, number)
        self._end.send(("written", start, {}))

    def say_alive(self) -> None:
        """Say that it runs, as one on another machine does every second."""
        self._end.send(("alive",))

    def failed(self, error: OSError) -> None:
        """Say what the disk said."""
        self._end.send(("failed", error))

    def _release(self) -> None:
        """Give back what is behind the image in flight."""
        released = []
        for message in [m for m in self._messages if m[0] == "decode"]:
            task = message[1]
            stop = self._in_flight + 1 if task.start <= self._in_flight < task.stop else task.start
            if stop == task.stop:
                continue
            released.append((task.start, stop))
            position = self._messages.index(message)
            self._messages[position : position + 1] = (
                [("decode", task.cut(task.start, stop))] if stop > task.start else []
            )
        self._gone.update(start for start, stop in released if start == stop)
        self._messages = [m for m in self._messages if m[0] == "decode" or m[1] not in self._gone]
        self._end.send(("released", released))

    def _answer(self, kind: str, name: str | int) -> tuple[Any, ...]:
        orders, word = self.orders, f"{kind} {name}"  # reads them
        position = next((n for n, words in enumerate(orders) if f"{words} ".startswith(f"{word} ")), None)
        assert position is not None, f"{word} is not among {orders}"
        return self._messages.pop(position)

    def obey(self) -> None:
        """Answer all that it was sent, in order; an image that is refused is no row."""
        for kind, name, *_ in [word.split() for word in self.orders]:
            (self.decoded if kind == "decode" else self.written)(name)


def words(kind: str, what: Any, position: int | None = None) -> str:
    """Say a message in words: "write 3 at 106", "decode 3", "decode 6:", "decode :7 refused: why"."""
    if kind == "write":
        # that what is written is a piece is known by its place alone
        return f"write {what // 2 if what % 2 == 0 else f':{what}'} at {position}"
    name = what.block if len(what.paths) == 2 else f":{what.start}" if what.start % 2 else f"{what.start}:"
    return f"decode {name}{''.join(f' refused: {why}' for why in what.refused.values())}"


class Scene:
    """Job and launcher of an engine, all its workers, its clock, and the file that they write."""

    def __init__(self) -> None:
        self.all: list[Played] = []
        self.file: dict[int, tuple[int, int]] = {}
        self.now, self.timeout, self.guesses, self.moves, self.is_local = 0.0, 30, True, True, False

    @property
    def workers(self) -> list[Played]:
        return [worker for worker in self.all if not worker.is_ended]

    def start(self, job: Any) -> tuple[Any, Any]:
        self.all.append(Played(self))
        return self.all[-1], self.all[-1].theirs

    def guessed_bytes(self, task: Task) -> int | None:
        return len(task.paths) - len(task.refused) if self.guesses else None

    def move(self, source: int, target: int, count: int) -> None:
        assert target < source
        for number in range(count):
            self.file[target + number] = self.file[source + number]

    def play(
        self, moves: Iterator[Any], *, workers: int, blocks: int, at_most: int | None = None, inputs_ahead: int = 0
    ) -> list[Result]:
        """Run the engine, a move of the script whenever it has heard all workers out; then they obey. Returns the results."""
        tasks = (Task(n, 2 * n, ["", ""], [0, 0]) for n in range(blocks))
        options: dict[str, Any] = {"timeout": self.timeout, "launcher": None if self.is_local else self}
        options["inputs_ahead"] = inputs_ahead
        engine = engines.LocalEngine(
            self, workers=workers, move=self.move if self.moves else None, at_most=at_most, **options
        )  # type: ignore[arg-type]
        looks = 0

        def ready() -> None:
            nonlocal looks
            looks += 1
            assert looks < 1000, f"no worker makes progress: {[worker.orders for worker in self.workers]}"
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
        # each block's rows in their place, whatever was written elsewhere meanwhile
        rows_left = iter(range(FIRST, FIRST + sum(result.rows for result in results)))
        for result in results:
            rows = [self.file[next(rows_left)] for _ in range(result.rows)]
            assert rows == sorted(rows)
            assert {start // 2 for start, _ in rows} <= {result.block}
        return results


@pytest.fixture
def scene(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> Scene:
    scene = Scene()
    clock = types.SimpleNamespace(monotonic=lambda: scene.now, perf_counter=lambda: scene.now)
    monkeypatch.setattr(engines, "time", clock)
    monkeypatch.setattr(engines, "start_worker", lambda context, job, inherited: (*scene.start(job), [-1, 0, 0]))
    tune(engine_poll_seconds=0.0)
    # a test's clock passes in jumps
    tune(longest_look_seconds=math.inf)
    return scene


def test_a_worker_holds_four_blocks_of_which_it_has_two_to_decode(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        assert (first.orders, other.orders) == (["decode 0", "decode 2"], ["decode 1", "decode 3"])
        for block, more in ((1, ["decode 4"]), (3, ["decode 5"]), (4, []), (5, [])):
            left = [word for word in other.orders if word != f"decode {block}"]
            other.decoded(block)
            yield
            assert other.orders == left + more
        first.decoded(0)
        yield
        assert first.orders == ["decode 2", "write 0 at 100", "decode 6"]
        assert other.orders == ["write 1 at 102"]

    scene.play(script(), workers=2, blocks=8)


def test_a_worker_whose_sources_are_far_away_has_more_blocks_to_decode(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        # in turns, until each has 6 inputs that are not decoded
        assert (first.orders, other.orders) == (
            ["decode 0", "decode 2", "decode 4"],
            ["decode 1", "decode 3", "decode 5"],
        )
        first.decoded(0)
        yield
        assert first.orders == ["decode 2", "decode 4", "write 0 at 100", "decode 6"]

    scene.play(script(), workers=2, blocks=9, inputs_ahead=6)


def test_a_block_that_is_lost_goes_to_the_offset_that_it_had(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.decoded(0)
        worker.decoded(1)
        yield
        assert worker.orders == ["write 0 at 100", "decode 2", "write 1 at 102", "decode 3"]
        worker.kill()
        yield
        (worker,) = scene.workers
        assert worker.orders == ["decode 0", "write 0 at 100", "decode 1", "write 1 at 102", "decode 2", "decode 3"]

    scene.play(script(), workers=1, blocks=5)


def test_what_a_lost_block_takes_is_known_before_it_is_decoded_again(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        other.decoded(1)
        yield
        other.kill()
        yield
        _, other = scene.workers
        assert other.orders == ["decode 1", "decode 3", "decode 4"]
        first.decoded(0)
        yield
        assert other.orders == ["decode 1", "decode 3", "decode 4", "write 1 at 102"]
        other.begin(2)
        yield
        scene.now += 2
        first.begin(4)
        yield
        assert other.orders == ["decode 2:", "write 1 at 102"]
        yield
        assert scene.workers[2].orders == ["decode :3", "write :3 at 103", "decode 3"]

    scene.play(script(), workers=2, blocks=8)


def test_what_is_lost_is_given_out_in_order(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        for block in (1, 3, 4):
            other.decoded(block)
            yield
        first.kill()
        yield
        assert other.orders == ["decode 2"]
        other.kill()
        yield
        first, other = scene.workers
        assert first.orders == ["decode 0"]
        assert other.orders == ["decode 1", "decode 2", "decode 3", "decode 4"]

    scene.play(script(), workers=2, blocks=5)


def test_a_worker_that_dies_as_it_gets_an_offset_is_replaced(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        first.decoded(0)
        first.decoded(2)
        yield
        first.kill()
        other.decoded(1)
        yield
        _, fresh = scene.workers
        assert fresh.orders[:4] == ["decode 0", "write 0 at 100", "decode 2", "write 2 at 104"]

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
        assert alone.orders == ["decode :3"]
        assert fresh.orders == ["decode 0", "write 0 at 100", "decode 2:", "decode 2"]
        alone.begin(3)
        yield
        alone.kill()
        yield
        _, alone = scene.workers
        assert alone.orders == ["decode :3 refused: its worker ended (there was not enough memory for it)"]
        alone.obey()
        fresh.obey()
        yield
        fresh.obey()
        alone.obey()
        yield
        assert alone.is_ended

    results = scene.play(script(), workers=1, blocks=5)
    assert [result.rows for result in results] == [2, 1, 2, 2, 2]


def test_the_others_go_around_a_slow_image_on_the_guess_that_it_becomes_a_row(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, slow = scene.workers
        slow.begin(0)
        other.decoded(1)
        yield
        scene.now += 2
        yield
        assert slow.orders == ["decode 0:", "write 0 at 100"]
        yield
        fresh = scene.workers[2]
        assert fresh.orders == ["decode :1", "write :1 at 101", "decode 2"]
        assert other.orders == ["decode 3", "decode 4", "write 1 at 102"]
        slow.decoded("0:")
        yield
        assert slow.orders == ["write 0 at 100"]
        slow.written(0)
        yield
        assert slow.is_ended

    scene.play(script(), workers=2, blocks=8)
    # nothing was decoded twice
    assert len(scene.all) == 3


def test_a_wrong_guess_costs_a_move_of_what_is_behind_it_and_no_decoding(scene: Scene) -> None:
    """Image 4 is slow, then is none; meanwhile blocks are written behind the place that it was to have."""
    moved: list[tuple[int, int, int]] = []
    original = scene.move
    scene.move = lambda *what: (moved.append(what), original(*what))  # type: ignore[method-assign]

    def script() -> Iterator[None]:
        other, slow = scene.workers
        slow.decoded(0)
        other.decoded(1)
        yield
        slow.written(0)
        slow.begin(4)
        other.written(1)
        other.decoded(3)
        yield
        scene.now += 2
        yield
        assert slow.orders[:2] == ["decode 4:", "write 2 at 104"]
        yield
        fresh = scene.workers[2]
        assert fresh.orders[:2] == ["decode :5", "write :5 at 105"]
        assert other.orders[-1] == "write 3 at 106"
        fresh.decoded(":5")
        other.written(3)
        yield
        fresh.written(":5")
        slow.decoded("4:", rows=0)
        yield
        holder = next(worker for worker in (other, fresh) if "decode 4" in worker.orders)
        holder.decoded(4)
        yield
        # block 4 waits until what is behind the gap was moved
        assert not any(word.startswith("write 4") for word in holder.orders)
        slow.written(2)
        yield
        yield
        assert moved == [(105, 104, 1), (106, 105, 2)]
        assert "write 4 at 107" in holder.orders

    results = scene.play(script(), workers=2, blocks=8)
    assert [result.rows for result in results] == [2, 2, 1, 2, 2, 2, 2, 2]
    assert len(scene.all) == 3


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
        assert slow.orders == ["decode 6:"]
        while not any("decode :7" in worker.orders for worker in scene.workers if worker is not slow):
            for worker in scene.workers[2:]:
                worker.obey()
            yield
        first.decoded(0)
        yield
        assert slow.orders == ["decode 6:", "write 1 at 102"]
        slow.kill()
        yield
        alone = scene.workers[-1]
        assert alone.orders == ["decode 6:"]

    scene.play(script(), workers=2, blocks=8)


def test_where_nothing_can_be_moved_a_wrong_guess_begins_again_and_no_second_is_made(scene: Scene) -> None:
    scene.moves = False

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
        assert slow.orders[-1] == "write 2 at 104"
        yield
        slow.decoded("4:", rows=0)
        yield
        assert slow.is_ended
        second, first = scene.workers
        assert (first.orders, second.orders) == (["decode 1", "decode :5"], ["decode 4:", "decode 3"])
        first.decoded(1)
        second.begin(4)
        yield
        scene.now += 2
        yield
        # its place is not guessed again
        assert second.orders == ["decode 4:"]

    results = scene.play(script(), workers=2, blocks=8)
    assert [result.rows for result in results] == [2] * 8


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
        assert slow.orders == ["decode 2:"]
        first.decoded(0)
        yield
        assert slow.orders == ["decode 2:", *(["write 1 at 102"] if guesses else [])]

    scene.play(script(), workers=2, blocks=8)


def test_where_all_stand_still_there_are_twice_as_many_workers_and_no_more(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (slow,) = scene.workers
        slow.begin(0)
        yield
        scene.now += 2
        yield
        assert slow.orders == ["decode 0:", "write 0 at 100"]
        yield
        _, second = scene.workers
        assert second.orders == ["decode :1", "write :1 at 101", "decode 1"]
        second.begin(1)
        yield
        scene.now += 2
        yield
        assert len(scene.workers) == 2
        second.kill()
        yield
        _, third = scene.workers
        assert third.orders == ["decode :1", "write :1 at 101"]
        slow.decoded("0:")
        yield
        slow.written(0)
        yield
        _, fresh = scene.workers
        assert fresh.orders == ["decode 1", "decode 2"]

    scene.play(script(), workers=1, blocks=6)


def test_a_worker_that_waits_for_its_turn_may_wait_forever(scene: Scene) -> None:
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
        assert worker.orders[:2] == ["decode 1", "write 1 at 102"]

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


# -- sharing what is left


def test_a_worker_with_nothing_to_do_gets_what_another_has_not_started(scene: Scene) -> None:
    def script() -> Iterator[None]:
        other, first = scene.workers
        assert (first.orders, other.orders) == (["decode 0", "decode 2"], ["decode 1"])
        first.begin(0)
        other.decoded(1)
        yield
        scene.now += 0.2
        yield
        assert first.orders == ["decode 0:"]
        yield
        # a share each
        assert other.orders == ["decode :1"]
        other.decoded(":1")
        yield
        assert other.orders == ["decode 4:"]
        first.decoded("0:")

    scene.play(script(), workers=2, blocks=3)
    assert len(scene.all) == 2


def test_few_blocks_that_take_long_are_shared_among_as_many_workers_as_there_may_be(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one block of 2 images each gets one."""
    scene.is_local = True

    def script() -> Iterator[None]:
        (first,) = scene.workers
        first.begin(0)
        yield
        assert len(scene.workers) == 1
        scene.now += 0.2
        yield
        assert first.orders == ["decode 0:"]
        yield
        _, second = scene.workers
        assert second.orders == ["decode :1"]

    scene.play(script(), workers=1, blocks=1, at_most=4)
    assert len(scene.all) == 2


def test_what_was_given_back_is_refused_to_nobody_and_decoded_once(scene: Scene) -> None:
    """The slow one finishes more before it learns that it is asked."""

    def script() -> Iterator[None]:
        other, first = scene.workers
        first.begin(0)
        other.decoded(1)
        yield
        scene.now += 0.2
        yield
        first.begin(1)
        first.decoded(0)
        yield
        yield
        assert other.orders == ["write 1 at 102"]

    results = scene.play(script(), workers=2, blocks=2)
    assert [result.rows for result in results] == [2, 2]


def test_a_task_that_ends_early_is_continued_by_its_worker_once_it_holds_less(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.decoded(0, inputs=1)
        yield
        assert worker.orders == ["decode 1", "write 0 at 100", "decode :1"]

    scene.play(script(), workers=1, blocks=2)


def test_who_holds_much_gets_nothing_more_but_what_all_others_wait_for(scene: Scene, tune: Tune) -> None:
    tune(worker_held_bytes=0)

    def script() -> Iterator[None]:
        other, first = scene.workers
        other.decoded(1)
        other.decoded(3)
        yield
        # it holds blocks that cannot be written yet
        assert other.orders == []
        first.kill()
        yield
        # block 0 went to a fresh worker, the next to none
        assert scene.workers[-1].orders == ["decode 0", "decode 2"]
        other.kill()
        yield

    scene.play(script(), workers=2, blocks=6)


# -- being stopped is not being slow


@pytest.mark.parametrize("is_between", [False, True])
def test_time_in_which_this_process_was_stopped_is_no_workers(scene: Scene, is_between: bool, tune: Tune) -> None:
    """A look comes every quarter of a second; one an hour late says that this process was stopped, or the machine slept."""
    tune(longest_look_seconds=1.0)

    def script() -> Iterator[None]:
        (worker,) = scene.workers
        if not is_between:
            worker.begin(0)
        yield
        for _ in range(5):
            scene.now += 3600
            yield
        # it was slow for 5 seconds at most: gone around, and not replaced
        assert scene.workers[0] is worker

    results = scene.play(script(), workers=1, blocks=4)
    assert sum(len(result.rejects) for result in results) == 0


@pytest.mark.parametrize("state", ["T", "t"])
def test_an_image_is_not_slow_while_its_worker_is_stopped(
    scene: Scene, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (engines, pieces):
        monkeypatch.setattr(module, "process_state", lambda process: state if process is scene.all[0] else "R")
    scene.is_local = True

    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.begin(0)
        yield
        for _ in range(12):
            scene.now += 29
            yield
            if worker.is_ended:
                break
        # who was stopped for long is replaced, who is looked at with a debugger is not; neither was slow
        assert worker.is_ended == (state == "T")
        others = [w for w in scene.workers if w is not worker]
        assert not any("first" in word or "refused" in word for w in others for word in w.orders)

    results = scene.play(script(), workers=1, blocks=4)
    assert [result.rows for result in results] == [2] * 4


def test_a_worker_on_another_machine_that_says_nothing_is_stopped_and_one_that_does_is_slow(scene: Scene) -> None:
    def script() -> Iterator[None]:
        (worker,) = scene.workers
        worker.begin(0)
        yield
        for _ in range(40):
            scene.now += 1
            yield
        # 40 seconds of one image, of which it said nothing
        assert not worker.is_ended
        for _ in range(40):
            worker.say_alive()
            scene.now += 1
            yield
            if worker.is_ended:
                break
        assert worker.is_ended

    scene.play(script(), workers=1, blocks=4)
