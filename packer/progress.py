"""Progress of a command: loops report it to the `progress` callback of the called function.

A loop is many calls below that function. So the callback is set per thread, not passed through each call.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from packer.report import Progress

_T = TypeVar("_T")
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

OnProgress = Callable[[Progress], None]

# Iterations between two reports. The slowest loops read one file per iteration, some hundred a second from a busy disk.
_EVERY = 1024

_listener: ContextVar[OnProgress | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def listening(progress: OnProgress | None) -> Iterator[None]:
    """Call progress with the reports of this thread; None keeps the current listener."""
    if progress is None:
        yield
        return
    token = _listener.set(progress)
    try:
        yield
    finally:
        _listener.reset(token)


def reports(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Call the function's argument `progress` with the reports made while it runs."""

    @functools.wraps(function)
    def called(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        """Call it while its `progress` listens."""
        progress: OnProgress | None = keywords.get("progress")  # type: ignore[assignment]
        with listening(progress):
            return function(*arguments, **keywords)

    return called


def notify(progress: Progress) -> None:
    """Report how far the command is."""
    if (listener := _listener.get()) is not None:
        listener(progress)


class CountedBytes:
    """Counts bytes read from files, and reports them as the stage "digest"."""

    def __init__(self, total: int) -> None:
        self._done, self._total = 0, total

    def __call__(self, count: int) -> None:
        """Add to the count."""
        self._done += count
        notify(Progress("digest", self._done, self._total))


def tracked(stage: str, items: Iterable[_T], total: int = 0, *, split: str = "") -> Iterator[_T]:
    """Yield items, and report how many are done; total: their number, 0 if unknown."""
    listener = _listener.get()
    if listener is None:
        yield from items
        return
    done = 0
    listener(Progress(stage, 0, total, split=split))
    for done, item in enumerate(items, start=1):
        yield item
        if not done % _EVERY:
            listener(Progress(stage, done, total, split=split))
    if done % _EVERY:
        listener(Progress(stage, done, total, split=split))
