"""How many requests fill a link, measured by those that were answered: what it carries while one of them is, and as much again.

    requests = 2 * rate * (latency + size / connection) / size

`rate` is what all requests bring together, `connection` what one connection has brought, in bytes a second; `latency` the seconds
until an answer begins. Twice, as too few requests look like a slower link: with as many again, the next measurement is larger.
Requests that begin before anything is measured may be many, and what one of them brings is its share of a full link. So a
connection is measured by requests that are among as few as are needed, and until then a few stand for `rate / connection`.
Makes no request itself; for one thread at a time.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

# Below that one connection that stalls would be felt.
FEWEST = 4

_GAIN = 2.0
# Weights of a new measurement. What is faster than thought is believed sooner: too many requests take memory, too few time.
_WEIGHT, _FASTER_WEIGHT = 0.1, 0.3
# Of the link's rate: with less than that on it, a connection's rate is its own, and not its share of a full link.
_FULL_SHARE = 0.8
# Requests that begin together end together on a link that serves all alike, which is idle then until the next answers begin. So
# they begin apart: at this many times the rate at which they end.
_PACE = 2.0
# Of object storage, where nothing says when an answer begins.
_USUAL_LATENCY = 0.1
_LEAST_SECONDS = 1e-6
# In place of 2 * rate / connection, until that is measured. Half of these leave a link idle while all that began together end;
# with these, what is waited for has the link to itself until its last answers.
_UNMEASURED = 2 * FEWEST


@dataclass
class Request:
    """A request in progress.

    begins: when it is to be sent; among: how many there were then; brought: bytes that others had brought when it was.
    """

    begins: float
    among: int
    brought: int = 0
    latency: float = 0.0
    has_ended: bool = False

    def answered(self) -> None:
        """Note that the first of its answers begins."""
        self.latency = self.latency or time.monotonic() - self.begins


class RequestDepth:
    """The requests in progress, and how many there should be. most: bounds these, as each holds what it brings in memory."""

    def __init__(self, most: int) -> None:
        self.in_progress, self._most = 0, most
        # bytes; bytes a second of all requests, and of one; seconds
        self._size = self._rate = self._connection = self._latency = 0.0
        self._brought, self._ended, self._first, self._next = 0, 0, math.inf, 0.0

    def requests(self, unmeasured: int) -> int:
        """Return how many requests should be in progress; unmeasured: before the first has been answered."""
        if not self._rate:
            return unmeasured
        need = _GAIN * self._rate * self._latency / self._size
        need += _GAIN * self._rate / self._connection if self._connection else _UNMEASURED
        return min(self._most, max(FEWEST, math.ceil(need)))

    def add(self, size_bytes: int) -> Request:
        """Add a request for so many bytes, which is to be sent when it begins."""
        now, is_paced = time.monotonic(), self.in_progress >= FEWEST and self._rate > 0
        begins = max(now, self._next) if is_paced else now
        # no further apart than an answer takes to begin: on a link that is faster by now they would leave it idle
        most = self._latency or _USUAL_LATENCY
        self._next = begins + (min(size_bytes / self._rate / _PACE, most) if self._rate else 0.0)
        self.in_progress += 1
        return Request(begins, self.in_progress)

    def begin(self, request: Request) -> None:
        """Note that a request is sent now."""
        request.brought, self._first = self._brought, min(self._first, request.begins)

    def end(self, request: Request, size_bytes: int) -> None:
        """Remove a request that has brought so many bytes; 0: it has failed, or there was nothing to bring.

        One that has ended before is removed already.
        """
        among = max(request.among, self.in_progress)
        self.in_progress -= not request.has_ended
        request.has_ended = True
        if not size_bytes:
            return
        self._brought += size_bytes
        now = time.monotonic()
        rate = (self._brought - request.brought) / max(now - request.begins, _LEAST_SECONDS)
        connection = size_bytes / max(now - request.begins - request.latency, _LEAST_SECONDS)
        self._size += _WEIGHT * (size_bytes - self._size) if self._size else size_bytes
        # a queue on the link makes answers later, and more requests would make it longer
        self._latency = _moved(self._latency, request.latency, _WEIGHT, _FASTER_WEIGHT)
        self._ended += 1
        if self._ended <= self._most:
            # many began together: the first of them to end says little of what they bring
            self._rate = self._brought / max(now - self._first, _LEAST_SECONDS)
        else:
            self._rate = _moved(self._rate, rate, _FASTER_WEIGHT, _WEIGHT)
        if not self._connection and among > self.requests(FEWEST):
            return
        is_own = rate < _FULL_SHARE * self._rate
        self._connection = _moved(self._connection, connection, _FASTER_WEIGHT, _WEIGHT if is_own else 0.0)


def _moved(value: float, measured: float, rising: float, falling: float) -> float:
    """Return the exponentially weighted mean with one more measurement; the first one is taken as it is."""
    return value + (rising if measured > value else falling) * (measured - value) if value else measured
