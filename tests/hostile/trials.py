"""Every reader and command on stores of strangers, in a child whose memory, time and files are watched.

A trial fails where something raises what it does not declare, exits with another code than it documents, prints a traceback or
a control character, takes too long or too much memory, changes the store, seals what `pack verify` refuses, opens anything
outside its folder to write, starts a program or asks the network.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts import ROOT

# of the processor: on a busy machine a step waits its turn; `pack verify` takes 4 s for 1 GB of holes
_MOST_SECONDS = 12.0
_MOST_BYTES = 1 << 30
# Of memory that is asked for, used or not: pixels are mapped as memory of this process, several times over.
_MOST_ASKED_BYTES = 8 << 30
_MOST_META_BYTES = 64 << 20
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# sentences, and how far a command is that takes long
_TALK = re.compile(r"(pack: .*\n|[a-z]+: .* of .*\n)+")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "socket.connect"}
_PROGRAMS |= {"socket.getaddrinfo", "pickle.find_class"}
# What a worker of the engine tells the command, which no store has a say in.
_MESSAGES = {("pickle.find_class", "packer.store.blocks", name) for name in ("Result", "RejectedInput")}
# proc(5)
_CLEAR_PEAK = "/proc/self/clear_refs"


@dataclass
class Trial:
    """What became of a store: what opening and verify said of it ("": nothing), and what they or others may not do."""

    store: str
    opening: str = ""
    verify: str = ""
    failures: list[str] = field(default_factory=list)


def run_trials(stores: Sequence[Path], work: Path, *, has_commands: bool) -> dict[Path, Trial]:
    """Try stores in a child, all that `pack verify` says of them too; has_commands: and all other commands."""
    work.mkdir(parents=True)
    command = [sys.executable, "-m", __name__, str(work), str(int(has_commands))]
    names = "".join(f"{store}\n" for store in stores)
    done = subprocess.run(command, input=names, capture_output=True, text=True, cwd=ROOT, timeout=3600)
    found = [Trial(**json.loads(line)) for line in done.stdout.splitlines()]
    if len(found) < len(stores):
        raise AssertionError(f"{stores[len(found)]}: the process ended with {done.returncode}: {done.stderr[-2000:]}")
    return {Path(trial.store): trial for trial in found}


# -- in the child

_CAUGHT: list[str] = []


def try_store(store: Path, work: Path, has_commands: bool) -> Trial:
    """Do all of it with one store."""
    runner = _Runner(Trial(str(store)), work)
    before = _content(store)
    with open(_CLEAR_PEAK, "w") as file:
        file.write("5")
    used_bytes = _memory("VmRSS")
    runner.read(store)
    code, runner.trial.verify = runner.command("verify", str(store))
    if code == 0 and runner.refusals:
        runner.fail(f"verify accepts what is refused by {runner.refusals[0]}")
    if has_commands:
        runner.commands(str(store))
    runner.load_by_tensordict(store)
    if _content(store) != before:
        runner.fail("the store was changed")
    if (taken := _memory("VmHWM") - used_bytes) > _MOST_BYTES:
        runner.fail(f"{taken:,} bytes of memory")
    runner.trial.failures += sorted(set(_CAUGHT))
    _CAUGHT.clear()
    return runner.trial


class _Runner:
    """Runs steps of one trial, and notes what fails; refusals are what a StoreError said."""

    def __init__(self, trial: Trial, work: Path) -> None:
        self.trial, self._work, self.refusals = trial, work, list[str]()

    def fail(self, sentence: str) -> None:
        self.trial.failures.append(sentence)

    def _step(self, name: str, call: Callable[[], Any], may_raise: type[BaseException] | tuple[()] = ()) -> Any:
        """Run one step; None where it raised what it may."""
        started, found = time.process_time(), None
        try:
            found = call()
        except may_raise as e:
            self.refusals.append(f"{name}: {e}")
            if not str(e) or _HIDDEN.search(str(e)) or "\n" in str(e):
                self.fail(f"{name}: {type(e).__name__} is no sentence: {str(e)[:200]!r}")
        except BaseException as e:
            frame = traceback.extract_tb(e.__traceback__)[-1]
            self.fail(f"{name}: {type(e).__name__}: {str(e)[:200]!r} at {frame.filename}:{frame.lineno}")
        if (seconds := time.process_time() - started) > _MOST_SECONDS:
            self.fail(f"{name}: {seconds:.1f} s of the processor")
        return found

    def read(self, store: Path) -> None:
        """Read it in every way."""
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

    def command(self, *words: str) -> tuple[int | None, str]:
        """Run a command; returns its exit code, and what it says."""
        from packer.cli.app import run

        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", "strict", write_through=True) for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = self._step(words[0], lambda: run([*words]))
        out, err = (stream.buffer.getvalue().decode() for stream in streams)  # type: ignore[attr-defined]
        if _HIDDEN.search(out + err):
            self.fail(f"{words[0]}: {out + err!r}")
        if code not in (0, 1, 2) or (code and not _TALK.fullmatch(err)):
            self.fail(f"{words[0]}: exit code {code}: {err[-300:]!r}")
        return code, err if code else ""

    def commands(self, store: str) -> None:
        """Run every command that reads a store; see that what they seal verifies."""
        out = self._work / "out"
        shutil.rmtree(out, ignore_errors=True)
        (out / "images/a").mkdir(parents=True)
        sheet = str(out / "sheet.png")
        for words in (
            ["info", store],
            ["info", store, "--json"],
            ["show", store, "-o", sheet],
            ["compare", store, store],
        ):
            self.command(*words)
        made = [
            ["subset", store, str(out / "subset"), "--fraction", "0.5"],
            ["merge", store, store, str(out / "merged")],
        ]
        made += [["pull", f"file://{store}", str(out / "pulled")], ["push", store, f"file://{out}/url"]]
        for words in made:
            target = words[2] if words[0] != "merge" else words[3]
            # push and pull copy files as they are
            if (
                self.command(*words)[0] == 0
                and words[0] not in ("push", "pull")
                and self.command("verify", target)[0] != 0
            ):
                self.fail(f"{words[0]} sealed what verify refuses")
        self.command("build", str(out / "images"), str(out / "packed"), "--classes", store)

    def load_by_tensordict(self, store: Path) -> None:
        """Load it as FORMAT.md shows; tensordict checks little, and raises what it likes, but runs nothing."""
        from reader.store import ImageBatch

        found = [path for path in store.rglob("*") if not path.is_dir()]
        # it would wait for a pipe, and reads meta.json whole
        if all(path.is_file() and path.stat().st_size < _MOST_META_BYTES for path in found):
            with contextlib.suppress(Exception):
                ImageBatch.load_memmap(store, mode="r", allow_pickle=False)


def _drain(loader: Any) -> None:
    with loader:
        for _ in loader:
            pass


def _content(store: Path) -> list[tuple[str, int, int]]:
    """Return what would show that a store was changed, without reading it: names, sizes and times."""
    found = [(path, path.lstat()) for path in sorted(store.rglob("*"))]
    return [(str(path), about.st_size, about.st_mtime_ns) for path, about in found]


def _memory(kind: str) -> int:
    """Return what the kernel says of this process's memory, in bytes; VmHWM: the most since the peak was cleared."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{kind}:"))


def _watch(work: Path) -> None:
    """Note what no trial may do."""
    allowed = (str(work), os.devnull, _CLEAR_PEAK)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = arguments
            writes = (isinstance(mode, str) and {*mode} & {*"wxa+"}) or (isinstance(flags, int) and flags & _WRITES)
            if writes and isinstance(path, str | bytes) and not os.fsdecode(path).startswith(allowed):
                _CAUGHT.append(f"opened {os.fsdecode(path)!r} to write")
        elif event in _PROGRAMS and (event, *arguments) not in _MESSAGES:
            _CAUGHT.append(f"{event} {str(arguments)[:200]}")

    sys.addaudithook(hook)


def _main(work: Path, has_commands: bool) -> None:
    stores = [Path(line.rstrip("\n")) for line in sys.stdin]
    # what is imported and made once is no trial's
    try_store(stores[0], work, has_commands)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 30, 8 << 30))
    # whether what is made here is on a disk is no question
    os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
    _watch(work)
    asked = _memory("VmData") + _MOST_ASKED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (asked, asked))
    for store in stores:
        sys.__stdout__.write(json.dumps(asdict(try_store(store, work, has_commands))) + "\n")
        sys.__stdout__.flush()
    os._exit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2] == "1")
