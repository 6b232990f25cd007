"""Copies, reads and unpacking that threads do while the caller continues, who waits for them later."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

# Values of a thread that stay from one piece of work to the next.
kept = threading.local()
_pools: dict[tuple[str, int], ThreadPoolExecutor] = {}
# a process that is forked has none of the threads
os.register_at_fork(after_in_child=_pools.clear)


class Copies:
    """Pieces of work that threads do, such as copying rows."""

    def __init__(self, pieces: Sequence[Future[object]]) -> None:
        self._pieces, self._process = pieces, os.getpid()

    def wait(self) -> None:
        """Wait for all of them; raises what one has raised."""
        wait(self._pieces)
        for piece in self._pieces:
            piece.result()

    def cancel(self) -> None:
        """Skip the pieces that did not start, and wait for the others; a process that was forked since has none of them."""
        if os.getpid() != self._process:
            return
        for piece in self._pieces:
            piece.cancel()
        wait(self._pieces)


def on_threads(kind: str, threads: int, call: Callable[..., object], each: Sequence[tuple[object, ...]]) -> Copies:
    """Begin call(*arguments) for each, on threads that all work of a kind shares."""
    if (pool := _pools.get((kind, threads))) is None:
        pool = _pools[kind, threads] = ThreadPoolExecutor(threads)
    return Copies([pool.submit(call, *arguments) for arguments in each])
