"""Runs a program and its pixpack version in turns, seed by seed, and compares their losses and the seconds of their epochs."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts import environment
from scripts.benchmarks._bench import ratios, spread

# How many standard errors two means of losses may be apart.
_MOST_ERRORS = 3.0


class ProgramFailed(Exception):
    """A program ended with an error; the text is its last line."""


def run(
    program: Path, words: Sequence[object], *, python: str | Path = sys.executable, folders: Sequence[str | Path] = ()
) -> list[dict[str, float]]:
    """Run a program; returns what it printed of its epochs.

    Args:
        python: of the environment that has its packages.
        folders: where that imports from too.

    Raises:
        ProgramFailed: it ended with an error, or printed no epoch.
    """
    command = [str(python), "-m", "scripts.studies.programs._run", str(program), *map(str, words)]
    quiet = {"OMP_NUM_THREADS": "1", "YOLO_OFFLINE": "true", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment(*folders) | quiet)
    found = epochs_of(done.stdout)
    if done.returncode or not found:
        last = (done.stderr.strip().splitlines() or ["it printed no epoch"])[-1]
        raise ProgramFailed(f"{program.parent.name}/{program.name}: {last}")
    return found


def epochs_of(output: str) -> list[dict[str, float]]:
    """Return what a program's `Log` printed, among other lines."""
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"epoch"')]


def compare(
    original: Path,
    ours: Path,
    images: Path,
    packed: Path,
    seeds: Sequence[int],
    words: Sequence[object] = (),
    **how: Any,
) -> dict[str, Any]:
    """Run both with each seed, the order changing; returns losses, how far apart they are, and seconds. how: as of `run`."""
    found: dict[str, list[list[dict[str, float]]]] = {"original": [], "ours": []}
    ways = [("original", original, images), ("ours", ours, packed)]
    for seed in seeds:
        for name, program, data in ways if seed % 2 else reversed(ways):
            found[name].append(run(program, [data, "--seed", seed, *words], **how))
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
