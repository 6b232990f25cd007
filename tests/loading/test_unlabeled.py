"""Rows without a label in a loop over images and targets: one warning, which names what gives them labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import photo
from PIL import Image

from packer import pack, pack_dataset
from reader import MemmapDataset, MemmapLoader


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Six rows, of which two have no label; a path of its own, as a warning comes once a store."""
    image = np.zeros((8, 8, 3), np.uint8)
    pack_dataset([(image, target) for target in (0, 1, -1, 1, 0, -1)], tmp_path / "out", classes=["a", "b"], workers=1)
    return tmp_path / "out"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "no label" in record.getMessage()]
    caplog.clear()
    return found


def loop(dataset: MemmapDataset, *, by_torch: bool = False, **options: Any) -> None:
    loader: Any = torch.utils.data.DataLoader if by_torch else MemmapLoader
    assert sum(1 for _ in loader(dataset, batch_size=2, **options))


@pytest.mark.parametrize("by_torch", [False, True])
def test_a_loop_over_tuples_warns_once_of_rows_without_a_label(
    by_torch: bool, store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train = MemmapDataset(store)
    # what has labels, and what asks for none
    loop(train.subset([0, 1, 3]), by_torch=by_torch)
    loop(train.with_targets([0, 1, 1, 1, 0, 0]), by_torch=by_torch)
    loop(train.with_targets(torch.zeros(6, 1)), by_torch=by_torch)
    if not by_torch:
        loop(train, as_tuple=False)
    assert warnings_of(caplog) == []
    for _ in range(2):
        loop(train, by_torch=by_torch, shuffle=True)
    (warning,) = warnings_of(caplog)
    assert warning.startswith(f"{store}: 2 of 6 rows have no label, so that their target is -1.")
    assert "dataset.with_targets(...)" in warning
    loop(MemmapDataset(store), by_torch=by_torch)
    assert warnings_of(caplog) == []


def test_rows_with_other_labels_by_name_do_not_warn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for n in range(3):
        for folder in ("images", "masks"):
            (tmp_path / folder).mkdir(exist_ok=True)
        photo(20, 16, n).save(tmp_path / "images" / f"{n}.jpg")
        Image.new("L", (20, 16), n).save(tmp_path / "masks" / f"{n}.png")
    for name, options in {"sized": {"size": 8}, "own": {"fit": "none"}}.items():
        pack(tmp_path / "images", tmp_path / name, masks=tmp_path / "masks", workers=1, **options)
        for by_torch in (False, True):
            loop(MemmapDataset(tmp_path / name), by_torch=by_torch, collate_fn=list)
    assert warnings_of(caplog) == []
    pack(tmp_path / "images", tmp_path / "flat", size=8, workers=1)
    loop(MemmapDataset(tmp_path / "flat"))
    assert len(warnings_of(caplog)) == 1
