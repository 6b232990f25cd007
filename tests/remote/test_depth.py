"""How many requests are in progress: the link is full with few more than that needs, and a link that changes is followed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from reader.remote import depth
from reader.remote.depth import FEWEST, Request, RequestDepth

SIZE = 16 << 20
MOST = 32


@dataclass
class _Sent:
    request: Request
    answers: float
    left: float
    has_started: bool = False
    number: int = 0

    def __post_init__(self) -> None:
        self.size = int(self.left)


class _Link:
    """A link that all requests share alike, in a time of its own. rate: bytes a second; connection: of one request, at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, rate: float, latency: float, connection: float = 1e12) -> None:
        self.now, self.rate, self.latency, self.connection = 0.0, rate, latency, connection
        self.depth, self.counts, self._sent = RequestDepth(MOST), list[int](), list[_Sent]()
        monkeypatch.setattr(depth.time, "monotonic", lambda: self.now)

    def carry(self, count: int) -> float:
        """Bring so many ranges, as many at a time as is said; returns the share of the link that they used."""
        return self.carry_all([SIZE] * count)[0]

    def carry_all(self, sizes: list[int], waited: int = 0) -> tuple[float, float]:
        """Bring ranges of such sizes; also returns the seconds until the first so many were there."""
        started, done, asked, first = self.now, 0, 0, 0.0
        while done < len(sizes):
            # what is not waited for fills the link alone, until it is measured
            while asked < len(sizes) and self.depth.in_progress < self.depth.requests(
                FEWEST if 0 < waited <= asked else MOST
            ):
                request = self.depth.add(sizes[asked])
                self._sent.append(_Sent(request, request.begins + self.latency, sizes[asked], number=asked))
                asked += 1
            done += self._step()
            if not first and asked >= waited and all(sent.number >= waited for sent in self._sent):
                first = self.now - started
        return sum(sizes) / (self.now - started) / self.rate, first

    def _step(self) -> int:
        """Let time pass until something begins or ends; returns how many requests have ended."""
        for sent in self._sent:
            if not sent.has_started and sent.request.begins <= self.now:
                self.depth.begin(sent.request)
                sent.has_started = True
        bringing = [sent for sent in self._sent if sent.answers <= self.now]
        each = min(self.connection, self.rate / max(1, len(bringing)))
        waits = [sent.answers - self.now for sent in self._sent if sent.answers > self.now]
        waits += [sent.request.begins - self.now for sent in self._sent if not sent.has_started]
        seconds = min(waits + [sent.left / each for sent in bringing])
        self.now += seconds
        for sent in bringing:
            sent.left -= seconds * each
        for sent in self._sent:
            if not sent.request.latency and self.now >= sent.answers - 1e-9:
                sent.answers = self.now
                sent.request.answered()
        ended = [sent for sent in bringing if sent.left < 1]
        for sent in ended:
            self._sent.remove(sent)
            self.depth.end(sent.request, sent.size)
            self.counts.append(self.depth.requests(MOST))
        return len(ended)


@pytest.mark.parametrize(("milliseconds", "megabytes"), [(5, 100), (50, 200), (200, 200), (50, 1000)])
def test_a_link_is_full(monkeypatch: pytest.MonkeyPatch, milliseconds: int, megabytes: int) -> None:
    link = _Link(monkeypatch, megabytes * 1e6, milliseconds / 1e3)
    link.carry(40)
    # 32 that begin and end together leave it idle between two rounds: of 200 MB/s and 200 ms 7 % of the time
    assert link.carry(200) > 0.975
    needed, counts = link.rate * link.latency / SIZE + 1, link.counts[40:]
    assert needed <= min(counts)
    assert sum(counts) / len(counts) < MOST


def test_connections_that_are_slower_than_the_link_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    link = _Link(monkeypatch, 1e9, 0.05, connection=80e6)
    assert link.carry(400) > 0.9
    assert min(link.counts[100:]) >= 1e9 / 80e6


@pytest.mark.parametrize(("rate", "latency"), [(100e6, 0.05), (200e6, 0.05), (200e6, 0.2), (500e6, 0.05)])
def test_a_window_that_is_asked_for_at_once_has_the_link_to_itself(
    monkeypatch: pytest.MonkeyPatch, rate: float, latency: float
) -> None:
    # blocks of 8 MiB, of which neighbors come with one request
    window = random.Random(0).sample([SIZE // 2] * 8 + [SIZE] * 12, 20)
    link = _Link(monkeypatch, rate, latency)
    share, seconds = link.carry_all(window + [SIZE // 2] * 40, waited=len(window))
    # with the share of a full link as what a connection can bring, 32 were right, and the window came up to 14 % later
    assert seconds < 1.04 * (latency + sum(window) / rate)
    assert share > 0.85


@pytest.mark.parametrize(("rate", "latency"), [(50e6, 0.05), (200e6, 0.2), (800e6, 0.05)])
def test_a_link_that_changes_is_followed(monkeypatch: pytest.MonkeyPatch, rate: float, latency: float) -> None:
    link = _Link(monkeypatch, 200e6, 0.05)
    link.carry(100)
    link.rate, link.latency = rate, latency
    link.carry(40)
    assert link.carry(200) > 0.96
    assert min(link.counts[-100:]) >= rate * latency / SIZE + 1


@pytest.mark.parametrize("connection", [3e5, 4e5])
def test_a_link_that_was_slow_is_full_at_once_when_it_is_fast_again(
    monkeypatch: pytest.MonkeyPatch, connection: float
) -> None:
    link = _Link(monkeypatch, 200e6, 0.05, connection=20e6)
    link.carry(60)
    link.rate, link.connection = 2e6, connection
    link.carry(64)
    link.rate, link.connection = 200e6, 20e6
    # requests that wait for their turn at the rate of before would leave it idle for a minute and more
    assert link.carry(30) > 0.75


def test_what_failed_or_brought_nothing_is_no_measurement() -> None:
    one = RequestDepth(MOST)
    for _ in range(3):
        request = one.add(SIZE)
        one.end(request, 0)
        one.end(request, 0)
    assert (one.in_progress, one.requests(7)) == (0, 7)


def test_no_fewer_than_a_few_and_no_more_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    slow, fast = _Link(monkeypatch, 1e6, 0.001), _Link(monkeypatch, 50e9, 0.2)
    for link, count in ((slow, FEWEST), (fast, MOST)):
        monkeypatch.setattr(depth.time, "monotonic", lambda link=link: link.now)
        link.carry(100)
        assert link.counts[-1] == count or link is slow
    assert min(slow.counts) >= FEWEST
