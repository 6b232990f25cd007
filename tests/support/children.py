"""Processes that start with torch and the reader imported, forked from a server that imports them once.

A new interpreter takes 4 seconds of CPU time for that. These processes can be killed too, share only files and a pipe with
the test, and are not children of its threads.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from no_syncs import sync_nothing
from sizes import set_sizes

ROOT = Path(__file__).resolve().parents[2]
# only for hangs: a busy machine takes a minute
TIMEOUT_SECONDS = 300
PROGRAM_SECONDS = 540
_STREAMS = ("stdout", "stderr")

# imports of the server, which starts with the first process: one of these, or a DataLoader's worker
multiprocessing.set_forkserver_preload(["packer.cli.app", "reader.loading.loader"])


class Child:
    """Run `target(pipe, *arguments)`, a function of a module, in a separate process.

    Its messages are received in order; if it ends early or hangs, the test fails.
    """

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        self._pipe, other = context.Pipe(duplex=False)
        self.process = context.Process(target=_begin, args=(target, other, {**os.environ}, *arguments), daemon=True)
        self.process.start()
        other.close()

    def received(self) -> Any:
        """Return its next message."""
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
        """Wait for its end; returns its exit code, negative for a signal, or None if it hangs."""
        self.process.join(TIMEOUT_SECONDS)
        return self.process.exitcode


def program(name: str | Path, *words: object, cwd: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module, as `python -m` does, or the file of a script, in a folder, or the root of the repository.

    Returns:
        the exit code and the output.
    """
    with tempfile.TemporaryDirectory(prefix="pixpack-program-") as folder:
        process = Child(_run, name, [*map(str, words)], variables, folder, cwd).process
        process.join(PROGRAM_SECONDS)
        if process.exitcode is None:
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
            raise AssertionError(f"{name} hangs")
        printed = [Path(folder, stream).read_text(encoding="utf-8") for stream in _STREAMS]
    return subprocess.CompletedProcess([name, *words], process.exitcode, *printed)


def _run(_: Connection, name: str | Path, words: list[str], variables: dict[str, str], folder: str, cwd: Path) -> None:
    os.setsid()
    os.chdir(cwd)
    os.environ.update(variables)
    for number, stream in enumerate(_STREAMS, 1):
        descriptor = os.open(os.path.join(folder, stream), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(descriptor, number)
        os.close(descriptor)
        setattr(sys, stream, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 (as long as the process)
    sys.argv = [str(name), *words]
    sys.path.insert(0, str(name.parent if isinstance(name, Path) else ROOT))
    if isinstance(name, Path):
        runpy.run_path(str(name), run_name="__main__")
    else:
        runpy.run_module(name, run_name="__main__", alter_sys=True)


def _begin(target: Callable[..., None], pipe: Connection, variables: dict[str, str], *arguments: Any) -> None:
    import torch

    # a garbage collection would copy the pages of all imported modules
    gc.freeze()
    # the server has the variables of its start
    os.environ.clear()
    os.environ.update(variables)
    sync_nothing()
    set_sizes()
    # it may start workers, although it ends with its parent
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    # as in a new interpreter: else it would start workers from a server, which imports everything again
    multiprocessing.set_start_method(None, force=True)
    torch.set_num_threads(1)
    target(pipe, *arguments)
