"""Mistakes that would train on the wrong thing without a word: each is impossible, or refused with what to write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import torchvision_or_skip
from torch.utils.data import DataLoader

from packer import pack_dataset
from reader import MemmapDataset, MemmapLoader, from_torchvision


def test_a_batch_of_two_is_images_and_targets_or_no_pair_at_all(train: MemmapDataset) -> None:
    for batch in (next(iter(MemmapLoader(train, 2))), next(iter(DataLoader(train, 2))), train[:2], train[[0, 1]]):
        images, targets = batch
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert (images.shape, targets.dtype) == ((2, 3, 32, 32), torch.int64)
    with pytest.raises(TypeError, match="ImageBatch. object is not iterable"):
        images, targets = next(iter(MemmapLoader(train, 2, as_tuple=False)))


@pytest.mark.parametrize("where", ["loader", "dataset"])
def test_a_transform_of_single_images_is_refused_with_the_two_ways_out(shared_store: Path, where: str) -> None:
    flip = torchvision_or_skip().transforms.v2.RandomHorizontalFlip(1.0)
    given = {"dataset": (flip, None), "loader": (None, flip)}[where]
    with pytest.raises(
        ValueError, match=r"give from_torchvision\(transform\), or loop over torch's DataLoader\(MemmapDataset"
    ):
        MemmapLoader(MemmapDataset(shared_store, transform=given[0]), 8, transform=given[1])
    ways = (
        MemmapLoader(MemmapDataset(shared_store), 8, transform=from_torchvision(flip)),
        DataLoader(MemmapDataset(shared_store, transform=flip), 8),
    )
    images, _ = next(iter(MemmapLoader(MemmapDataset(shared_store), 8)))
    assert all(torch.equal(next(iter(way))[0], images.flip(-1)) for way in ways)


def test_a_class_with_its_own_indexing_is_refused(shared_store: Path) -> None:
    class Mine(MemmapDataset):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)

    with pytest.raises(ValueError, match="the transform takes single images, and this loader calls it with batches"):
        MemmapLoader(Mine(shared_store), 8)


@pytest.mark.parametrize("free_bytes", [0, 1 << 50])
def test_shuffle_true_chooses_alike_on_ranks_of_any_memory(
    shared_store: Path, free_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader.system.available_bytes", lambda: free_bytes)
    assert MemmapLoader(MemmapDataset(shared_store), 8, shuffle=True).order == "full"


def test_shuffle_is_true_or_false_as_a_number_too(shared_store: Path) -> None:
    data = MemmapDataset(shared_store)
    for value in (1, 0, np.True_, np.False_):
        loaders = [MemmapLoader(data, 8, shuffle=shuffle, seed=0) for shuffle in (value, bool(value))]
        first, second = (loader.rows(0, 0).tolist() for loader in loaders)
        assert first == second, value
        assert loaders[0].state_dict() == loaders[1].state_dict(), value
    assert MemmapLoader(data, 8, shuffle=0, weights=np.ones(len(data))).order == "weighted"


@pytest.fixture
def unlabeled(tmp_path: Path) -> Path:
    """Six rows, of which two have no label."""
    image = np.zeros((8, 8, 3), np.uint8)
    pack_dataset([(image, target) for target in (0, 1, -1, 1, 0, -1)], tmp_path / "out", classes=["a", "b"], workers=1)
    return tmp_path / "out"


@pytest.mark.parametrize("loader", [MemmapLoader, DataLoader])
def test_a_loop_over_tuples_refuses_rows_without_a_label(loader: Any, unlabeled: Path) -> None:
    train = MemmapDataset(unlabeled)
    with pytest.raises(ValueError, match="targets is -1, no label, in 2 of 6 rows. Loop over dataset.subset"):
        next(iter(loader(train, batch_size=2)))
    assert len([*loader(train.subset([0, 1, 3]), batch_size=2)]) == 2


def test_a_loop_over_image_batches_and_single_rows_take_them(unlabeled: Path) -> None:
    assert len([*MemmapLoader(MemmapDataset(unlabeled), 2, as_tuple=False)]) == 3
    assert len([*DataLoader(MemmapDataset(unlabeled, as_tuple=False), 2)]) == 3
    assert [target for _, target in MemmapDataset(unlabeled)] == [0, 1, -1, 1, 0, -1]
