"""What the feeder begins ahead comes in order, is bounded by the room there is, and loses nothing to an error."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Tune

from reader.loading import prefetch
from reader.loading.prefetch import InProgress, overlapped, without_thread
from reader.memory import threads


def started(
    log: list[str], count: int, fails_at: int | None = None, *, is_complete: bool = False
) -> Iterator[InProgress]:
    for i in range(count):
        if i == fails_at:
            raise KeyError(i)
        log.append(f"begin {i}")
        yield InProgress(finished(log, i), is_complete)


def finished(log: list[str], i: int) -> Iterator[int]:
    log.append(f"finish {i}")
    yield i


def test_the_next_is_started_before_one_is_waited_for() -> None:
    log: list[str] = []
    assert list(overlapped(started(log, 3), lambda wait: True)) == [0, 1, 2]
    assert log == ["begin 0", "begin 1", "finish 0", "begin 2", "finish 1", "finish 2"]


def test_what_is_complete_comes_before_the_next_is_started() -> None:
    log: list[str] = []
    assert list(overlapped(started(log, 3, is_complete=True), lambda wait: True)) == [0, 1, 2]
    assert log == ["begin 0", "finish 0", "begin 1", "finish 1", "begin 2", "finish 2"]


def test_without_room_none_is_started_ahead() -> None:
    log: list[str] = []
    assert list(overlapped(started(log, 3), without_thread)) == [0, 1, 2]
    assert log == ["begin 0", "finish 0", "begin 1", "finish 1", "begin 2", "finish 2"]


@pytest.mark.parametrize("fails_at", [0, 1, 2])
def test_what_was_started_before_an_error_comes_before_it(fails_at: int) -> None:
    groups = overlapped(started([], 3, fails_at), lambda wait: True)
    assert [next(groups) for _ in range(fails_at)] == list(range(fails_at))
    with pytest.raises(KeyError):
        next(groups)


def test_an_error_of_what_is_started_is_held_by_nobody_once_it_was_raised() -> None:
    class Failed(Exception):
        pass

    def fails() -> Iterator[InProgress]:
        yield InProgress(iter([0]))
        raise Failed

    gc.disable()
    try:
        with pytest.raises(Failed) as raised:
            list(overlapped(fails(), lambda wait: True))
        held = weakref.ref(raised.value)
        del raised
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("begins", [False, True])
def test_an_interrupt_while_the_thread_is_started_leaves_nothing_that_cannot_be_stopped(
    begins: bool, tune: Tune, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    # a thread that was started begins in any case, however late; one that was not never does
    tune(feeder_start_seconds=60.0 if begins else 0.01)
    before = set(prefetch._live)
    with monkeypatch.context() as patch:
        # start() waits for the thread's first word, by an event; or the interrupt comes before all that
        patch.setattr(*(threading.Event, "wait") if begins else (threading.Thread, "start"), interrupted)
        with pytest.raises(KeyboardInterrupt) as caught:
            # its thread waits for room until it is stopped
            prefetch.Feed(lambda claim: prefetch.paced(iter(range(9)), claim), 2)
    (left,) = set(prefetch._live) - before
    left.stop(wait=True)
    assert not left.is_alive
    assert left._has_started == begins
    del caught


def test_what_makes_groups_is_let_go_before_their_end_shows() -> None:
    class Source:
        """What holds a loader's buffers."""

        def __call__(self, claim: prefetch.Claim) -> Iterator[list[int]]:
            threads.kept.something = self
            yield [1]

    source = Source()
    left, feed = weakref.ref(source), prefetch.Feed(source, 1)
    del source
    group = feed.first()
    assert group is not None
    assert group.popleft() == 1
    assert feed.first() is None
    assert left() is None


def test_nothing_comes_after_an_error() -> None:
    missing: dict[int, int] = {}
    groups = overlapped(iter([InProgress(map(missing.__getitem__, [0])), InProgress(iter([1]))]), lambda wait: True)
    with pytest.raises(KeyError):
        next(groups)
    assert list(groups) == []
