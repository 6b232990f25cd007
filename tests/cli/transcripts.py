"""Transcripts of the command: `$ pack ...` lines with their output and exit code, run again to compare.

A transcript is a file of tests/golden/transcripts. Its lines are

    # words for the reader
    % a line of shell that prepares something, and must succeed
    $ pack images/ out/ --size 16          a command; what follows is written by running it:
    out: 9 rows of 16 x 16 x 3, ...        its standard output,
    2> pack: note: ...                     its standard error,
    exit 0                                 its exit code

Each file runs in a folder of its own, with the images of `make_inputs`. A line of only `pack` and its words, even after a
pipe, runs in this process. Any other line, with an assignment, a redirection or a pipe after it, runs in bash, where pack is
a process. `plain` replaces text that differs between machines.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import PACK

from packer.cli.app import run

ROOT = Path(__file__).parents[2]
# Variables that are the same on every machine.
ENVIRONMENT = {"COLUMNS": "100", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# Variables that must not come from the user who runs the tests.
FOREIGN = ("AWS_", "RAY_", "NO_COLOR", "FORCE_COLOR", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "PIXPACK_REMOTE")
IN_PROCESS = re.compile(r"(?:(?P<feed>[^#]*) \| )?pack(?P<words>(?: '[^']*'| [^\s|;&<>]+)*)")

# Text that differs between machines or runs, and its replacement.
_REPLACED = [
    (r"(?m)^(pixpack|decoder:|resizing:|compiled part:) .*", r"\1 ..."),
    (r"(?m)^decoders .*(\n {12}.*)*", "decoders ..."),
    (r"\d+% of it", "N% of it"),
    (r"\d[\d,]*\.\d+ s\b", "N s"),
    (r"[\d,.]+ images/s", "N images/s"),
    (r"\d[\d,.]* (bytes|[kMGT]i?B)/s", "N B/s"),
    (r"\d[\d,.]* (bytes|[kMGT]i?B)\b", "N kB"),
    (r"\b(sha256|crc32):[0-9a-f]+", r"\1:HEX"),
    (r"\b[0-9a-f]{64}\b", "HEX"),
]
# Names of such values in JSON, and of such numbers.
_OF_THE_MACHINE = {"decoders", "time"}
_OF_THE_MACHINE |= {"ways"}
_FIGURES = re.compile(r"seconds|_per_second|bytes|psnr|rate|share$")


class Session:
    """A folder in which the lines of one transcript run, one after the other."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._folder, self._patch, self._capture = folder, patch, capture
        shim = folder.parent / "bin" / "pack"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec {shlex.join(PACK)} "$@"\n')
        shim.chmod(0o755)
        for name in [name for name in os.environ if name.startswith(FOREIGN)]:
            patch.delenv(name)
        path = os.pathsep.join([str(shim.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        for name, value in {**ENVIRONMENT, "HOME": str(folder), "PATH": path}.items():
            patch.setenv(name, value)
        patch.chdir(folder)

    def replay(self, text: str) -> str:
        """Return a transcript with the output and exit codes of its commands here."""
        return "\n".join(self._lines(text)) + "\n"

    def _lines(self, text: str) -> Iterator[str]:
        for line in without_answers(text):
            yield line
            if line.startswith("% "):
                done = subprocess.run(["bash", "-euc", line[2:]], capture_output=True, text=True, timeout=500)
                assert done.returncode == 0, f"{line}\n{done.stderr}"
            if line.startswith("$ "):
                code, out, err = self._answer(line[2:])
                yield from plain(out, self._folder).splitlines()
                yield from (f"2> {text}".rstrip() for text in plain(err, self._folder).splitlines())
                yield f"exit {code}"

    def _answer(self, line: str) -> tuple[int, str, str]:
        """Run a command; returns its exit code, stdout and stderr."""
        match = IN_PROCESS.fullmatch(line)
        if match is None:
            return _shell(line)
        words = [word for part in shlex.split(match["words"]) for word in _expanded(part, self._folder)]
        feed = subprocess.run(["bash", "-c", match["feed"] or ":"], capture_output=True, check=True, timeout=500).stdout
        return self._in_process(words, feed)

    def _in_process(self, words: list[str], feed: bytes) -> tuple[int, str, str]:
        self._capture.readouterr()
        kept, (reading, writing) = os.dup(0), os.pipe()
        os.write(writing, feed)  # less than a pipe holds
        os.close(writing)
        os.dup2(reading, 0)
        with pytest.MonkeyPatch.context() as patch, open(reading) as stdin:
            patch.setattr(sys, "stdin", stdin)
            try:
                code = run(words)
            finally:
                os.dup2(kept, 0)
                os.close(kept)
        return code, *self._capture.readouterr()


def without_answers(text: str) -> Iterator[str]:
    """Yield the lines of a transcript that are not written by running it: an answer ends with its exit code."""
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        yield lines[number]
        number += 1
        if lines[number - 1].startswith("$ "):
            ahead = [n for n in range(number, len(lines)) if lines[n].startswith(("$ ", "exit "))]
            if ahead and lines[ahead[0]].startswith("exit "):
                number = ahead[0] + 1


def _expanded(word: str, folder: Path) -> list[str]:
    """Expand a word like a shell: the files of a pattern, and $PWD."""
    return sorted(glob.glob(word)) if "*" in word else [word.replace("$PWD", str(folder))]


def _shell(line: str) -> tuple[int, str, str]:
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=500, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


def plain(text: str, folder: Path) -> str:
    """Replace text that differs between machines, and write JSON with one line per key."""
    if text.startswith("{") and text.count("\n") == 1:
        text = _spread(json.loads(text))
    text = text.replace(str(folder), "$PWD").replace(str(ROOT), "$CLONE")
    for pattern, stands in _REPLACED:
        text = re.sub(pattern, stands, text)
    return text


def _spread(value: dict[str, object], indent: str = "") -> str:
    """Write an object with one line per key; values that differ between runs are shown only as numbers."""
    lines = ["{"]
    for key, inner in value.items():
        if key in _OF_THE_MACHINE:
            lines.append(f'{indent} "{key}": ...')
        elif isinstance(inner, dict) and inner:
            lines.append(f'{indent} "{key}": {_spread(inner, indent + " ").rstrip()}')
        else:
            is_figure = isinstance(inner, int | float) and not isinstance(inner, bool) and _FIGURES.search(key)
            lines.append(f'{indent} "{key}": {"N" if is_figure else json.dumps(inner)}')
    return "\n".join([*lines, f"{indent}}}"]) + "\n"
