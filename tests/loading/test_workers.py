"""Workers that call transforms of single samples: the same batches for any number, and what their processes do and leave."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from reader import MemmapDataset, MemmapLoader


class Noisy:
    """Draws from the three generators of a process; may be sent to any process."""

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.roll((random.randrange(9), int(np.random.randint(9))), (-1, -2)).float() + torch.rand(())


class OfBatches:
    """Says which process it runs in."""

    def __call__(self, batch: Any) -> Any:
        return batch.images.float(), torch.full((len(batch),), os.getpid())


def epoch_of(loader: Any) -> torch.Tensor:
    return torch.cat([images for images, _ in loader])


@pytest.mark.parametrize(
    "order",
    [
        {"shuffle": "full"},
        {"shuffle": "block", "drop_last": True},
        {"weights": True},
        {"rank": 1, "world_size": 2},
        {"rank": 0, "world_size": 5, "pad": False},
        {"epoch_rows": 70, "shuffle": True},
    ],
    ids=str,
)
def test_any_number_of_workers_gives_the_same_epoch(shared_store: Path, order: dict[str, Any]) -> None:
    train = MemmapDataset(shared_store, transform=Noisy())
    if "weights" in order:
        order = {"weights": torch.arange(len(train))}
    found = []
    for workers in (0, 1, 2):
        loader = MemmapLoader(train, 7, seed=3, num_workers=workers, **order)
        assert loader.num_workers == workers
        epochs = [epoch_of(loader), epoch_of(loader)]
        # from its middle, with another number
        loader.set_epoch(1)
        steps = iter(loader)
        next(steps)
        state = loader.state_dict()
        del steps
        resumed = MemmapLoader(train, 7, seed=3, num_workers=2 - workers, **order)
        resumed.load_state_dict(state)
        assert torch.equal(epoch_of(resumed), epochs[1][7:])
        found.append(torch.cat(epochs))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_workers_follow_a_sampler_that_draws(shared_store: Path) -> None:
    found = []
    for workers in (0, 2):
        train = MemmapDataset(shared_store, transform=Noisy())
        generator = torch.Generator().manual_seed(5)
        sampler = WeightedRandomSampler([1.0] * len(train), 30, generator=generator)
        loader = MemmapLoader(train, 8, sampler=sampler, num_workers=workers)
        before = torch.get_rng_state()
        found.append(torch.cat([epoch_of(loader), epoch_of(loader)]))
        assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(*found)


def test_what_cannot_be_sent_to_a_worker_runs_here_and_says_so(
    shared_store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []

    def local(image: torch.Tensor) -> torch.Tensor:
        seen.append(os.getpid())
        return image

    loader = MemmapLoader(
        MemmapDataset(shared_store, transform=local), 16, num_workers=2, multiprocessing_context="spawn"
    )
    list(loader), list(loader)
    assert {*seen} == {os.getpid()}
    assert caplog.text.count("runs in this process, one sample after the other: a worker that is not forked") == 1
    assert "local" in caplog.text
    assert "Define it at the top of a module." in caplog.text


def test_a_process_that_uses_cuda_is_not_forked(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    seen: list[int] = []
    loader = MemmapLoader(MemmapDataset(shared_store, transform=lambda image: seen.append(0) or image), 16)
    # a lambda cannot be sent: it ran here, and so was not forked
    list(loader)
    assert len(seen) == len(loader.dataset)


def test_transforms_of_batches_start_no_workers(shared_store: Path) -> None:
    loader = MemmapLoader(MemmapDataset(shared_store), 16, transform=OfBatches(), num_workers=4)
    assert loader.num_workers == 0
    assert {int(pid) for _, pids in loader for pid in pids} == {os.getpid()}


@pytest.mark.parametrize("residency", ["ram", "disk"])
def test_rows_that_are_in_this_process_alone_start_no_workers(shared_store: Path, residency: str) -> None:
    train = MemmapDataset(shared_store, transform=Noisy())
    loader = MemmapLoader(train, 16, residency=residency, num_workers=2)
    assert loader.num_workers == 0
    assert torch.equal(epoch_of(loader), epoch_of(MemmapLoader(train, 16, num_workers=2)))


def test_workers_end_with_their_epoch_and_with_who_drops_it(shared_store: Path) -> None:
    before = {*multiprocessing.active_children()}
    loader = MemmapLoader(MemmapDataset(shared_store, transform=Noisy()), 4, num_workers=2)
    for leave in ("end", "drop", "close"):
        steps = iter(loader)
        next(steps)
        assert len({*multiprocessing.active_children()} - before) == 2
        if leave == "end":
            list(steps)
        elif leave == "close":
            loader.close()
            with pytest.raises(RuntimeError, match="was closed while it was iterated"):
                next(steps)
        del steps
        deadline = time.monotonic() + 30
        while {*multiprocessing.active_children()} - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not {*multiprocessing.active_children()} - before


def test_kept_batches_hold_no_files(shared_store: Path) -> None:
    loader = MemmapLoader(MemmapDataset(shared_store, transform=Noisy()), 1, num_workers=1)
    held = len(os.listdir("/proc/self/fd"))
    kept = [list(loader) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) < held + 20
    assert torch.equal(
        torch.cat([images for images, _ in kept[0]]), epoch_of(MemmapLoader(loader.dataset, 16, num_workers=0))
    )


def test_a_worker_that_is_killed_is_an_error(shared_store: Path) -> None:
    def dying(image: torch.Tensor) -> torch.Tensor:
        if bool((image == image_of_20).all()):
            os.kill(os.getpid(), signal.SIGKILL)
        return image

    image_of_20 = MemmapDataset(shared_store)[20][0]
    with pytest.raises(RuntimeError, match="worker"):
        list(MemmapLoader(MemmapDataset(shared_store, transform=dying), 4, num_workers=2))


def test_a_daemon_calls_the_transform_itself(shared_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = MemmapDataset(shared_store, transform=Noisy())
    expected = epoch_of(MemmapLoader(train, 16, num_workers=0))
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    assert torch.equal(epoch_of(MemmapLoader(train, 16, num_workers=2)), expected)


# Presses Ctrl-C, as a terminal does to all processes of a job, and goes on with the same epoch.
INTERRUPTED = """
import os, random, signal, sys, threading, time
import torch
from reader import MemmapDataset, MemmapLoader

def slow(image):
    time.sleep(0.002)
    return image.float() + torch.rand(())

train = MemmapDataset(sys.argv[1], transform=slow)
expected = torch.cat([images for images, _ in MemmapLoader(train, 2, num_workers=0)])
done = threading.Event()

def press():
    while not done.wait(random.uniform(0.005, 0.03)):
        os.killpg(0, signal.SIGINT)

presses, found = 0, []
loader = MemmapLoader(train, 2, num_workers=2)
steps = iter(loader)
threading.Thread(target=press, daemon=True).start()
is_over = False
while not is_over:
    try:
        for images, _ in steps:
            found.append(images)
        is_over = True
    except KeyboardInterrupt:
        presses += 1
done.set()
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert torch.equal(torch.cat(found), expected)
print("presses", presses)
"""


def test_ctrl_c_does_not_end_workers_nor_lose_a_batch(shared_store: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    ran = subprocess.run(
        [sys.executable, program, shared_store],
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout.split()[1]) > 0


def test_a_data_loader_of_the_dataset_gives_the_same_without_draws(shared_store: Path) -> None:
    train = MemmapDataset(shared_store, transform=torch.Tensor.float)
    theirs = torch.cat([images for images, _ in DataLoader(train, 16, num_workers=1)])
    assert torch.equal(epoch_of(MemmapLoader(train, 16, num_workers=2)), theirs)


def test_what_makes_no_sense_is_refused(shared_store: Path) -> None:
    with pytest.raises(ValueError, match="num_workers is -1, expected 0 or more, or None"):
        MemmapLoader(MemmapDataset(shared_store), 8, num_workers=-1)
    with pytest.raises(ValueError, match=rf"^prefetch is {2**70}, expected 0 to 1024\.$"):
        MemmapLoader(MemmapDataset(shared_store), 8, prefetch=2**70)


def test_a_batch_that_cannot_be_sent_is_an_error(shared_store: Path) -> None:
    train = MemmapDataset(shared_store, target_transform=str)
    with pytest.raises(AttributeError, match="Can't pickle local object"):
        list(MemmapLoader(train, 8, num_workers=2, collate_fn=lambda samples: lambda: samples))


class Own:
    """Draws from a generator of its own, which nobody seeds for a row."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        return image.float() + self.generator.random()


def test_closing_ends_a_worker_that_never_answers(shared_store: Path) -> None:
    def stuck(image: torch.Tensor) -> torch.Tensor:
        time.sleep(600)
        return image

    loader = MemmapLoader(MemmapDataset(shared_store, transform=stuck), 8, num_workers=2)
    steps = iter(loader)
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 60
    with pytest.raises(RuntimeError, match="was closed while it was iterated"):
        next(steps)


# Its workers sleep before they handle a signal.
SLOW_START = """
import os, sys, time
from reader import MemmapDataset, MemmapLoader

class Slow:
    def __setstate__(self, state):
        open(sys.argv[2], "w").close()
        time.sleep(600)

    def __getstate__(self):
        return {"unpickled": "slowly"}

    def __call__(self, image):
        return image

if __name__ == "__main__":
    dataset = MemmapDataset(sys.argv[1], transform=Slow())
    loader = MemmapLoader(dataset, 8, num_workers=1, multiprocessing_context="spawn")
    steps = iter(loader)
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.1)
    loader.close()
    print("closed")
"""


def test_closing_ends_a_worker_that_is_still_starting(shared_store: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SLOW_START)
    command = [sys.executable, program, shared_store, tmp_path / "started"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ran.stdout, ran.stderr) == ("closed\n", "")


# What a program without a guard would do in each worker that is not forked.
UNGUARDED = """
import sys
import torch
from reader import MemmapDataset, MemmapLoader

print("begins")
loader = MemmapLoader(MemmapDataset(sys.argv[1], transform=torch.Tensor.float), 16, multiprocessing_context="spawn")
print(sum(len(images) for images, _ in loader))
"""


def test_a_program_without_a_guard_is_not_run_again_by_workers(shared_store: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNGUARDED)
    ran = subprocess.run([sys.executable, program, shared_store], capture_output=True, text=True, timeout=120)
    assert ran.stdout.split() == ["begins", str(len(MemmapDataset(shared_store)))]
    assert 'program.py has no `if __name__ == "__main__":`, and would run again in each worker' in ran.stderr
