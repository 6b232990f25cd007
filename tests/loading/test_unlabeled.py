"""A loop over images and targets refuses rows without a label once, by name: their target -1 would train on nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from packer import pack_dataset
from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six rows, of which two have no label."""
    image = np.zeros((8, 8, 3), np.uint8)
    pack_dataset([(image, target) for target in (0, 1, -1, 1, 0, -1)], tmp_path / "out", classes=["a", "b"], workers=1)
    return tmp_path / "out"


@pytest.mark.parametrize("loader", [MemmapLoader, DataLoader])
def test_a_loop_over_tuples_refuses_rows_without_a_label(loader: Any, store: Path) -> None:
    train = MemmapDataset(store)
    with pytest.raises(ValueError, match="targets is -1, no label, in 2 of 6 rows. Loop over dataset.subset"):
        next(iter(loader(train, batch_size=2)))
    assert len([*loader(train.subset([0, 1, 3]), batch_size=2)]) == 2


def test_a_loop_over_image_batches_and_single_rows_take_them(store: Path) -> None:
    assert len([*MemmapLoader(MemmapDataset(store), 2, as_tuple=False)]) == 3
    assert len([*DataLoader(MemmapDataset(store, as_tuple=False), 2)]) == 3
    assert [target for _, target in MemmapDataset(store)] == [0, 1, -1, 1, 0, -1]
