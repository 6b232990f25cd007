"""Two packs and one OUT, the first stopped at any moment; open readers while OUT is replaced."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PACK, interrupted, store_bytes
from torch.utils.data import DataLoader

from packer import pack
from packer.store.lock import LOCK, Lock
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.dataset import opened_store
from tests.crash.calls import Shim, needs_shim

_RACES = [("nothing", []), ("a store", ["--overwrite"]), ("an unfinished pack", [])]


def _words(images: Path, out: Path, *options: str) -> list[str]:
    return [*PACK, str(images), str(out), "--size", "32", "--quiet", *options]


def _command(images: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_words(images, out, *options), capture_output=True, text=True, timeout=300)


@needs_shim
@pytest.mark.parametrize(
    ("before", "option", "count"),
    [
        *((before, option, 5) for before, option in _RACES),
        *(pytest.param(*race, 0, marks=pytest.mark.nightly) for race in _RACES),
    ],
)
def test_of_two_packs_one_wins_wherever_the_first_stands_still(
    images: Path, tmp_path: Path, before: str, option: list[str], count: int
) -> None:
    """The first is stopped before a call that changes a file, and continues when the second has ended."""
    disk, start = tmp_path / "disk", tmp_path / "start"
    start.mkdir()
    if before == "a store":
        pack(images, start / "out", size=16)
    if before == "an unfinished pack":
        interrupted(pack, images, start / "out", size=32, workers=1)
    pack(images, tmp_path / "reference", size=32)
    shim, at, step, named, ends = Shim(tmp_path, disk), 1, 1, 0, Counter[tuple[int, int]]()
    while True:
        shutil.rmtree(disk, ignore_errors=True)
        shutil.copytree(start, disk)
        first = shim.start([*_words(images, disk / "out", *option), "--workers", "1"], at=at, do="stop")
        found = os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if found is None or found.si_code != os.CLD_STOPPED:
            assert (first.communicate()[1], first.returncode) == ("", 0)
            break
        second = _command(images, disk / "out", *option)
        os.killpg(first.pid, signal.SIGCONT)
        _, error = first.communicate(timeout=60)
        where = f"stopped at call {at}: {error}{second.stderr}"
        assert store_bytes(disk) == {f"out/{name}": b for name, b in store_bytes(tmp_path / "reference").items()}, where
        assert 0 in (first.returncode, second.returncode), where
        for code, text in ((first.returncode, error), (second.returncode, second.stderr)):
            assert code in (0, 1), where
            assert (text.count("\n"), "Traceback" in text) == (code, False), where
        named += f"is being packed by process {first.pid} on {os.uname().nodename}" in second.stderr
        ends[first.returncode, second.returncode] += 1
        at, step = at + step, step if count == 0 or at < 4 else 12
    # the second is refused while the first holds the lock; the first finds all done that the second did before
    assert named
    assert ends.keys() <= {(0, 1), (1, 0), (0, 0)}


def test_a_lock_whose_file_was_removed_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened, then removed by the pack that held it, then locked: others would lock another file of that name."""
    (tmp_path / ".packing").mkdir()
    flock = fcntl.flock

    def removed_before(descriptor: int, kind: int) -> None:
        (tmp_path / LOCK).unlink()
        flock(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with pytest.raises(FileNotFoundError):
        Lock(tmp_path)
    (tmp_path / LOCK).touch()

    def replaced_before(descriptor: int, kind: int) -> None:
        removed_before(descriptor, kind)
        (tmp_path / LOCK).touch()

    monkeypatch.setattr(fcntl, "flock", replaced_before)
    with pytest.raises(FileNotFoundError):
        Lock(tmp_path)


def test_a_store_that_is_replaced_while_it_is_opened_is_not_mixed_with_the_other(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the one is read, then its name stands for the other, of the same sizes."""
    out, other = tmp_path / "out", tmp_path / "other"
    pack(images, out, size=32)
    pack(images, other, size=32, resample="box")
    wanted = MemmapDataset(other, as_tuple=False)
    map_tensor = opened_store.map_tensor

    def replaced_before(*arguments: Any) -> torch.Tensor:
        if other.exists():
            out.rename(tmp_path / "old")
            other.rename(out)
        return map_tensor(*arguments)

    monkeypatch.setattr(opened_store, "map_tensor", replaced_before)
    found = MemmapDataset(out, as_tuple=False)
    assert torch.equal(found.store.pixels, wanted.store.pixels)
    assert found.manifest.digest == wanted.manifest.digest


def _workers(dataset: MemmapDataset) -> Any:
    return DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=1, persistent_workers=True)


_LOADERS: dict[str, Callable[[MemmapDataset], Any]] = {
    "workers": _workers,
    "cache": lambda dataset: MemmapLoader(dataset, 4, residency="cache", as_tuple=False),
    "disk": lambda dataset: MemmapLoader(dataset, 4, residency="disk", as_tuple=False),
}


@pytest.mark.parametrize("name", _LOADERS)
def test_readers_that_are_open_while_out_is_replaced_keep_the_old_store(
    images: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    dataset = MemmapDataset(out, as_tuple=False)
    pickled = dataset.__getstate__()
    old = dataset.store.clone()
    batches = _LOADERS[name](dataset)
    running = iter(batches)
    seen = [next(running)]
    # rows of the same size in another order: nothing but their bytes tells the stores apart
    assert _command(images, out, "--overwrite", "--shuffle", "3").returncode == 0
    seen += list(running)
    started_after = [
        *batches,
        *MemmapLoader(dataset, 4, residency="cache", as_tuple=False),
        *MemmapLoader(dataset, 4, residency="disk", as_tuple=False),
    ]
    for batch in (*seen, *started_after):
        assert torch.equal(batch.pixels, old.pixels[batch.rows])
        assert torch.equal(batch.targets, old.targets[batch.rows])
    assert np.array_equal(dataset.numpy(), old.pixels.numpy())
    assert not torch.equal(MemmapDataset(out).store.pixels, old.pixels)
    for refused in (lambda: dataset.samples, lambda: dataset.source(0)):
        with pytest.raises(StoreError, match="was packed again since this dataset was opened"):
            refused()
    # a process that opens it by the old one's pickle would mix the two
    with pytest.raises(StoreError, match="was packed again"):
        object.__new__(MemmapDataset).__setstate__(pickled)
