"""Does any command, whatever its options and arguments, leave more than its result or one sentence?

    python -m tests.fuzz.fuzz_cli --seconds 600 --seed 1
    python -m tests.fuzz.fuzz_cli --seed 1 --only 417 --keep folder/       runs one command again, and keeps its folder

Runs `pack` with random options and arguments, valid and not, of every command, as click declares them; the values are folders,
lists, tables, archives, stores, unfinished ones and parts, numbers, and nonsense. Every tenth is a program of its own; the
others are processes forked from this one, which has imported what takes longer than a command. Each must end in time, with an
exit code that docs/reference/cli.md names, and print no traceback; where a command that writes exits with 0, `pack
verify` must pass; the inputs must be unchanged, and nothing may be written outside the command's own folder. Prints one JSON
object last; exits 1 where anything failed.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

import click

from packer.cli.app import cli, run
from scripts import ROOT
from tests.fuzz._cli_values import Values, make_inputs

_MOST_SECONDS = 120
_EXIT_CODES = ROOT / "docs/reference/cli.md"
_LOOK_SECONDS = 0.002
_SHARE_OF_PROGRAMS = 0.1
# What a command imports when it runs.
_PRELOADED = (
    "numpy",
    "PIL.Image",
    "packer.packing.pack",
    "packer.packing.update",
    "packer.workers.engine",
    "packer.operations.verify",
    "packer.operations.info",
    "packer.operations.show",
    "packer.operations.plan",
    "packer.operations.subset",
    "packer.operations.merge",
    "packer.operations.transfer",
)
# Signals were not sent.
_INTERRUPTED = {130, 143}
# What each command makes, by the name of its argument; the name of the store, of which `verify` is asked.
_WRITES = {
    "build": "out",
    "update": "out",
    "seal": "out",
    "subset": "out",
    "merge": "out",
    "push": "url",
    "pull": "out",
}
# As often as others: these take seconds each.
_SELDOM = {"bench": 0.1, "compare": 0.1, "doctor": 0.2, "requantize": 0.5}
# Python runs this before the command and in its workers: what is opened for writing, made or renamed elsewhere is noted.
WATCH = """
import os, sys
_own, _log = os.environ["PIXPACK_FUZZ_OWN"], os.environ["PIXPACK_FUZZ_LOG"]
_descriptor = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_changes = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")

def _watch(event, arguments):
    if event == "open":
        path, _, flags = arguments
        # a folder is opened to write where a file without a name is made, which leaves nothing
        if not (flags or 0) & _writing or isinstance(path, (str, bytes)) and os.path.isdir(path):
            return
    elif event in _changes:
        path = arguments[1] if event in ("os.rename", "os.link", "os.symlink") else arguments[0]
    else:
        return
    if isinstance(path, (str, bytes)):
        full = os.path.realpath(os.path.join(os.getcwd(), os.fsdecode(path)))
        if not full.startswith((_own + os.sep, "/dev/", "/proc/")) and full != _own:
            os.write(_descriptor, f"{event} {full}\\n".encode("utf-8", "replace"))

sys.addaudithook(_watch)
"""


def main() -> int:
    """Run commands until the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=1 << 30, help="so many commands at most")
    parser.add_argument("--only", type=int, metavar="N", help="the command of this number alone")
    parser.add_argument("--keep", type=Path, help="with --only: leave its folder there")
    options = parser.parse_args()
    codes, failures = documented_codes(), 0
    counts: collections.Counter[str] = collections.Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pixpack-cli-") as folder:
        work = Path(folder).resolve()
        # before numpy is imported: its threads would be no command's
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        inputs = make_inputs(work / "inputs")
        before = digests(work / "inputs")
        (work / "watch").mkdir()
        (work / "watch/sitecustomize.py").write_text(WATCH)
        number = options.only or 0
        while number < options.most and time.monotonic() - started < options.seconds:
            trial = CommandTrial(work, inputs, options.seed, number)
            problems = trial.run(codes)
            now = digests(work / "inputs")
            problems += ["its inputs have changed"] if now != before else []
            before = now
            counts += collections.Counter({"commands": 1, f"exit_{trial.code}": 1, "verified": trial.is_verified})
            if problems:
                failures += 1
                print(
                    f"command {number} of seed {options.seed}: pack {' '.join(map(repr, trial.words))}",
                    *problems,
                    sep="\n    ",
                )
            if options.only is not None:
                print(" ".join(map(repr, trial.words)), trial.code, trial.printed[-2000:], sep="\n")
                if options.keep:
                    shutil.copytree(trial.own, options.keep, symlinks=True)
                break
            shutil.rmtree(trial.own)
            number += 1
    result = {"benchmark": "fuzz_cli", "seed": options.seed} | dict(sorted(counts.items()))
    print(json.dumps(result | {"failed": failures, "seconds": round(time.monotonic() - started)}))
    return 1 if failures else 0


def digests(folder: Path) -> dict[str, bytes]:
    """Read every file below a folder: relative path -> bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def documented_codes() -> set[int]:
    """Return the exit codes of the reference, less those of signals."""
    table = _EXIT_CODES.read_text(encoding="utf-8")
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.M)} - _INTERRUPTED


class CommandTrial:
    """One command in a folder of its own, `own`; words are what follows `pack`."""

    def __init__(self, work: Path, inputs: Path, seed: int, number: int) -> None:
        self._rng = random.Random(f"{seed} {number}")
        self._work, self.own = work, work / f"c{number}"
        for name in ("tmp", "home"):
            (self.own / name).mkdir(parents=True)
        self._values = Values(self._rng, inputs, self.own)
        names = sorted(cli.commands)
        self._is_program = self._rng.random() < _SHARE_OF_PROGRAMS
        self._command = self._rng.choices(names, [_SELDOM.get(name, 1) for name in names])[0]
        self._target: str | None = None
        self.words = self._make_words()
        self.code, self.printed, self.is_verified = -1, "", False

    def run(self, codes: set[int]) -> list[str]:
        """Run the command; returns what is wrong."""
        problems = []
        target = None if self._target is None else self.own / self._target.removeprefix("file://")
        before = digests(target) if target and target.is_dir() else {}
        try:
            self.code, self.printed = self._pack(self.words)
        except subprocess.TimeoutExpired:
            return [f"it did not end within {_MOST_SECONDS} s"]
        if self.code not in codes:
            problems.append(f"exit code {self.code}, which is not documented: {self.printed[-1000:]}")
        if "Traceback" in self.printed:
            problems.append(self.printed[-3000:])
        if self.code == 0 and target is not None and self._makes_a_store() and digests(target) != before:
            if self._command == "push":  # what is at a URL is read by pull
                self._pack(["pull", str(self._target), str(target := self.own / "pulled")])
            code, printed = self._pack(["verify", str(target)])
            self.is_verified = code == 0
            problems += [] if code == 0 else [f"verify of {target} ended with {code}: {printed[-1000:]}"]
        log = self._work / "log"
        if log.exists():
            outside = sorted(set(log.read_text(errors="replace").splitlines()))
            log.unlink()
            problems += [f"outside its folder: {line}" for line in outside[:5]]
        return problems

    def _make_words(self) -> list[str]:
        words = [self._command] if self._command != "build" or self._rng.random() < 0.8 else []
        command = cli.commands[self._command]
        arguments: list[str] = []
        for parameter in command.params:
            if isinstance(parameter, click.Argument):
                found = self._values.argument(self._command, parameter)
                arguments += found
                if parameter.name == _WRITES.get(self._command) and found:
                    self._target = found[-1]
            elif isinstance(parameter, click.Option) and self._rng.random() < self._share_of(parameter):
                words += self._values.option(parameter)
        if self._rng.random() < 0.03:
            words.append(self._rng.choice(["--nonsense", "-h", "--help", "--version", "-", "--", "-x"]))
        return words + arguments if self._rng.random() < 0.8 else [*words[:1], *arguments, *words[1:]]

    def _share_of(self, option: click.Option) -> float:
        """How often an option is given: what a command cannot do without, mostly."""
        if option.required or (self._command, option.name) in (("build", "size"), ("subset", "rows")):
            return 0.85
        return 0.3 if option.name in ("overwrite", "max_rejects") else 0.07

    def _makes_a_store(self) -> bool:
        """Say whether the command was to write a store, rather than a part of one or its own help."""
        names = {word.partition("=")[0] for word in self.words}
        return not {"-h", "--help", "--version", "--part"} & names

    def _pack(self, words: list[str]) -> tuple[int, str]:
        environment = os.environ | {
            # torch makes a folder of its own when it is imported
            "TORCHINDUCTOR_CACHE_DIR": str(self.own / "torch"),
            "PIXPACK_FUZZ_OWN": str(self.own),
            "PIXPACK_FUZZ_LOG": str(self._work / "log"),
            "PYTHONPATH": f"{self._work / 'watch'}{os.pathsep}{ROOT}",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TMPDIR": str(self.own / "tmp"),
            "HOME": str(self.own / "home"),
            "XDG_CACHE_HOME": str(self.own / "home/cache"),
        }
        if not self._is_program:
            return forked(words, self.own, environment, self._values.stdin)
        done = subprocess.run(
            [sys.executable, "-m", "packer", *words],
            cwd=self.own,
            env=environment,
            input=self._values.stdin,
            capture_output=True,
            timeout=_MOST_SECONDS,
        )
        return done.returncode, done.stderr.decode(errors="replace")


def forked(words: list[str], own: Path, environment: Mapping[str, str], stdin: bytes) -> tuple[int, str]:
    """Run `pack` in a fork of this process, in the folder own; returns its exit code and stderr.

    Raises:
        subprocess.TimeoutExpired: it did not end in time; it is killed.
    """
    (own / "tmp/stdin").write_bytes(stdin)
    for name in _PRELOADED:
        importlib.import_module(name)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        code = 1
        try:
            code = _as_program(words, own, environment)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    started = time.monotonic()
    while (ended := os.waitpid(process, os.WNOHANG))[0] == 0:
        if time.monotonic() - started > _MOST_SECONDS:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)
            raise subprocess.TimeoutExpired("pack", _MOST_SECONDS)
        time.sleep(_LOOK_SECONDS)
    return os.waitstatus_to_exitcode(ended[1]), (own / "tmp/stderr").read_text(errors="replace")


def _as_program(words: list[str], own: Path, environment: Mapping[str, str]) -> int:
    """Be the program `pack`, from here on; returns its exit code."""
    os.setsid()
    os.chdir(own)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir, sys.dont_write_bytecode = None, True
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        descriptor = os.open(own / "tmp" / name, os.O_RDWR | os.O_CREAT)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115 (for good)
    sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
    exec(compile(WATCH, "sitecustomize.py", "exec"), {})
    return run(words)


if __name__ == "__main__":
    sys.exit(main())
