"""Ctrl-C in a training loop: one that continues gets each batch once; one that does not leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_LOADER = """
import os, random, signal, sys, threading
import torch
from reader import MemmapDataset, MemmapLoader

given = {"feeder": {}, "disk": {"residency": "disk"}, "caller": {"prefetch": 0}}
loader = MemmapLoader(MemmapDataset(sys.argv[1]), 4, shuffle="full", seed=0, **given[sys.argv[2]])
"""
# is_open: pressed only while a batch is asked for, so that the loop itself loses none
_GOING_ON = (
    _LOADER
    + """
def epoch():
    loader.set_epoch(0)
    return iter(loader)

wanted, is_open, draw, done = int(sys.argv[3]), False, random.Random(0), threading.Event()

def interrupt(*_):
    global is_open, wanted
    if is_open:
        is_open, wanted = False, wanted - 1
        raise KeyboardInterrupt

def press():
    while not done.wait(draw.uniform(0.001, 0.01)):
        os.kill(os.getpid(), signal.SIGINT)

expected = [images for images, _ in epoch()]
signal.signal(signal.SIGINT, interrupt)
threading.Thread(target=press, daemon=True).start()
while wanted > 0:
    found, steps = [], epoch()
    while len(found) < len(expected):
        try:
            is_open = True
            for images, _ in steps:
                found.append(images)
            is_open = False
        except KeyboardInterrupt:
            continue
        if len(found) < len(expected):
            # the iterator has ended: the loader's state continues the epoch
            loader.load_state_dict(loader.state_dict())
            steps = iter(loader)
    assert len(found) == len(expected) and all(map(torch.equal, found, expected)), (len(found), len(expected))
done.set()
signal.signal(signal.SIGINT, signal.SIG_IGN)
loader.close()
"""
)
_ENDING = (
    _LOADER
    + """
while True:
    for step, batch in enumerate(loader):
        if step == 1:
            print("in the middle", flush=True)
"""
)
WAYS = ("feeder", "disk", "caller")


@pytest.mark.usefixtures("delivered_signals")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("presses", [20, pytest.param(300, marks=pytest.mark.nightly)])
def test_a_loop_that_continues_after_ctrl_c_gets_each_batch_once(shared_store: Path, way: str, presses: int) -> None:
    command = [sys.executable, "-c", _GOING_ON, str(shared_store), way, str(presses)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("delivered_signals")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("presses", [1, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_loop_that_ends_by_ctrl_c_leaves_one_traceback_and_no_process(
    shared_store: Path, way: str, presses: int
) -> None:
    for number in range(presses):
        command, pipe = [sys.executable, "-c", _ENDING, str(shared_store), way], subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline()
            # somewhere else in a batch each time
            time.sleep(number / 1000)
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=500)
        assert process.returncode == -signal.SIGINT, errors
        assert errors.count("Traceback") == 1, errors
        assert errors.rstrip().endswith("KeyboardInterrupt"), errors
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
