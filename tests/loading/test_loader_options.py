"""What the reader is given by mistake: each is one sentence that says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reader import MemmapDataset, MemmapLoader


@pytest.mark.parametrize("mask", [[True, False], torch.tensor([True, False]), np.array([True]), [[True, False]]])
def test_a_mask_is_no_sampler(mask: Any, shared_store: Path) -> None:
    with pytest.raises(
        ValueError, match=r"gave True or False, expected rows\. For a mask of rows give dataset\.subset"
    ):
        list(MemmapLoader(MemmapDataset(shared_store), 8, sampler=mask))


@pytest.mark.parametrize("index", [3.7, torch.tensor(3.7), np.float64(3.0), "3", None])
def test_an_index_that_is_no_row_is_named(index: Any, shared_store: Path) -> None:
    with pytest.raises(IndexError, match="expected an integer, a slice, a list of rows or a mask"):
        MemmapDataset(shared_store)[index]


def test_a_bool_is_no_row(shared_store: Path) -> None:
    with pytest.raises(IndexError, match=r"^the mask has the shape \[\], expected \[90\]\.$"):
        MemmapDataset(shared_store)[True]


def test_a_tensor_of_one_integer_is_a_row(shared_store: Path) -> None:
    data = MemmapDataset(shared_store)
    assert torch.equal(data[torch.tensor(7)][0], data[7][0])
    assert torch.equal(data[np.int32(7)][0], data[7][0])
