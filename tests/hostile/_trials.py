"""Every reader and command on one store of a stranger, in this process; and children that do so for many, within limits.

A trial fails where something raises what it does not declare, exits with another code than it documents, prints a traceback or
a control character, takes too long or too much memory, changes the store, seals what `pack verify` refuses, opens anything
outside its folder to write, starts a program or asks the network.

    python -m tests.hostile._trials WORK SCOPE < paths of stores, one a line     prints a line of JSON for each
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts import ROOT
from tests.hostile._watch import CAUGHT, forget_peak, memory, unwatched, watch

# of the processor: on a machine that does other work as well a step waits its turn
MOST_SECONDS = 5.0
# And this for what there is to read, up to 2 GB: `pack verify` has taken 4.4 s for 1 GB of holes on a machine that was busy.
_MOST_SECONDS_PER_GB = 5.0
_MOST_WAITED_SECONDS = 30.0
MOST_BYTES = 1 << 30
# Of memory that is asked for, used or not: pixels are mapped as memory of this process, several times over.
_MOST_ASKED_BYTES = 8 << 30
# What is killed, of the processor, so that a trial that a busy machine slows down is not taken for one that never ends; one that
# waits for nothing uses none, and is killed after so many times as long.
_KILLED_SECONDS = 60.0
_MOST_TIMES_WAITED = 30
# The same for the first answer, before which all is imported and done once; and of each full trial, a dozen processes.
_KILLED_FIRST_SECONDS = 300.0
_MOST_META_BYTES = 64 << 20
_MOST_COPIED_BYTES = 2 << 30
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
# what a command that takes long says of how far it is
_PROGRESS = re.compile(r"[a-z]+: .* of .*, \d+%")
# What only a full trial does: these take a second each. Checks are what readers and `pack verify` say, and no more.
CHECKS, QUICK, FULL = "checks", "quick", "full"


def run_trials(stores: Sequence[Path], work: Path, scope: str = QUICK) -> Iterator[dict[str, Any]]:
    """Try stores in children, one after the other; yields for each {"store", "failures", "seconds", "opens", "verifies"}."""
    left = list(stores)
    while left:
        child = _Child(work, scope, left)
        try:
            for line in child.lines():
                left.pop(0)
                yield line
        finally:
            child.end()
        if left and not child.is_idle:
            store = left.pop(0)
            yield {
                "store": str(store),
                "failures": [child.why],
                "seconds": _KILLED_SECONDS,
                "opens": False,
                "verifies": False,
            }


class _Child:
    """A process that tries stores until it is killed or dies; why says which."""

    def __init__(self, work: Path, scope: str, stores: Sequence[Path]) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.why, self.is_idle, self._scope = "", False, scope
        self._errors = open(work / "stderr", "w+b")  # noqa: SIM115 (open as long as this is)
        command = [sys.executable, "-m", "tests.hostile._trials", str(work), scope]
        environment = os.environ | {"TMPDIR": str(work), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, cwd=ROOT, env=environment
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("".join(f"{store}\n" for store in stores).encode())
            self._process.stdin.close()

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the child says of each store; ends where it has done all, or does not answer any more."""
        assert self._process.stdout is not None
        seconds = _KILLED_FIRST_SECONDS
        while True:
            ready = self._is_ready(seconds)
            line = self._process.stdout.readline() if ready else b""
            if not line:
                self._process.kill() if not ready else None
                code = self._process.wait()
                self._errors.seek(0)
                printed = self._errors.read()[-600:].decode(errors="replace")
                self.why = (
                    f"did not end within {seconds:.0f} s" if not ready else f"the process ended with {code}: {printed}"
                )
                self.is_idle = code == 0
                return
            yield json.loads(line)
            seconds = _KILLED_FIRST_SECONDS if self._scope == FULL else _KILLED_SECONDS

    def _is_ready(self, seconds: float) -> bool:
        """Wait for the next line; False: the child has used so many seconds of the processor, or waited far longer."""
        started, used = time.monotonic(), _used_seconds(self._process.pid)
        while time.monotonic() - started < seconds * _MOST_TIMES_WAITED:
            if select.select([self._process.stdout], [], [], seconds / _MOST_TIMES_WAITED)[0]:
                return True
            if _used_seconds(self._process.pid) - used > seconds:
                return False
        return False

    def end(self) -> None:
        """Kill the child, if it is there."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def _used_seconds(process: int) -> float:
    """Return what a process has used of the processor; 0 of one that is gone."""
    try:
        # proc(5), stat: the name, in brackets, may hold spaces
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- in the child


class StoreTrial:
    """One store being tried; failures are sentences."""

    def __init__(self, store: Path, work: Path, scope: str) -> None:
        self.store, self.work, self.scope = store, work, scope
        size_bytes = sum(path.stat().st_size for path in store.rglob("*") if path.is_file())
        self.most_seconds = MOST_SECONDS + _MOST_SECONDS_PER_GB * min(size_bytes / 1e9, 2)
        self.failures: list[str] = []
        # what raised a StoreError, of which no store that verifies gives cause
        self.refused: list[str] = []

    def run(self) -> dict[str, Any]:
        """Do all of it."""
        before, started = _content(self.store), time.monotonic()
        used_bytes = forget_peak()
        opens = self._readers()
        verifies = self._commands()
        if verifies and self.refused:
            self.failures.append(f"verify accepts what is refused by {self.refused[0]}")
        # it would wait for a pipe, and reads meta.json whole
        found = [path for path in self.store.rglob("*") if not path.is_dir()]
        if all(path.is_file() and path.stat().st_size < _MOST_META_BYTES for path in found):
            self._tensordict()
        if _content(self.store) != before:
            self.failures.append("the store was changed")
        if (taken := memory("VmHWM") - used_bytes) > MOST_BYTES:
            self.failures.append(f"{taken:,} bytes of memory")
        seconds = time.monotonic() - started
        return {
            "store": str(self.store),
            "failures": self.failures,
            "seconds": seconds,
            "opens": opens,
            "verifies": verifies,
        }

    def _step(self, name: str, call: Callable[[], Any], *, may_raise: tuple[type[BaseException], ...]) -> Any:
        """Run one step; None where it raised what it may."""
        started, waited = time.process_time(), time.monotonic()
        try:
            found = call()
        except may_raise as e:
            found = None
            self.refused.append(f"{name}: {str(e)[:200]}")
            if not str(e) or _HIDDEN.search(str(e)) or "\n" in str(e):
                self.failures.append(f"{name}: {type(e).__name__} is no sentence: {str(e)[:200]!r}")
        except BaseException as e:
            frame = traceback.extract_tb(e.__traceback__)[-1]
            self.failures.append(f"{name}: {type(e).__name__}: {str(e)[:200]!r} at {frame.filename}:{frame.lineno}")
            found = None
        seconds, waited = time.process_time() - started, time.monotonic() - waited
        if seconds > self.most_seconds or waited > _MOST_WAITED_SECONDS:
            self.failures.append(f"{name}: {seconds:.1f} s of the processor, {waited:.1f} s")
        return found

    def _readers(self) -> bool:
        from reader import MemmapDataset, MemmapLoader, concat
        from reader.format.errors import StoreError

        dataset = self._step("MemmapDataset", lambda: MemmapDataset(self.store), may_raise=(StoreError,))
        if dataset is None:
            return False
        last = len(dataset) - 1
        steps: dict[str, Callable[[], Any]] = {
            "repr": lambda: repr(dataset),
            "row": lambda: (dataset[0], dataset[last]),
            "slice": lambda: dataset[: min(last + 1, 1000)],
            "gather": lambda: dataset[[last, 0, last // 2]],
            "targets": lambda: dataset.targets[:3],
            "samples": lambda: dataset.samples[:3],
            "source": lambda: dataset.source(last),
            "texts": lambda: dataset.texts,
            "with_targets": lambda: dataset.with_targets([-1] * (last + 1))[last],
            "DataLoader": lambda: _all_of_torch(dataset),
            "MemmapLoader": lambda: _drained(MemmapLoader(dataset, batch_size=4, shuffle="full", prefetch=0)),
        }
        if not dataset.manifest.compression:  # of which there is no tensor of all rows
            steps["store"] = lambda: dataset.store
            steps["concat"] = lambda: _drained(MemmapLoader(concat([dataset, dataset]), batch_size=4, prefetch=0))
        if self.scope == FULL:
            # "ram" takes the memory of all rows, as it is asked to
            residency = "ram" if dataset.manifest.pixel_bytes < MOST_BYTES else "disk"
            steps["MemmapLoader block"] = lambda: _drained(
                MemmapLoader(dataset, batch_size=3, shuffle="block", residency=residency)
            )
        for name, call in steps.items():
            self._step(name, call, may_raise=(StoreError,))
        return True

    def _commands(self) -> bool:
        out, store = self.work / "out", str(self.store)
        verifies = self._command("verify", store) == 0
        if self.scope == CHECKS:
            return verifies
        self._command("info", store)
        self._command("info", store, "--json")
        self._command("show", store, "-o", str(self.work / "sheet.png"))
        self._command("show", store, "--per-class", "2", "-o", str(self.work / "sheet.png"))
        made = [("subset", store, str(out / "s"), "--fraction", "0.5"), ("merge", store, store, str(out / "m"))]
        made += [("subset", store, str(out / "c"), "--per-class", "2")] if self.scope == FULL else []
        for words in made:
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir()
            target = words[-1] if words[0] == "merge" else words[2]
            if self._command(*words) == 0 and self._command("verify", target) != 0:
                self.failures.append(f"{words[0]} sealed what verify refuses")
        if self.scope == FULL:
            self._full(out, store)
        shutil.rmtree(out, ignore_errors=True)
        return verifies

    def _full(self, out: Path, store: str) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        self._command("info", store, "--brief")
        self._command("pull", f"file://{store}", str(out / "pulled"))
        with unwatched():  # what fetches is a process
            for words in (("info",), ("verify",), ("show", "-o", str(self.work / "sheet.png"))):
                self._command(words[0], f"file://{store}", *words[1:])
        if self._command("push", store, f"file://{out}/url") == 0:
            self._command("pull", f"file://{out}/url", str(out / "back"))
        # measures torch's DataLoader too, whose workers are processes
        with unwatched():
            self._command("bench", store, "--seconds", "0.1", "--order", "sequential", "--batch-size", "2", "--json")
        (out / "images").mkdir()
        self._command("build", str(out / "images"), str(out / "p"), "--classes", store)
        shutil.copytree(self.store, out / "u", symlinks=True, ignore=_not_copied)
        _draw_image(out / "images/a/0.jpg")
        with unwatched():  # workers are processes
            self._command("update", str(out / "images"), str(out / "u"), "--max-gone", "100%")

    def _command(self, *words: str) -> int | None:
        """Run a command; returns its exit code."""
        from packer.cli.app import run

        out, err = (
            io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True) for _ in range(2)
        )
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = self._step(" ".join(words[:1]), lambda: run([*words]), may_raise=())
        printed = {"stdout": out.buffer.getvalue().decode(), "stderr": err.buffer.getvalue().decode()}  # type: ignore[attr-defined]
        for stream, text in printed.items():
            if found := _HIDDEN.search(text):
                self.failures.append(f"{words[0]}: {found[0]!r} on {stream}")
        if code is None:
            return None
        if code not in (0, 1, 2):
            self.failures.append(f"{words[0]}: exit code {code}: {printed['stderr'][:200]!r}")
        lines = [
            line
            for line in printed["stderr"].splitlines()
            if not line.startswith("pack: ") and not _PROGRESS.match(line)
        ]
        if code and (lines or not printed["stderr"]):
            self.failures.append(f"{words[0]}: {printed['stderr'][:200]!r}")
        return int(code)

    def _tensordict(self) -> None:
        """Load it as FORMAT.md shows; tensordict checks little, and raises what it likes, but runs nothing."""
        from reader.store import ImageBatch

        with contextlib.suppress(Exception):
            ImageBatch.load_memmap(self.store, mode="r", allow_pickle=False)


def _all_of_torch(dataset: Any) -> None:
    from torch.utils.data import DataLoader

    for _ in DataLoader(dataset, batch_size=1 if dataset.manifest.has_own_sizes else 4, num_workers=0):
        pass


def _drained(loader: Any) -> None:
    with loader:
        for _ in loader:
            pass


def _draw_image(path: Path) -> None:
    from PIL import Image

    path.parent.mkdir()
    Image.new("RGB", (8, 8), "gray").save(path)


def _not_copied(folder: str, names: list[str]) -> list[str]:
    """Name pipes, and files of holes that no disk has room for."""
    paths = {name: os.path.join(folder, name) for name in names}
    return [
        name
        for name, path in paths.items()
        if not os.path.isdir(path) and not (os.path.isfile(path) and os.path.getsize(path) < _MOST_COPIED_BYTES)
    ]


def _content(store: Path) -> list[tuple[str, int, int]]:
    """Return what would show that a store was changed, without reading it: names, sizes and times."""
    found = []
    for path in sorted(store.rglob("*")):
        about = path.lstat()
        found.append((str(path), about.st_size, about.st_mtime_ns))
    return found


def _main(work: Path, scope: str) -> None:
    stores = [Path(line.rstrip("\n")) for line in sys.stdin]
    from tests.hostile._stores import valid_store

    # what is imported and made once is no trial's
    shutil.rmtree(work / "warm", ignore_errors=True)
    StoreTrial(valid_store(work / "warm", "boxes"), work, scope).run()
    resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 30, 8 << 30))
    # whether what is made here is on a disk is no question
    os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]
    watch(work)
    asked = memory("VmData") + _MOST_ASKED_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (asked, asked))
    for store in stores:
        CAUGHT.clear()
        found = StoreTrial(store, work, scope).run()
        found["failures"] += sorted(set(CAUGHT))
        sys.__stdout__.write(json.dumps(found) + "\n")
        sys.__stdout__.flush()
    os._exit(0)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
