"""Of two packs that start to one OUT at once, does one win, and does the other say at once who holds it?

    python -m tests.crash.race_test --races 50

Both are real processes that wait at a gate, fully imported, and are let through together or up to 30 ms apart. In turns
OUT is new, holds a store that both replace (--overwrite), holds an interrupted pack that both continue, or
its holder has been killed just before. One must exit 0; the other 1, naming the winner's process id and host; the store
must have the bytes of an undisturbed pack and nothing may be beside it. One that comes when the winner is done (counted
as late) may find nothing left to resume, and exit 0. Prints how long the loser took from the gate to its exit, and one
JSON object last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash._program import TrialError, counts_parser, draw_photographs, reported
from tests.crash._runs import digests, stage_of

_SIZE = 64
_GATE = (
    "import sys, packer.cli.app, packer.packing.pack; print(flush=True); sys.stdin.read(1);"
    " sys.exit(packer.cli.app.run(sys.argv[1:]))"
)
_LATE = ("was finished by another process just now", "already holds a store")
_KINDS = ("new", "overwrite", "resume", "dead holder")


def main() -> int:
    """Run all races."""
    options = counts_parser(__doc__, races=50, images=800, seed=0).parse_args()
    return reported("race_test", lambda work: run_races(work, options))


def run_races(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run races of all kinds in turn; returns the seconds that losers took."""
    images, draw, seconds = work / "images", random.Random(options.seed), list[float]()
    draw_photographs(images, options.images)
    _run(images, work / "expected")
    expected = digests(work / "expected")
    for race in range(options.races):
        kind = _KINDS[race % len(_KINDS)]
        took = _race(kind, images, work / "race" / "out", expected, draw.uniform(0, 0.03))
        seconds += [] if took is None else [took]
        shutil.rmtree(work / "race")
    if not seconds:
        raise TrialError("no pack met another; give more --images")
    late = options.races - len(seconds)
    median, most = round(statistics.median(seconds), 3), round(max(seconds), 3)
    print(f"{options.races} races: one won each; the other named it and left after {median} s, at most {most} s;")
    print(f"        {late} came when the winner was done")
    timing = {"median": median, "most": most}
    return {"races": options.races, "late": late, "loser_seconds": timing, "seed": options.seed}


def _race(kind: str, images: Path, out: Path, expected: dict[str, str], apart: float) -> float | None:
    """Run one race; returns the seconds that the loser took, None where it came when the winner was done."""
    _prepare(kind, images, out)
    option = {"new": [], "overwrite": ["--overwrite"]}.get(kind, [])
    packs = [_start(images, out, *option) for _ in range(2)]
    for process in packs:
        _open_gate(process)
        time.sleep(apart)
    started = time.monotonic() - apart
    while all(process.poll() is None for process in packs):
        time.sleep(0.002)
    seconds = time.monotonic() - started
    loser, winner = sorted(packs, key=lambda process: process.poll() is None)
    error, winner_error = loser.communicate()[1], winner.communicate(timeout=120)[1]
    if loser.returncode == 0:
        # the first to end is the winner: the other came too late to be refused by its lock, or found all done
        loser, winner, error, winner_error = winner, loser, winner_error, error
        is_late = any(text in error for text in _LATE) if loser.returncode else kind in ("resume", "dead holder")
    else:
        is_late = False
        if f"is being packed by process {winner.pid} on {os.uname().nodename}" not in error:
            raise TrialError(f"{kind}: the loser does not name process {winner.pid}: {error}")
    if winner.returncode != 0 or (loser.returncode != 1 and not is_late):
        raise TrialError(f"{kind}: exit codes {winner.returncode} and {loser.returncode}: {winner_error}{error}")
    if digests(out) != expected:
        raise TrialError(f"{kind}: the store differs from that of an undisturbed pack")
    if os.listdir(out.parent) != [out.name]:
        raise TrialError(f"{kind}: {sorted(os.listdir(out.parent))} are beside the store")
    return None if is_late else seconds


def _prepare(kind: str, images: Path, out: Path) -> None:
    out.parent.mkdir()
    if kind == "overwrite":
        _run(images, out, "--resample", "box")
    elif kind in ("resume", "dead holder"):
        process = _start(images, out)
        _open_gate(process)
        journal = stage_of(out) / ".packing/journal"
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
            if process.poll() is not None:
                raise TrialError(f"the pack to be interrupted ended by itself: {process.communicate()[1]}")
            time.sleep(0.002)
        # not SIGINT, which is ignored where this is run by nohup or with &
        process.send_signal(signal.SIGTERM if kind == "resume" else signal.SIGKILL)
        process.communicate(timeout=60)


def _start(images: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    arguments = [str(images), str(out), "--size", str(_SIZE), "--workers", "1", "--exact", "--quiet", *options]
    command, pipe = [sys.executable, "-c", _GATE, *arguments], subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    # it is at the gate: what follows is no start of Python
    process.stdout.readline()
    return process


def _open_gate(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _run(images: Path, out: Path, *options: str) -> None:
    process = _start(images, out, *options)
    _, errors = process.communicate("\n", timeout=120)
    if process.returncode:
        raise TrialError(f"packing {images} failed: {errors}")


if __name__ == "__main__":
    sys.exit(main())
