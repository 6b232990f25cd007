"""Readers that are open, or are being opened, while the store is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from packer import pack
from reader import MemmapDataset, MemmapLoader
from reader.dataset import opened_store


def test_a_store_that_is_replaced_while_it_is_opened_is_not_mixed_with_the_other(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest of the one is read, then its name stands for the other, of the same sizes."""
    out, other, map_tensor = tmp_path / "out", tmp_path / "other", opened_store.map_tensor
    pack(images, out, size=32)
    pack(images, other, size=32, resample="box")
    wanted = MemmapDataset(other)

    def replaced_before(*arguments: Any) -> torch.Tensor:
        if other.exists():
            out.rename(tmp_path / "old")
            other.rename(out)
        return map_tensor(*arguments)

    monkeypatch.setattr(opened_store, "map_tensor", replaced_before)
    found = MemmapDataset(out)
    assert torch.equal(found.store.pixels, wanted.store.pixels)
    assert found.manifest.digest == wanted.manifest.digest


@pytest.mark.parametrize("way", ["workers", "cache", "disk"])
def test_readers_that_are_open_while_out_is_replaced_keep_the_old_store(images: Path, tmp_path: Path, way: str) -> None:
    out = tmp_path / "out"
    pack(images, out, size=32)
    dataset = MemmapDataset(out, as_tuple=False)
    old = dataset.store.clone()
    if way == "workers":
        batches = DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=1, persistent_workers=True)
    else:
        batches = MemmapLoader(dataset, 4, residency=way, as_tuple=False)
    running = iter(batches)
    seen = [next(running)]
    # rows of the same size in another order: nothing but their bytes tells the stores apart
    pack(images, out, size=32, overwrite=True, shuffle=3)
    assert not torch.equal(MemmapDataset(out).store.pixels, old.pixels)
    for batch in (*seen, *running, *batches, dataset[:]):
        assert torch.equal(batch.pixels, old.pixels[batch.rows])
        assert torch.equal(batch.targets, old.targets[batch.rows])
