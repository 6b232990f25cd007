"""A process that reads hostile stores and runs commands, with its files, programs and connections watched.

A trial fails on an undeclared exception, an undocumented exit code, a traceback or a control character in the output. It also
fails if it takes too much memory, changes files outside its folder, seals a store that `pack verify` refuses, unpickles, starts
a program, or uses the network.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from no_syncs import sync_nothing

# Bytes of requested memory, used or not, and of a file: torch and the threads of decoders request some.
_MOST_BYTES = 2 << 30
# messages, and the progress of long commands
_TALK = re.compile(r"(pack: .*\n|[a-z]+: .* of .*\n)+")
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# modules of pickles between pixpack's own processes
_OWN = ("packer.", "concurrent.futures.process", "collections", "pathlib", __name__)
# event -> the index of the path that it changes
_CHANGES = dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.rename"), 0)
_CHANGES |= {"os.link": 1, "os.symlink": 1}
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"}
# commands that a store is given to; stores in folders without a dot must verify
_COMMANDS = (
    "info {store}",
    "info {store} --json",
    "show {store} -o {own}/sheet.png",
    "compare {store} {store}",
    "push {store} file://{own}/.pushed",
    "build {own}/images {own}/packed --classes {store}",
    "subset {store} {own}/part --fraction 0.5",
    "merge {store} {store} {own}/merged",
)


class Watched:
    """The process, and the folder `own`, which alone it may change."""

    def __init__(self, work: Path) -> None:
        self.own, self._caught = work / "own", work / "caught"
        self._caught.touch()
        context = multiprocessing.get_context("forkserver")
        self._pool = ProcessPoolExecutor(1, context, initializer=_start, initargs=(self.own, self._caught))

    def read(self, store: Path, *, has_commands: bool = False) -> tuple[str, str]:
        """Read a store in every way, verify and pull it; has_commands: and give it to all other commands.

        Returns:
            the messages of opening it and of verify; "": none.
        """
        self.clear()
        return self._tried(_read, store, has_commands)

    def run(self, words: Sequence[str], stdin: bytes = b"") -> tuple[int, str]:
        """Run a command in the folder `own`; its stores there must verify. Returns its exit code and messages."""
        return self._tried(_run, words, stdin)

    def clear(self) -> Path:
        """Empty its folder."""
        shutil.rmtree(self.own, ignore_errors=True)
        self.own.mkdir()
        return self.own

    def close(self) -> None:
        self._pool.shutdown()

    def _tried(self, call: Callable[..., Any], *given: Any) -> Any:
        found = self._pool.submit(call, self.own, *given).result()
        caught = self._caught.read_text()
        self._caught.write_text("")
        assert caught == ""
        return found


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Such a process."""
    process = Watched(tmp_path_factory.mktemp("watched"))
    yield process
    process.close()


# -- in the process


def _read(own: Path, store: Path, has_commands: bool) -> tuple[str, str]:
    from reader import MemmapDataset

    os.chdir(own)
    opened = list[MemmapDataset]()
    opening = _refusal(lambda: opened.append(MemmapDataset(store, as_tuple=False)))
    refused = [opening, *(_refusal(way) for dataset in opened for way in _ways(dataset))]
    code, verify = _command("verify", str(store))
    assert code or not any(refused), f"verify accepts what is refused: {refused}"
    _command("pull", f"file://{store}", f"{own}/.pulled")
    if has_commands:
        (own / "images/a").mkdir(parents=True)
        for line in _COMMANDS:
            _command(*line.format(own=own, store=store).split())
        _check_sealed(own)
    return opening, verify


def _ways(dataset: Any) -> list[Callable[[], Any]]:
    """Return all ways to read a store."""
    from torch.utils.data import DataLoader

    from reader import MemmapLoader

    def batches(**options: Any) -> list[Any]:
        with MemmapLoader(dataset, 3, as_tuple=False, **options) as loader:
            return [*loader]

    last, batch_size = len(dataset) - 1, 1 if dataset.manifest.has_own_sizes else 4
    ways: list[Callable[[], Any]] = [
        lambda: repr(dataset),
        lambda: (dataset[0], dataset[last]),
        lambda: dataset[:1000],
        lambda: dataset[[last, 0, last // 2]],
        lambda: dataset.targets[:3],
        lambda: dataset.samples[:3],
        lambda: dataset.source(last),
        lambda: [*DataLoader(dataset, batch_size=batch_size)],
        lambda: batches(shuffle="full", prefetch=0),
        lambda: batches(shuffle="block", residency="disk"),
    ]
    return ways if dataset.manifest.jpeg else [*ways, lambda: dataset.store]


def _run(own: Path, words: Sequence[str], stdin: bytes) -> tuple[int, str]:
    os.chdir(own)
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
    found = _command(*words)
    _check_sealed(own)
    return found


def _refusal(read: Callable[[], Any]) -> str:
    """Return the message of a refusal; "": none."""
    from reader.format.errors import StoreError

    try:
        read()
    except StoreError as e:
        sentence = str(e)
    else:
        return ""
    assert sentence
    assert "\n" not in sentence
    assert not HIDDEN.search(sentence), sentence
    return sentence


def _command(*words: str) -> tuple[int, str]:
    """Run a command; returns its exit code, and its messages if that is not 0."""
    from packer.cli.app import run

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run([*words])
    printed = err.getvalue()
    assert not HIDDEN.search(out.getvalue() + printed), words
    assert code == 0 or (code in (1, 2, 3) and _TALK.fullmatch(printed)), (words, code, printed)
    return code, printed if code else ""


def _check_sealed(own: Path) -> None:
    for manifest in own.rglob("[!.]*/manifest.json"):
        assert _command("verify", str(manifest.parent)) == (0, "")


def _start(own: Path, caught: Path) -> None:
    """Begin to watch this process and its forks."""
    sys.dont_write_bytecode = True
    # syncs do not matter here
    sync_nothing()
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_DATA):
        resource.setrlimit(limit, (_MOST_BYTES, _MOST_BYTES))
    log = os.open(caught, os.O_WRONLY | os.O_APPEND)
    allowed = (str(own), "/dev/", "/proc/")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = None
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE:
            # opening a folder for writing makes a file without a name, which leaves nothing
            path = None if os.path.isdir(arguments[0]) else arguments[0]
        elif event in _CHANGES:
            path = arguments[_CHANGES[event]]
        # uname: doctor uses it for the processor
        is_caught = event in _PROGRAMS and arguments[0] != "uname"
        is_caught |= event == "pickle.find_class" and not str(arguments[0]).startswith(_OWN)
        is_outside = isinstance(path, str | bytes) and not os.path.abspath(os.fsdecode(path)).startswith(allowed)
        if is_caught or is_outside:
            os.write(log, f"{event} {str(arguments)[:200]}\n".encode("utf-8", "replace"))

    sys.addaudithook(hook)
