"""Does Ctrl-C in a training loop cost a batch, or leave a process behind?

    python -m tests.crash.interrupt_test --presses 100

For each way to read (feeder thread, disk, caller's thread, our transform, worker processes of a DataLoader, forks in the middle
of an epoch) a program is pressed at random moments and continues: with the same iterator, and where that has ended, from the
loader's state. Its epochs must have the batches of one that nobody pressed. Then programs that do not continue are pressed
as often, each in the middle of an epoch: each must end by SIGINT, with one traceback, without an error of a thread or of what is
collected, and leave no process of its group. Prints how often each was pressed and how long it took to end, and one JSON object
last; exits 1 at the first failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packer import pack
from tests.crash._program import TrialError, counts_parser, draw_photographs, reported

_SIZE = 32
# Of each wait for a program: some 0.1 s here, the rest is for machines that do other work as well.
_PATIENCE_SECONDS = 120
_LOADERS = """
import os, random, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader
from reader import MemmapDataset, MemmapLoader
from reader.transforms import RandomHorizontalFlip

def slow(image):
    time.sleep(0.001)
    return image.float() + torch.rand(())

def loader_of(store, way, workers=2):
    data = MemmapDataset(store, transform=slow if way == "workers" else None)
    if way == "torch":
        return DataLoader(data, 8, num_workers=2)
    given = {
        "disk": {"residency": "disk"},
        "caller": {"prefetch": 0},
        "transform": {"transform": RandomHorizontalFlip()},
        "workers": {"num_workers": workers},
    }
    return MemmapLoader(data, 8, shuffle="full", seed=0, **given.get(way, {}))
"""
_GOING_ON = (
    _LOADERS
    + """
store, way, wanted, seed = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
draw, is_open, presses, resumed = random.Random(seed), False, 0, 0
done = threading.Event()

def interrupt(*_):
    global is_open, presses
    if is_open:
        is_open, presses = False, presses + 1
        raise KeyboardInterrupt

def press():
    while not done.wait(draw.uniform(0.001, 0.03)):
        os.killpg(0, signal.SIGINT)

def from_its_start(loader):
    loader.set_epoch(0)
    return iter(loader)

def forked():
    if child := os.fork():
        return child
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    found = [images for images, _ in from_its_start(loader_of(store, way))]
    os._exit(int(len(found) != len(expected) or not all(map(torch.equal, found, expected))))

expected = [images for images, _ in from_its_start(loader_of(store, way, workers=0))]
signal.signal(signal.SIGINT, interrupt)
threading.Thread(target=press, daemon=True).start()
loader = loader_of(store, way)
while presses < wanted:
    found, children, steps = [], [], from_its_start(loader)
    while len(found) < len(expected):
        if way == "forks" and len(children) < 2:
            children.append(forked())
        try:
            is_open = True
            for images, _ in steps:
                found.append(images)
            is_open = False
        except KeyboardInterrupt:
            continue
        if len(found) < len(expected):
            # it has ended: in the caller's thread nothing else is left of it
            resumed += 1
            loader.load_state_dict(loader.state_dict())
            steps = iter(loader)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected)), (len(found), len(expected))
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
done.set()
signal.signal(signal.SIGINT, signal.SIG_IGN)
loader.close()
print(presses, resumed)
"""
)
# Imports once and forks for each press; the child reads epochs until it is interrupted, and ends as an interpreter of its own.
_ENDING = (
    _LOADERS
    + """
for number, way in enumerate(sys.argv[2:]):
    sys.stdin.readline()
    if not (child := os.fork()):
        os.setpgid(0, 0)
        os.dup2(os.open(f"errors-{number}", os.O_WRONLY | os.O_CREAT), 2)
        print(os.getpid(), flush=True)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
loader, is_reported = loader_of(sys.argv[1], way), False
# as programs do that read the same rows in another process
is_child = way == "forks" and not os.fork()
while True:
    for step, batch in enumerate(loader):
        if step == 1 and not is_reported and not is_child:
            is_reported = True
            print("in the middle", flush=True)
"""
)
_GO_ON = ("thread", "disk", "caller", "transform", "workers", "forks")
_END = ("thread", "disk", "caller", "transform", "workers", "forks", "torch")


def main() -> int:
    """Press Ctrl-C in all programs."""
    options = counts_parser(__doc__, presses=100, images=400, seed=0).parse_args()
    return reported("interrupt_test", lambda work: press_all(work, options))


def press_all(work: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Press Ctrl-C in all programs; returns how often, and how long those took to end that did not continue."""
    draw_photographs(work / "images", options.images)
    pack(work / "images", work / "out", size=_SIZE, workers=1)
    went_on = {way: _goes_on(work / "out", way, options) for way in _GO_ON}
    for way, (presses, resumed) in went_on.items():
        print(f"{way}: {presses} presses, no batch lost, repeated or changed; {resumed} times an iterator had ended")
    seconds = _ends(work, options)
    for way, took in seconds.items():
        print(
            f"{way}: {len(took)} programs ended by SIGINT after {statistics.median(took):.3f} s, {max(took):.3f} s at most"
        )
    timing = {way: [round(statistics.median(took), 3), round(max(took), 3)] for way, took in seconds.items()}
    return {"went_on": went_on, "ended": len([s for took in seconds.values() for s in took]), "seconds": timing}


def _goes_on(store: Path, way: str, options: argparse.Namespace) -> list[int]:
    """Run a program that continues; returns how often it was pressed, and how often it began an iterator again."""
    done = subprocess.run(
        [sys.executable, "-c", _GOING_ON, str(store), way, str(options.presses), str(options.seed)],
        capture_output=True,
        text=True,
        timeout=10 * _PATIENCE_SECONDS,
        start_new_session=True,
        preexec_fn=_listen,
    )
    if done.returncode or "Exception ignored" in done.stderr:
        raise TrialError(f"{way}: a program that continues ended with {done.returncode}: {done.stderr}")
    return [int(word) for word in done.stdout.split()]


def _ends(work: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Press in programs that do not continue; returns the seconds that each took to end."""
    draw, seconds = random.Random(options.seed), dict[str, list[float]]()
    ways = [_END[number % len(_END)] for number in range(options.presses)]
    command = [sys.executable, "-c", _ENDING, str(work / "out"), *ways]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=work,
        start_new_session=True,
        preexec_fn=_listen,
    ) as process:
        try:
            for number, way in enumerate(ways):
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                took = _ended(process, way, work / f"errors-{number}", draw.uniform(0, 0.05))
                seconds.setdefault(way, []).append(took)
        except BaseException:
            process.kill()
            raise
    return seconds


def _ended(process: subprocess.Popen[str], way: str, errors: Path, delay: float) -> float:
    """Press Ctrl-C in the middle of an epoch of the next child; returns the seconds that it took to end."""
    child = int(_line(process, way))
    _line(process, way)
    time.sleep(delay)
    pressed = time.monotonic()
    os.killpg(child, signal.SIGINT)
    status, took = int(_line(process, way)), time.monotonic() - pressed
    text = errors.read_text()
    # of torch's DataLoader, and of two processes, several may write one
    tracebacks = text.count("Traceback") - text.count("During handling of the above exception")
    if status != -signal.SIGINT or "Exception ignored" in text or (way not in ("torch", "forks") and tracebacks != 1):
        raise TrialError(f"{way}: a program ended with {status}, expected {-signal.SIGINT}: {text}")
    _check_group(child, way)
    return took


def _check_group(group: int, way: str) -> None:
    """Raise TrialError where a process of a group is left; on Linux."""
    stop = time.monotonic() + _PATIENCE_SECONDS
    while left := [words for words in _processes() if int(words[2]) == group and words[0] not in "ZX"]:
        if time.monotonic() > stop:
            raise TrialError(f"{way}: {len(left)} processes of the group {group} are left.")
        time.sleep(0.01)


def _processes() -> Iterator[list[str]]:
    """Yield the state, parent and group of each process, as proc(5) has them behind its name."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            yield path.read_text().rpartition(")")[2].split()


def _line(process: subprocess.Popen[str], way: str) -> str:
    """Return the next line of a program."""
    assert process.stdout is not None
    hanging = threading.Timer(_PATIENCE_SECONDS, process.kill)
    hanging.start()
    line = process.stdout.readline()
    hanging.cancel()
    if not line:
        raise TrialError(f"{way}: a program ended, or did not answer in {_PATIENCE_SECONDS} s.")
    return line


def _listen() -> None:
    """Receive SIGINT, which is ignored where this is run by nohup or with &."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    sys.exit(main())
