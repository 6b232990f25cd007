"""Two packs and one OUT, at the moments that matter; open readers while OUT is replaced.

Fifty real races: tests/crash/race_test.py.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PACK, interrupted, store_bytes
from kinds import spread
from torch.utils.data import DataLoader

from packer import PackError, pack
from packer.store import destination, lock
from packer.store.lock import LOCK, Lock
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.dataset import opened_store


@pytest.fixture
def reference(images: Path, tmp_path: Path) -> dict[str, bytes]:
    """The bytes that every pack of `images` must end with."""
    pack(images, tmp_path / "reference", size=32)
    content = store_bytes(tmp_path / "reference")
    shutil.rmtree(tmp_path / "reference")
    return content


def _command(images: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [*PACK, str(images), str(out), "--size", "32", "--quiet", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize(
    ("moment", "second"),
    spread(
        [("_exchange", True), ("_tidy", False), ("_tidy", True)],
        [(), ("--overwrite",)],
        every=3,
        first=1,
    ),
)
def test_a_pack_that_comes_while_another_ends_leaves_its_store_complete(
    images: Path,
    tmp_path: Path,
    reference: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    moment: tuple[str, bool],
    second: tuple[str, ...],
) -> None:
    """The first is sealed, and about to take its place or to remove its scaffold."""
    (name, replaces), out = moment, tmp_path / "out"
    if replaces:
        pack(images, out, size=16)
    owner = destination if hasattr(destination, name) else destination.Folder
    original = getattr(owner, name)
    errors = []

    def late(*arguments: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        errors.append(_command(images, out, *second).stderr)
        return original(*arguments)

    monkeypatch.setattr(owner, name, late)
    pack(images, out, size=32, overwrite=replaces)
    assert store_bytes(out) == reference
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "out"]
    (error,) = errors
    assert "Traceback" not in error
    if not replaces and not second:
        assert "already holds a store" in error or "is being packed by process" in error


@pytest.mark.parametrize(
    ("before", "moment"),
    spread(
        [(False, {}), (False, {"overwrite": True}), (True, {}), (True, {"overwrite": True})],
        ["make", "lock"],
    ),
)
def test_a_pack_that_looked_before_another_ended_leaves_its_store_alone(
    images: Path,
    tmp_path: Path,
    reference: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[bool, dict[str, bool]],
    moment: str,
) -> None:
    """The other packs all of OUT after this one's look, and before this one makes its working folder or its lock."""
    (is_resumed, options), out = before, tmp_path / "out"
    if is_resumed:
        interrupted(pack, images, out, size=32, inputs=0)
    owner, name = (Lock, "__init__") if moment == "lock" else (destination.Folder, "_lock")
    original = getattr(owner, name)
    inode: list[int] = []

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(owner, name, original)
        done = _command(images, out)
        assert done.returncode == 0, done.stderr
        inode.append((out / "manifest.json").stat().st_ino)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(PackError, match="was finished by another process just now"):
        pack(images, out, size=32, **options)
    assert store_bytes(out) == reference
    assert inode == [(out / "manifest.json").stat().st_ino]


def test_a_lock_whose_file_was_removed_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opened, then removed by the pack that held it, then locked: others would lock another file of that name."""
    (tmp_path / ".packing").mkdir()
    original = lock.take_lock

    def removed_before(descriptor: int, is_shared: bool) -> None:
        (tmp_path / LOCK).unlink()
        original(descriptor, is_shared)

    monkeypatch.setattr(lock, "take_lock", removed_before)
    with pytest.raises(FileNotFoundError):
        Lock(tmp_path)
    (tmp_path / LOCK).touch()

    def replaced_before(descriptor: int, is_shared: bool) -> None:
        removed_before(descriptor, is_shared)
        (tmp_path / LOCK).touch()

    monkeypatch.setattr(lock, "take_lock", replaced_before)
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


@pytest.mark.nightly
def test_a_few_real_races_and_a_dead_holder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.race_test", "--races", "4", "--images", "200"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["races"] == 4
    # 0.1 s here; the rest is for machines that do other work as well
    assert result["loser_seconds"]["most"] < float(os.environ.get("PIXPACK_TEST_PATIENCE", "5"))
