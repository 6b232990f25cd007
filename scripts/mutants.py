"""Score the tests: apply each fault of tests/mutants to a copy of the repository, and run the tests nearest to it there.

    python -m scripts.mutants [NAME ...] [--jobs 2] [--json FILE]

A mutant is a fault that a change of the code might bring: a comparison flipped, a sync dropped, two axes or classes mixed up.
Each is a file NAME.patch, which begins with what it breaks and the tests to run:

    Merged stores keep the numbers that their classes had.

    Tests: tests/operations/test_copy_rows.py::test_targets_of_every_kind_are_merged_and_numbered_again

    --- a/packer/operations/copying/merge.py
    ...

The copy has the files of the working tree that git knows or does not ignore, and the compiled part, which is built again for a
patch of its sources. The exit code is 1 where a mutant survives, where a patch no longer fits the code, and where the tests fail
without any. To add one, break the code, then `git diff -U1 > tests/mutants/NAME.patch`, and write its head.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from scripts import ROOT

PATCHES = ROOT / "tests/mutants"
# A mutant may make its tests wait for what never comes. The slowest tests take a minute on a machine with other work.
_TIMEOUT_SECONDS = 300
# Optional libraries that tests look for in folders of their own, as scripts/test installs them.
_LIBRARIES = {
    "PIXPACK_TORCHVISION": "torchvision",
    "PIXPACK_ONNX": "onnx",
    "PIXPACK_NOTEBOOK": "notebook",
    "PIXPACK_TRITON": "triton",
}
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """One file of tests/mutants: what it breaks, and the tests that are to notice."""

    name: str
    breaks: str
    tests: tuple[str, ...]
    patch: str

    @classmethod
    def read(cls, path: Path) -> Mutant:
        """Read a file of tests/mutants.

        Raises:
            ValueError: it names no test.
        """
        patch = path.read_text(encoding="utf-8")
        head = re.split(r"^(?:diff --git|---) ", patch, maxsplit=1, flags=re.MULTILINE)[0]
        breaks, _, tests = head.partition("\nTests:")
        if not tests.split():
            raise ValueError(f"{path.name} names no tests. Expected a line 'Tests: tests/...' before the diff.")
        return cls(path.stem, " ".join(breaks.split()), tuple(tests.split()), patch)

    @property
    def files(self) -> list[str]:
        """The files that it changes."""
        return re.findall(r"^\+\+\+ b/(\S+)", self.patch, re.MULTILINE)

    @property
    def is_in_c(self) -> bool:
        """Whether it changes a source of the compiled part."""
        return any(file.endswith((".c", ".h")) for file in self.files)

    @property
    def room(self) -> str:
        """The folder of the first of them."""
        return os.path.dirname(self.files[0])


@dataclass(frozen=True)
class Score:
    """What became of a mutant; outcome: killed, SURVIVED, stale (the patch does not fit), or broken (no test could be run)."""

    name: str
    room: str
    breaks: str
    outcome: str
    by: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name:<42} {self.room:<30} {self.outcome:<8} {self.seconds:5.1f} s  {self.by or self.breaks}"


class Copy:
    """A copy of the working tree in which one mutant at a time is tested."""

    def __init__(self, folder: Path) -> None:
        self.root, self._temporary = folder / "repository", folder / "tmp"
        self._temporary.mkdir(parents=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
        for name in [*names, *(str(path.relative_to(ROOT)) for path in ROOT.glob("pixpack_native/*.so"))]:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, self.root / name)
        self._running: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def check_imports(self) -> None:
        """See that a process, and one that it starts, imports from the copy; raises SystemExit."""
        show = "import packer, pixpack_native, reader; print(packer.__file__, pixpack_native.__file__, reader.__file__)"
        again = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {show!r}], check=True); {show}"
        found = subprocess.run(
            [sys.executable, "-c", again], cwd=self._temporary, env=self._environment(), capture_output=True, text=True
        )
        paths = found.stdout.split()
        if found.returncode or len(paths) != 6 or not all(path.startswith(str(self.root)) for path in paths):
            raise SystemExit(f"the copy is not what Python imports: {found.stdout}{found.stderr}")

    def score(self, mutant: Mutant) -> Score:
        """Apply a patch, run its tests, and take it back."""
        started = time.monotonic()
        if not self._apply(mutant.patch):
            return Score(mutant.name, mutant.room, mutant.breaks, "stale", "", 0.0)
        built = {path: path.read_bytes() for path in self.root.glob("pixpack_native/*.so")} if mutant.is_in_c else {}
        try:
            problem = self._build() if mutant.is_in_c else ""
            outcome, by = ("broken", problem) if problem else self._outcome(*self.run(mutant.tests, "-x"))
        finally:
            self._apply(mutant.patch, "--reverse")
            for path, data in built.items():
                path.write_bytes(data)
        return Score(mutant.name, mutant.room, mutant.breaks, outcome, by, round(time.monotonic() - started, 1))

    def run(self, tests: Sequence[str], *options: str, seconds: float = _TIMEOUT_SECONDS) -> tuple[int | None, str]:
        """Run tests; returns pytest's exit code, None where it was ended for its time, and what it printed."""
        # a fault is to be noticed before it lands: what runs nightly alone does not count
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider"]
        command += ["-m", "not nightly", "-p", "_hypothesis_pytestplugin", *options, *tests]
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                command,
                cwd=self.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running = process
            try:
                code = process.wait(0 if self._is_closed else seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
            if self._is_closed:
                raise InterruptedError("the program was ended")
            printed.seek(0)
            return code, printed.read().decode(errors="replace")

    def close(self) -> None:
        """End what runs; from another thread."""
        self._is_closed = True
        if self._running is not None:
            _end(self._running)

    def _apply(self, patch: str, *options: str) -> bool:
        command = ["git", "apply", "--whitespace=nowarn", *options]
        # as outside of any repository: else git passes over files that the one around it does not have
        environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(self.root.parent)}
        done = subprocess.run(command, cwd=self.root, env=environment, input=patch.encode(), capture_output=True)
        return done.returncode == 0

    def _build(self) -> str:
        """Build the compiled part again; returns why that fails, "" where it does not."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        done = subprocess.run(command, cwd=self.root, env=self._environment(), capture_output=True, text=True)
        # it is optional: setup.py goes on where a source does not compile
        failed = done.returncode or "error:" in done.stderr
        return f"it does not compile: {(done.stderr.strip().splitlines() or [''])[-1]}" if failed else ""

    @staticmethod
    def _outcome(code: int | None, printed: str) -> tuple[str, str]:
        if code is None:
            return "killed", f"timeout after {_TIMEOUT_SECONDS} s"
        if code < 0:
            return "killed", signal.Signals(-code).name
        if code == 0:
            return "SURVIVED", ""
        found = _FAILED.search(printed)
        if code == 1 and found is not None:
            return "killed", found[1]
        return "broken", f"pytest ended with {code}: {(printed.strip().splitlines() or [''])[-1]}"

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        for name, folder in _LIBRARIES.items():
            if (ROOT / ".venv" / folder).is_dir():
                environment.setdefault(name, str(ROOT / ".venv" / folder))
        environment.pop("PYTEST_ADDOPTS", None)
        # plugins of a Python whose torch is reused would come along
        return environment | {
            "PYTHONPATH": str(self.root),
            "TMPDIR": str(self._temporary),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Score the mutants that are named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of files in tests/mutants (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants that are tested at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores there too")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    given = parser.parse_args(arguments)
    patches = [PATCHES / f"{name}.patch" for name in given.names] or sorted(PATCHES.glob("*.patch"))
    if missing := [patch.stem for patch in patches if not patch.is_file()]:
        parser.error(f"tests/mutants has no {', '.join(missing)}")
    mutants = [Mutant.read(patch) for patch in patches]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="pixpack-mutants-", ignore_cleanup_errors=True) as work:
        copies = [Copy(Path(work) / str(number)) for number in range(max(1, given.jobs))]
        if not given.no_baseline and not _passes(copies[0], mutants, len(copies)):
            return 1
        scores = _scored(mutants, copies)
    counts = {outcome: sum(score.outcome == outcome for score in scores) for outcome in {s.outcome for s in scores}}
    print("; ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items(), reverse=True)))
    for score in scores:
        if score.outcome != "killed":
            print(score)
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(score) for score in scores], indent=1) + "\n", encoding="utf-8")
    return 0 if counts.keys() == {"killed"} else 1


def _passes(copy: Copy, mutants: Sequence[Mutant], processes: int) -> bool:
    """Run all tests that are named, each once, without a mutant; says what fails."""
    copy.check_imports()
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    # a module is run once, though tests of it are named beside it
    tests = [test for test in tests if "::" not in test or test.partition("::")[0] not in tests]
    started = time.monotonic()
    spread = ("-p", "xdist", "-n", str(processes), "--dist", "loadscope") if processes > 1 else ()
    code, printed = copy.run(tests, *spread, seconds=_TIMEOUT_SECONDS * len(mutants))
    if code:
        print(f"{printed}\nThe tests fail without a mutant.", file=sys.stderr)
    else:
        summary = (printed.strip().splitlines() or [""])[-1]
        print(f"without a mutant: {summary} ({time.monotonic() - started:.0f} s)", flush=True)
    return code == 0


def _scored(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> list[Score]:
    """Score each mutant in a copy that is free; prints each as it ends."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def score(mutant: Mutant) -> Score:
        copy = free.get()
        try:
            found = copy.score(mutant)
        finally:
            free.put(copy)
        print(found, flush=True)
        return found

    with ThreadPoolExecutor(len(copies)) as pool:
        waiting = [pool.submit(score, mutant) for mutant in mutants]
        try:
            return [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in copies:
                copy.close()
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and what it has started, which are a group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
