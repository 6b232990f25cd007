"""Runs programs that live in repositories, as they are and with each of our edits, in turns: losses, and how long they wait.

Knows how an edited checkout is run; the edits are _edits.py's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts import environment
from scripts.common.figures import ratios, spread
from scripts.studies.programs._edits import Edits
from scripts.studies.programs._turns import ProgramFailed, last_line

# A program that takes longer has stopped.
_MOST_SECONDS = 900


def measure_checkout(edits: Edits, checkout: Path, work: Path, data: Mapping[str, Path], turns: int) -> dict[str, Any]:
    """Apply every edit to a copy of the checkout, and run them where they can run; returns losses and seconds by way.

    data: what the original reads, and what the ways read: "original", "store".

    Raises:
        EditError: the checkout is another one than the edits are made for.
    """
    ways = ["original", *edits.diffs()]
    for way in ways:
        shutil.rmtree(work / way, ignore_errors=True)
        edits.apply(way, checkout, work / way)
    runs: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(turns if edits.words else 0):
        first = turn % len(ways)
        for way in ways[first:] + ways[:first]:
            given = data["original" if way == "original" else "store"]
            try:
                runs[way].append(run(edits, work / way, given))
            except ProgramFailed as e:
                return {"failed": f"{way}: {e}"}
    found = {way: [seconds for _, seconds in pairs] for way, pairs in runs.items()}
    return {
        way: {"loss": spread([loss for loss, _ in pairs], 4), "seconds": spread(found[way], 4)}
        | ({} if way == "original" else {"sooner": ratios(found["original"], found[way])})
        for way, pairs in runs.items()
        if pairs
    }


def run(edits: Edits, folder: Path, data: Path) -> tuple[float, float]:
    """Run a program; returns the last loss that it printed, and the seconds that it waited for batches.

    Raises:
        ProgramFailed: it ended with an error, or printed no loss.
    """
    program = (folder / edits.file).with_suffix(".py")
    words = [word.format(data=data.absolute()) for word in edits.words]
    command = [sys.executable, "-m", "scripts.studies.programs._run", "--waits", program.name, *words]
    env = environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = f"{folder}:{env.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command, cwd=program.parent, env=env, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False
    )
    losses = re.findall(edits.loss, done.stdout + done.stderr)
    if done.returncode or not losses:
        raise ProgramFailed(last_line(done.stderr))
    waited = json.loads(done.stdout.strip().splitlines()[-1])
    return float(losses[-1]), float(waited["waited_seconds"])
