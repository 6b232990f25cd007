"""Processes that have torch and the reader imported when they begin, forked from a server that imports them once.

An interpreter of its own takes 4 seconds of CPU time for that. These processes too can be killed, share nothing but files and
a pipe with the test, and are no children of its threads.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

# for what hangs alone: a busy machine takes a minute
TIMEOUT_SECONDS = 300


class Child:
    """Run `target(pipe, *arguments)`, a function of a module, in a process of its own.

    What it sends is received in order; where it ends early or hangs, the test fails.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["packer.cli.app", "reader.loading.loader"])
        self._pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_begin, args=(target, other, {**os.environ}, *arguments), daemon=True)
        self.process.start()
        other.close()

    def received(self) -> Any:
        """Return what it sends next."""
        assert self._pipe.poll(TIMEOUT_SECONDS), "the process hangs"
        try:
            return self._pipe.recv()
        except EOFError:
            pass
        raise AssertionError(f"the process has ended with {self.ended()}")

    def kill(self) -> None:
        self.process.kill()
        self.ended()

    def ended(self) -> int | None:
        """Wait for its end; returns its exit code, negative for a signal."""
        self.process.join(TIMEOUT_SECONDS)
        return self.process.exitcode


def _begin(target: Callable[..., None], pipe: Connection, variables: dict[str, str], *arguments: Any) -> None:
    import torch

    # the server has those of the moment when it began
    os.environ.clear()
    os.environ.update(variables)
    # it may start workers, although it ends with the process that started it
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    torch.set_num_threads(1)
    target(pipe, *arguments)
