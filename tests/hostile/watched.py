"""A process that reads hostile stores and runs commands, with its memory, time, files and connections watched.

A trial fails on an undeclared exception, an undocumented exit code, a traceback or a control character in the output. It also
fails if it takes too much time or memory, changes files outside its folder, seals a store that `pack verify` refuses, starts
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
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

# CPU seconds, since a step waits on a busy machine; `pack verify` takes 4 s for 1 GB of holes
_MOST_SECONDS = 12.0
_MOST_BYTES = 1 << 30
# Bytes of requested memory, used or not: pixels are mapped privately, several times.
_MOST_ASKED_BYTES = 8 << 30
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# messages, and the progress of long commands
_TALK = re.compile(r"(pack: .*\n|[a-z]+: .* of .*\n)+")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
# modules of pickles between pixpack's own processes
_OWN = ("packer.", "concurrent.futures.process", "collections", "pathlib", __name__)
# event -> the index of the path that it changes
_CHANGES = dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.rename"), 0)
_CHANGES |= {"os.link": 1, "os.symlink": 1}
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"}
# proc(5)
_CLEAR_PEAK = "/proc/self/clear_refs"
# in the process: the record of forbidden actions
_caught: io.TextIOBase


@dataclass
class Trial:
    """The messages of opening and verify for a store ("": none), the end of a command, and forbidden actions."""

    opening: str = ""
    verify: str = ""
    code: int | None = None
    says: str = ""
    failures: list[str] = field(default_factory=list)


class Watched:
    """The process, and the folder `own`, the only one that it may change.

    Args:
        work: the parent of that folder.
        valid: an intact store, which it reads first.
    """

    def __init__(self, work: Path, valid: Path) -> None:
        self.own = work / "own"
        self.clear()
        context = multiprocessing.get_context("forkserver")
        self._pool = ProcessPoolExecutor(1, context, initializer=_start, initargs=(self.own, valid))

    def read(self, store: Path, *, has_commands: bool = False) -> Trial:
        """Read a store in every way, verify and pull it; has_commands: and give it to all other commands."""
        self.clear()
        return self._pool.submit(_tried, self.own, _Runner.read, store, has_commands).result()

    def run(self, words: Sequence[str], stdin: bytes = b"") -> Trial:
        """Run a command in the folder `own`; stores that it makes there must verify."""
        return self._pool.submit(_tried, self.own, _Runner.run, words, stdin).result()

    def clear(self) -> Path:
        """Empty its folder."""
        shutil.rmtree(self.own, ignore_errors=True)
        self.own.mkdir()
        return self.own

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture(scope="session")
def watched(store_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Such a process."""
    process = Watched(tmp_path_factory.mktemp("watched"), store_of("pad"))
    yield process
    process.close()


# -- in the process


class _Runner:
    """Runs steps of one trial, and records failures; refusals are messages of StoreErrors."""

    def __init__(self, own: Path) -> None:
        self.trial, self._own, self.refusals = Trial(), own, list[str]()

    def _fail(self, sentence: str) -> None:
        self.trial.failures.append(sentence)

    def _step(self, name: str, call: Callable[[], Any], may_raise: type[BaseException] | tuple[()] = ()) -> Any:
        """Run one step; returns None if it raised an allowed error."""
        started, found = time.process_time(), None
        try:
            found = call()
        except may_raise as e:
            self.refusals.append(f"{name}: {e}")
            if not str(e) or _HIDDEN.search(str(e)) or "\n" in str(e):
                self._fail(f"{name}: {type(e).__name__} is no sentence: {str(e)[:200]!r}")
        except BaseException:
            self._fail(f"{name}: {traceback.format_exc()[-1500:]}")
        if (seconds := time.process_time() - started) > _MOST_SECONDS:
            self._fail(f"{name}: {seconds:.1f} s of the processor")
        return found

    def read(self, store: Path, has_commands: bool) -> None:
        """Read one store in every way."""
        Path(_CLEAR_PEAK).write_text("5")
        used_bytes = _memory("VmRSS")
        self._read(store)
        code, self.trial.verify = self._command("verify", str(store))
        if code == 0 and self.refusals:
            self._fail(f"verify accepts what is refused by {self.refusals[0]}")
        self._command("pull", f"file://{store}", f"{self._own}/pulled")
        if has_commands:
            self._give(str(store))
        if (taken := _memory("VmHWM") - used_bytes) > _MOST_BYTES:
            self._fail(f"{taken:,} bytes of memory")

    def run(self, words: Sequence[str], stdin: bytes) -> None:
        """Run a command, then verify the stores in its folder."""
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin))
        self.trial.code, self.trial.says = self._command(*words, codes=(0, 1, 2, 3))
        if self.trial.code == 0:
            for manifest in self._own.rglob("[!.]*/manifest.json"):
                self._must_verify(" ".join(words), str(manifest.parent))

    def _read(self, store: Path) -> None:
        from torch.utils.data import DataLoader

        from reader import MemmapDataset, MemmapLoader
        from reader.format.errors import StoreError

        dataset = self._step("MemmapDataset", lambda: MemmapDataset(store, as_tuple=False), StoreError)
        if dataset is None:
            self.trial.opening = self.refusals[0] if self.refusals else "it is not refused in a declared way"
            return
        last, batch_size = len(dataset) - 1, 1 if dataset.manifest.has_own_sizes else 4
        steps: dict[str, Callable[[], Any]] = {
            "repr": lambda: repr(dataset),
            "row": lambda: (dataset[0], dataset[last]),
            "slice": lambda: dataset[: min(last + 1, 1000)],
            "gather": lambda: dataset[[last, 0, last // 2]],
            "targets": lambda: dataset.targets[:3],
            "samples": lambda: dataset.samples[:3],
            "source": lambda: dataset.source(last),
            "DataLoader": lambda: [*DataLoader(dataset, batch_size=batch_size)],
            "MemmapLoader": lambda: _drain(MemmapLoader(dataset, 4, shuffle="full", prefetch=0, as_tuple=False)),
            "disk": lambda: _drain(MemmapLoader(dataset, 3, shuffle="block", residency="disk", as_tuple=False)),
        }
        if not dataset.manifest.jpeg:
            steps["store"] = lambda: dataset.store
        for name, call in steps.items():
            self._step(name, call, StoreError)

    def _command(self, *words: str, codes: tuple[int, ...] = (0, 1, 2)) -> tuple[int | None, str]:
        """Run a command; returns its exit code and messages."""
        from packer.cli.app import run

        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True) for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = self._step(words[0], lambda: run([*words]))
        out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
        if _HIDDEN.search(out + err):
            self._fail(f"{words[0]}: {out + err!r}")
        if code not in codes or (code and not _TALK.fullmatch(err)):
            self._fail(f"{words[0]}: exit code {code}: {err[-300:]!r}")
        return code, err if code else ""

    def _must_verify(self, who: str, store: str) -> None:
        code, says = self._command("verify", store)
        if code != 0:
            self._fail(f"{who} sealed what verify refuses: {says}")

    def _give(self, store: str) -> None:
        """Give a store to every command that reads one; their results must verify."""
        own = str(self._own)
        for words in ("info", "info --json", f"show -o {own}/sheet.png", f"compare {store}", f"push file://{own}/url"):
            name, *rest = words.split()
            self._command(name, store, *rest)
        (self._own / "images/a").mkdir(parents=True)
        self._command("build", f"{own}/images", f"{own}/packed", "--classes", store)
        for name, words in (
            ("subset", [store, f"{own}/out", "--fraction", "0.5"]),
            ("merge", [store, store, f"{own}/merged"]),
        ):
            if self._command(name, *words)[0] == 0:
                self._must_verify(name, f"{own}/out" if name == "subset" else f"{own}/merged")


def _drain(loader: Any) -> None:
    with loader:
        for _ in loader:
            pass


def _memory(kind: str) -> int:
    """Return this process's memory from the kernel, in bytes; VmHWM: the peak since it was cleared."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{kind}:"))


def _watch(own: Path, log: int) -> None:
    """Record forbidden actions, also in forked processes."""
    allowed = (str(own), "/dev/", "/proc/")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = None
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            # opening a folder for writing makes a file without a name, which leaves nothing
            path = None if isinstance(arguments[0], int) or os.path.isdir(arguments[0]) else arguments[0]
        elif event in _CHANGES:
            path = arguments[_CHANGES[event]]
        # uname: doctor uses it for the processor
        elif (event in _PROGRAMS and arguments[0] != "uname") or (
            event == "pickle.find_class" and not str(arguments[0]).startswith(_OWN)
        ):
            os.write(log, f"{event} {str(arguments)[:200]}\n".encode("utf-8", "replace"))
        if isinstance(path, str | bytes) and not os.path.abspath(os.fsdecode(path)).startswith(allowed):
            os.write(log, f"{event} {os.path.abspath(os.fsdecode(path))}\n".encode("utf-8", "replace"))

    sys.addaudithook(hook)


def _start(own: Path, valid: Path) -> None:
    """Begin to watch this process, after imports and preparations for all trials."""
    global _caught
    sys.dont_write_bytecode = True
    first = own.with_name("first")
    first.mkdir()
    _Runner(first).read(valid, True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 30, 8 << 30))
    # syncs do not matter here
    os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
    log = own.with_name("caught")
    _watch(own, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    _caught = open(log)  # noqa: SIM115 (as long as the process)
    asked = _memory("VmData") + _MOST_ASKED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (asked, asked))


def _tried(own: Path, call: Callable[..., None], *given: Any) -> Trial:
    """Make a trial."""
    os.chdir(own)
    runner = _Runner(own)
    call(runner, *given)
    runner.trial.failures += sorted({*_caught.read().splitlines()})
    return runner.trial
