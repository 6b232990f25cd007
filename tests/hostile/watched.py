"""A process that reads stores of strangers and runs commands, whose memory, time, files and connections are watched.

A trial fails where something raises what it does not declare, exits with another code than it documents, prints a traceback or
a control character, takes too long or too much memory, changes anything outside its folder, seals what `pack verify` refuses,
starts a program, or asks the network.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

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
# what processes of ours send each other
_OWN = ("packer.", "concurrent.futures.process", "collections")
# event -> which of its arguments is a path that it changes
_CHANGES = dict.fromkeys(("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.chmod", "os.rename"), 0)
_CHANGES |= {"os.link": 1, "os.symlink": 1}
_PROGRAMS = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.getaddrinfo"}
_READY = "ready"
# proc(5)
_CLEAR_PEAK = "/proc/self/clear_refs"


@dataclass
class Trial:
    """What opening and verify said of a store ("": nothing), how a command ended, and what these or others may not do."""

    opening: str = ""
    verify: str = ""
    code: int | None = None
    says: str = ""
    failures: list[str] = field(default_factory=list)


class Watched:
    """The process, and the folder `own`, which alone it may change.

    Args:
        work: for that folder.
        valid: a store that nothing is wrong with, which it reads first.
    """

    def __init__(self, work: Path, valid: Path) -> None:
        self.own = work / "own"
        self.clear()
        command, pipe = [sys.executable, "-B", "-m", __name__, str(self.own), str(valid)], subprocess.PIPE
        with open(work / "errors", "w") as errors:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=ROOT)
        assert self._answer() == _READY

    def read(self, store: Path, *, has_commands: bool = False) -> Trial:
        """Read a store in every way, and verify it; has_commands: and give it to all other commands."""
        self.clear()
        return self._ask("read", str(store), has_commands)

    def run(self, words: Sequence[str], stdin: bytes = b"") -> Trial:
        """Run a command in the folder `own`; what it makes there must verify."""
        return self._ask("run", words, stdin.decode("latin-1"))

    def clear(self) -> Path:
        """Empty its folder."""
        shutil.rmtree(self.own, ignore_errors=True)
        self.own.mkdir()
        return self.own

    def close(self) -> None:
        self._process.communicate()

    def _ask(self, *question: Any) -> Trial:
        assert self._process.stdin is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        return Trial(**json.loads(self._answer()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        if not (answer := self._process.stdout.readline()):
            errors = self.own.with_name("errors").read_text()
            raise AssertionError(f"the process ended with {self._process.wait()}: {errors[-2000:]}")
        return answer.rstrip()


@pytest.fixture(scope="session")
def watched(store_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Such a process."""
    process = Watched(tmp_path_factory.mktemp("watched"), store_of("pad"))
    yield process
    process.close()


# -- in the process


class _Runner:
    """Runs steps of one trial, and notes what fails; refusals are what a StoreError said."""

    def __init__(self, own: Path) -> None:
        self.trial, self._own, self.refusals = Trial(), own, list[str]()

    def _fail(self, sentence: str) -> None:
        self.trial.failures.append(sentence)

    def _step(self, name: str, call: Callable[[], Any], may_raise: type[BaseException] | tuple[()] = ()) -> Any:
        """Run one step; None where it raised what it may."""
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

    def read(self, name: str, has_commands: bool) -> None:
        """Do all of it with one store."""
        store = Path(name)
        Path(_CLEAR_PEAK).write_text("5")
        used_bytes = _memory("VmRSS")
        self._read(store)
        code, self.trial.verify = self._command("verify", name)
        if code == 0 and self.refusals:
            self._fail(f"verify accepts what is refused by {self.refusals[0]}")
        if has_commands:
            self._give(name)
        self._load_by_tensordict(store)
        if (taken := _memory("VmHWM") - used_bytes) > _MOST_BYTES:
            self._fail(f"{taken:,} bytes of memory")

    def run(self, words: list[str], stdin: str) -> None:
        """Run a command, then verify what is in its folder."""
        sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode("latin-1")))
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
        """Run a command; returns its exit code, and what it says."""
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
        """Give a store to every command that reads one; what they seal must verify."""
        own = str(self._own)
        for words in ("info", "info --json", f"show -o {own}/sheet.png", f"compare {store}", f"push file://{own}/url"):
            name, *rest = words.split()
            self._command(name, store, *rest)
        self._command("pull", f"file://{store}", f"{own}/pulled")
        (self._own / "images/a").mkdir(parents=True)
        self._command("build", f"{own}/images", f"{own}/packed", "--classes", store)
        for name, words in (
            ("subset", [store, f"{own}/out", "--fraction", "0.5"]),
            ("merge", [store, store, f"{own}/merged"]),
        ):
            if self._command(name, *words)[0] == 0:
                self._must_verify(name, f"{own}/out" if name == "subset" else f"{own}/merged")

    def _load_by_tensordict(self, store: Path) -> None:
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


def _memory(kind: str) -> int:
    """Return what the kernel says of this process's memory, in bytes; VmHWM: the most since the peak was cleared."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{kind}:"))


def _watch(own: Path, log: int) -> None:
    """Note what no trial may do, in the processes that it forks too."""
    allowed = (str(own), "/dev/", "/proc/")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = None
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES:
            # a folder is opened to write where a file without a name is made, which leaves nothing
            path = None if isinstance(arguments[0], int) or os.path.isdir(arguments[0]) else arguments[0]
        elif event in _CHANGES:
            path = arguments[_CHANGES[event]]
        # uname: doctor has it asked for the processor
        elif (event in _PROGRAMS and arguments[0] != "uname") or (
            event == "pickle.find_class" and not str(arguments[0]).startswith(_OWN)
        ):
            os.write(log, f"{event} {str(arguments)[:200]}\n".encode("utf-8", "replace"))
        if isinstance(path, str | bytes) and not os.path.abspath(os.fsdecode(path)).startswith(allowed):
            os.write(log, f"{event} {os.path.abspath(os.fsdecode(path))}\n".encode("utf-8", "replace"))

    sys.addaudithook(hook)


def _main(own: Path, valid: str) -> None:
    questions, answers = sys.stdin, open(os.dup(1), "w")  # noqa: SIM115 (as long as the process)
    os.dup2(2, 1)
    # what is imported and made once is no trial's
    os.chdir(own)
    _Runner(own).read(valid, True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 30, 8 << 30))
    # whether what is made here is on a disk is no question
    os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
    log = own.with_name("caught")
    _watch(own, os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    caught = open(log)  # noqa: SIM115
    asked = _memory("VmData") + _MOST_ASKED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (asked, asked))
    print(_READY, file=answers, flush=True)
    for line in questions:
        runner, (name, *given) = _Runner(own), json.loads(line)
        os.chdir(own)
        getattr(runner, name)(*given)
        runner.trial.failures += sorted({*caught.read().splitlines()})
        print(json.dumps(asdict(runner.trial)), file=answers, flush=True)
    os._exit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
