"""Runs a program and its pixpack version in turns, seed by seed, and compares their losses and the seconds of their epochs."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts import environment
from scripts.common.figures import ratios, spread

# How many standard errors two means of losses may be apart.
_MOST_ERRORS = 3.0
# A program that takes longer has stopped.
_MOST_SECONDS = 600
# Of the ways, the program under MemmapLoader with data that costs nothing.
FREE = "free"


class ProgramFailed(Exception):
    """A program ended with an error; the text is its last line."""


class Runner:
    """A process that imports once what some programs import, and runs each of them in a fork of itself.

    Args:
        programs: whose imports it makes when it starts.
        python: of the environment that has their packages.
    """

    def __init__(self, programs: Sequence[Path], *, python: str | Path = sys.executable) -> None:
        command = [str(python), "-m", "scripts.studies.programs._run", "--serve", *map(str, programs)]
        quiet = {
            "OMP_NUM_THREADS": "1",
            "YOLO_OFFLINE": "true",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        self._talk = tempfile.TemporaryFile()  # noqa: SIM115 (closed at the exit)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._talk,
            text=True,
            env=environment() | quiet,
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._talk.close()

    def run(self, program: Path, words: Sequence[object], *, is_free: bool = False) -> list[dict[str, float]]:
        """Run a program; returns what it printed of its epochs.

        is_free: every step of a MemmapLoader gives its first batch again, which costs nothing.

        Raises:
            ProgramFailed: it ended with an error, printed no epoch, or took longer than ten minutes.
        """
        with tempfile.TemporaryDirectory() as folder:
            asked: dict[str, object] = {"words": [str(program), *map(str, words)], "folder": folder}
            asked |= {"seconds": _MOST_SECONDS, "is_free": is_free}
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            try:
                self._process.stdin.write(f"{json.dumps(asked)}\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                pass  # its last words follow
            code = self._process.stdout.readline().strip()
            if not code:
                self._talk.seek(0)
                raise ProgramFailed(f"{program.parent.name}: {last_line(self._talk.read().decode())}")
            found = epochs_of(Path(folder, "stdout").read_text())
            if code != "0" or not found:
                last = last_line(Path(folder, "stderr").read_text())
                raise ProgramFailed(f"{program.parent.name}/{program.name}: {last}")
        return found


def last_line(talk: str) -> str:
    """Return the last line of what a program that failed said."""
    return (talk.strip().splitlines() or ["it printed no epoch"])[-1]


def epochs_of(output: str) -> list[dict[str, float]]:
    """Return what a program's `Log` printed, among other lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"epoch"')]


def compare(
    runner: Runner,
    programs: Mapping[str, Path],
    data: Mapping[str, Path],
    seeds: Sequence[int],
    words: Sequence[object] = (),
) -> dict[str, dict[str, Any]]:
    """Run "original" and the ways of a program with each seed, another one first each time.

    data: what each is given, images or a store. Returns of each way losses, how far apart they are, and seconds; or "failed".
    Of "free", the same program as "loader", the batches cost nothing.
    """
    runs: dict[str, list[list[dict[str, float]]]] = {name: [] for name in programs}
    failed: dict[str, str] = {}
    names = [*programs]
    for seed in seeds:
        first = seed % len(names)
        for name in names[first:] + names[:first]:
            if name not in failed:
                try:
                    given = [data[name], "--seed", seed, *words]
                    runs[name].append(runner.run(programs[name], given, is_free=name == FREE))
                except ProgramFailed as e:
                    failed[name] = str(e)
    found: dict[str, dict[str, Any]] = {}
    for way in names[1:]:
        reason = failed.get("original", failed.get(way))
        found[way] = {"failed": reason} if reason else _compared(runs["original"], runs[way])
    return found


def _compared(original: list[list[dict[str, float]]], ours: list[list[dict[str, float]]]) -> dict[str, Any]:
    """Compare the epochs of the runs of each seed."""
    found = {"original": original, "ours": ours}
    losses = {name: [epochs[-1]["val_loss"] for epochs in runs] for name, runs in found.items()}
    seconds = {name: [sum(epoch["seconds"] for epoch in epochs) for epochs in runs] for name, runs in found.items()}
    return {
        "losses": {name: spread(values, 4) for name, values in losses.items()},
        "first_losses": {name: spread([epochs[0]["loss"] for epochs in runs], 4) for name, runs in found.items()},
        "apart": apart(losses["original"], losses["ours"]),
        "seconds": {name: spread(values, 4) for name, values in seconds.items()},
        "faster": ratios(seconds["original"], seconds["ours"]),
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def apart(losses: Sequence[float], others: Sequence[float]) -> float | None:
    """Return how many standard errors two means are apart; None of single values.

    Example:
        >>> apart([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
        1.22
    """
    if len(losses) < 2:
        return None
    error = math.sqrt(statistics.variance(losses) / len(losses) + statistics.variance(others) / len(others))
    difference = abs(statistics.mean(losses) - statistics.mean(others))
    return round(difference / error, 2) if error else (0.0 if not difference else math.inf)


def is_within(found: dict[str, Any]) -> bool:
    """Say whether the losses of two programs are the same but for the scatter of seeds."""
    return found["apart"] is not None and found["apart"] <= _MOST_ERRORS
