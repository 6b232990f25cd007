"""A lock, and readers that are open, while what they hold is removed or replaced."""

from __future__ import annotations

import fcntl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PACK
from torch.utils.data import DataLoader

from packer import pack
from packer.store.lock import LOCK, Lock
from reader import MemmapDataset, MemmapLoader, StoreError
from reader.dataset import opened_store


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
    subprocess.run([*PACK, str(images), str(out), "--size", "32", "--overwrite", "--shuffle", "3"], check=True)
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
