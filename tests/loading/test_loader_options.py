"""What the reader is given by mistake: each is one sentence that says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reader import MemmapDataset


@pytest.mark.parametrize("index", [True, 3.7, torch.tensor(3.7), np.float64(3.0), "3", None])
def test_an_index_that_is_no_row_is_named(index: Any, shared_store: Path) -> None:
    with pytest.raises(IndexError, match="expected an integer, a slice, a list of rows or a mask"):
        MemmapDataset(shared_store)[index]


def test_a_tensor_of_one_integer_is_a_row(shared_store: Path) -> None:
    data = MemmapDataset(shared_store)
    assert torch.equal(data[torch.tensor(7)][0], data[7][0])
    assert torch.equal(data[np.int32(7)][0], data[7][0])
