"""Runs one program: `python -m scripts.studies.programs._run FILE DATA ...`; or many, each in a fork: `--serve FILE ...`.

With --waits before FILE, its last line is {"waited_seconds"}: how long its main thread has waited for batches.

Knows how torchvision is imported beside a torch whose C part it was not built for: its Python part is enough for loading.
"""

from __future__ import annotations

import ast
import atexit
import importlib.util
import itertools
import json
import os
import runpy
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

# What of torchvision's C part its Python part names when it is imported.
_OPERATORS = ("nms", "qnms")
_held: list[torch.library.Library] = []


def main() -> None:
    """Run the program that the first word names, with the words behind it; or serve."""
    declare_operators()
    if sys.argv[1] == "--serve":
        serve(sys.argv[2:])
    elif sys.argv[1] == "--waits":
        count_waits()
        run(sys.argv[2:])
    else:
        run(sys.argv[1:])


def run(words: Sequence[str]) -> None:
    """Run a program as if it was called with these words."""
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")


def serve(programs: Sequence[str]) -> None:
    """Import what programs import, then run each that a line of stdin asks for in a fork of this process.

    A line is {"words": [FILE, DATA, ...], "folder": where stdout and stderr are kept, "seconds": the longest that it may take,
    "is_free": whether its batches cost nothing}; the answer is a line with its exit code.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for path in programs:
        import_as(Path(path))
    for line in sys.stdin:
        asked = json.loads(line)
        if not (process := os.fork()):
            _run_fork(asked)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def import_as(program: Path) -> None:
    """Import what a program imports at its top, and nothing else of it."""
    tree = ast.parse(program.read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), str(program), "exec"), {})


def _run_fork(asked: dict[str, Any]) -> NoReturn:
    """Run a program, its output in files, and end this process."""
    code = 1
    try:
        for number, name in ((0, None), (1, "stdout"), (2, "stderr")):
            path = os.devnull if name is None else os.path.join(asked["folder"], name)
            os.dup2(os.open(path, os.O_RDONLY if name is None else os.O_WRONLY | os.O_CREAT, 0o600), number)
        signal.alarm(asked["seconds"])
        if asked["is_free"]:
            repeat_batches()
        run(asked["words"])
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def repeat_batches() -> None:
    """Make every MemmapLoader of this process give the first of its batches in all steps: what data that costs nothing leaves."""
    from reader import MemmapLoader

    make, begin, only = MemmapLoader.__init__, MemmapLoader.__iter__, "_only_batch"

    def make_with_batch(loader: Any, *given: Any, **named: Any) -> None:
        """Make a loader, and its batch, before an epoch begins."""
        make(loader, *given, **named)
        setattr(loader, only, next(begin(loader)))

    MemmapLoader.__init__ = make_with_batch  # type: ignore[method-assign]
    MemmapLoader.__iter__ = (  # type: ignore[method-assign]
        lambda loader: itertools.repeat(getattr(loader, only), len(loader))  # type: ignore[assignment,return-value]
    )


def count_waits() -> None:
    """Count the seconds in which the main thread asks a DataLoader or MemmapLoader for batches; prints them at the end."""
    from torch.utils.data import DataLoader

    from reader import MemmapLoader

    waited, process, is_waiting = 0.0, os.getpid(), False

    def counted(call: Callable[[], Any]) -> Any:
        nonlocal waited, is_waiting
        # one loader may read by another, in a thread too
        if is_waiting or threading.current_thread() is not threading.main_thread():
            return call()
        is_waiting, started = True, time.perf_counter()
        try:
            return call()
        finally:
            waited, is_waiting = waited + time.perf_counter() - started, False

    class Batches:
        def __init__(self, batches: Any) -> None:
            self._batches = batches

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return counted(lambda: next(self._batches))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._batches, name)

    for kind in (DataLoader, MemmapLoader):
        begin: Callable[[Any], Any] = kind.__iter__
        kind.__iter__ = (  # type: ignore[method-assign]
            lambda loader, begin=begin: Batches(counted(lambda: begin(loader)))  # type: ignore[misc]
        )
    atexit.register(lambda: os.getpid() == process and print(json.dumps({"waited_seconds": waited}), flush=True))


def declare_operators() -> None:
    """Declare the operators of torchvision's C part where that does not load: its wheels want the torch they are built for."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None or _held:
        return
    try:
        for library in Path(found.origin).parent.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        _held.append(torch.library.Library("torchvision", "DEF"))
        for name in _OPERATORS:
            _held[0].define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


if __name__ == "__main__":
    main()
