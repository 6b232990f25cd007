"""Ways that are compared take turns, so that what disturbs the machine meets all of them.

Knows rounds, clocks and the garbage collector; nothing of the ways, and nothing of what a turn returns.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

Item = TypeVar("Item")
Name = TypeVar("Name")
Result = TypeVar("Result")


def in_turns(
    turns: Mapping[Name, Callable[[], Result]], rounds: int, *, untimed: int = 0, most_seconds: float = math.inf
) -> dict[Name, list[Result]]:
    """Take every turn once a round, each round beginning with the next way; returns what the turns returned.

    Args:
        untimed: rounds that come before the others and do not count.
        most_seconds: after them no round begins, but two rounds count in any case.
    """
    found: dict[Name, list[Result]] = {name: [] for name in turns}
    names, started = list(turns), time.monotonic()
    for number in range(untimed + rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(turns[name]())
        if number > untimed and time.monotonic() - started > most_seconds:
            break
    return {name: results[untimed:] for name, results in found.items()}


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keep the garbage collector from running: a collection would be charged to the way whose turn it is."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def seconds(
    call: Callable[[], Any], device: torch.device | None = None, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Time a call, with the work that it leaves on a device.

    clock: time.process_time gives the CPU seconds of all threads, which other programs on the machine change little.
    """
    return timed(call, device, clock)[1]


def timed(
    call: Callable[[], Result], device: torch.device | None = None, clock: Callable[[], float] = time.perf_counter
) -> tuple[Result, float]:
    """Return what a call returns, and its seconds as `seconds` has them."""
    synchronize(device)
    started = clock()
    made = call()
    synchronize(device)
    return made, clock() - started


def seconds_over(call: Callable[[Item], object], items: Iterable[Item], device: torch.device | None = None) -> float:
    """Time a call for each of the items, one after the other, with the work that they leave on a device."""

    def each() -> None:
        for item in items:
            call(item)

    return seconds(each, device)


def drain(batches: Iterable[object], device: torch.device | None = None) -> None:
    """Take all batches, each dropped before the next, and wait for the work that they leave on a device."""
    for batch in batches:
        del batch
    synchronize(device)


def synchronize(device: torch.device | None) -> None:
    """Wait until a CUDA device has done all its work."""
    if device is not None and device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
