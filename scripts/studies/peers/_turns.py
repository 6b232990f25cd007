"""Packs and reads by a peer and by ours in turns, in two processes of which one sleeps while the other works.

Starts the processes of _reader.py and takes medians of what they answer. Knows no peer; neither prints nor draws.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from scripts import ROOT
from scripts.common.figures import ratios, spread
from scripts.common.timing import in_turns
from scripts.studies.peers._environment import clean, last_error
from scripts.studies.peers._reader import LEAD, PeerJob

_LIBRARIES = Path(__file__).resolve().parent / "libraries"
OURS, PEER = "pixpack", "the peer"
OUR_COPYING, PEER_COPYING = "copying beside pixpack", "copying beside the peer"
UNTIMED_ROUNDS = 2
# A slow peer has fewer rounds.
MOST_SECONDS = 40

Ask = Callable[..., Any]


class ReadFailed(Exception):
    """A process could not pack or read, or read what is not in the store; the text says which, and how it ended."""


def compare(job: PeerJob, ways: list[str], python: Path, log: Path, rounds: int) -> dict[str, Any]:
    """Check an epoch of each way and time them beside ours; python is of the environment where the peer is installed.

    Raises:
        ReadFailed: a process ended with an error, or its batches are not the rows of the store.
    """
    ours = dataclasses.replace(job, module=str(_LIBRARIES / "with_pixpack.py"))
    with process(Path(sys.executable), ours, log.with_name("ours.log")) as ask_ours, process(python, job, log) as ask:
        checks = {OURS: ask_ours("check", OURS)} | {way: ask("check", way) for way in ways}
        turns: dict[str, Callable[[], dict[str, float]]] = {OURS: lambda: ask_ours("turn", OURS)}
        for way in ways:
            turns[way] = lambda way=way: ask("turn", way)
        turns |= {OUR_COPYING: lambda: ask_ours("copying"), PEER_COPYING: lambda: ask("copying")}
        found = in_turns(turns, rounds, untimed=UNTIMED_ROUNDS, most_seconds=MOST_SECONDS)
        pairs = [(OURS, way) for way in ways] + [(OURS, OUR_COPYING)] + [(way, PEER_COPYING) for way in ways]
        result = {kind: figures(found, pairs, kind) for kind in ("steady", "epoch")}
        result |= {"rounds": len(found[OURS]), "untimed_batches": LEAD}
        return result | {"checks": checks, "versions": ask("versions")}


def compare_packing(job: PeerJob, ways: list[str], python: Path, folder: Path, rounds: int) -> dict[str, Any]:
    """Pack the job's photographs by the peer and by ours in turns, below folder, and check what the peer has written last.

    Raises:
        ReadFailed: a process ended with an error, or what it wrote are not the rows of the job's store.
    """
    ours = dataclasses.replace(job, module=str(_LIBRARIES / "with_pixpack.py"))
    written = {name: folder / f"packing-{name.replace(' ', '-')}" for name in (OURS, PEER)}
    try:
        with (
            process(Path(sys.executable), ours, folder / "ours.log") as ask_ours,
            process(python, job, folder / "pack.log") as ask,
        ):
            turns = {
                OURS: lambda: ask_ours("pack", emptied(written[OURS])),
                PEER: lambda: ask("pack", emptied(written[PEER])),
            }
            found = in_turns(turns, rounds, untimed=UNTIMED_ROUNDS, most_seconds=MOST_SECONDS)
        job = dataclasses.replace(job, packed=str(written[PEER]), checked_every=1)
        with process(python, job, folder / "read.log") as ask:
            check = ask("check", ways[0])
    finally:
        for path in written.values():
            shutil.rmtree(path, ignore_errors=True)
    rates = figures(found, [(OURS, PEER)], "packing")
    return rates | {"rounds": len(found[OURS]), "photographs": job.shape[0], "check": check}


def emptied(folder: Path) -> str:
    """Make an empty folder; what was written before is on disk then, and does not slow down the next turn."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.sync()
    return str(folder)


def figures(found: dict[str, list[dict[str, float]]], pairs: list[tuple[str, str]], kind: str) -> dict[str, Any]:
    """Return spreads of images/s of one kind, and of the ratios of pairs taken within each round."""
    rates = {name: [rate[kind] for rate in taken] for name, taken in found.items()}
    return {
        "images_per_second": {name: spread(taken, 1) for name, taken in rates.items()},
        "ratio": {f"{a}/{b}": ratios(rates[a], rates[b]) for a, b in pairs},
    }


def packed(job: PeerJob, python: Path, dest: Path, log: Path) -> Path:
    """Return a folder with the job's rows in the peer's format; written to dest unless an earlier run has done so.

    Raises:
        ReadFailed: the peer could not write them.
    """
    if not dest.exists():
        part = dest.with_name(dest.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        print(f"peers: packing {job.shape[0]} rows into {dest}", file=sys.stderr, flush=True)
        with process(python, job, log) as ask:
            ask("pack", str(part))
        part.rename(dest)
    return dest


@contextmanager
def process(python: Path, job: PeerJob, log: Path) -> Iterator[Ask]:
    """Start a reading process; gives a function that sends it something and returns its answer."""
    command = [python, "-m", "scripts.studies.peers._reader", json.dumps(dataclasses.asdict(job))]
    environment = clean() | {"PYTHONPATH": os.pathsep.join([*([job.pillow] if job.pillow else []), str(ROOT)])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
    with open(log, "w", encoding="utf-8") as talk, subprocess.Popen(command, stderr=talk, **pipes) as child:

        def ask(*words: str) -> Any:
            # one that has ended gives no answer either
            with suppress(BrokenPipeError):
                print(*words, file=child.stdin, flush=True)
            answer = child.stdout.readline()
            if not answer:
                name = Path(job.module).stem.removeprefix("with_")
                raise ReadFailed(f"{name}, {words[0]}: {last_error(log)} (log: {log})")
            return json.loads(answer)

        try:
            yield ask
        finally:
            # it ends when nothing more can come
            child.communicate()
