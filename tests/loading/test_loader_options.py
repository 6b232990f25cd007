"""What the reader is given by mistake: each is one sentence that says what to write instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reader import MemmapDataset, MemmapLoader


@pytest.mark.parametrize(
    ("name", "value", "advice"),
    [
        ("generator", torch.Generator(), "the order depends on the seed: give seed=, such as generator.initial_seed()"),
        ("batch_sampler", [[0]], "give it as sampler=, which takes samplers of rows and of batches"),
        ("pin_memory_device", "cuda", "give device=, which pins by itself"),
        ("shufle", True, "help(MemmapLoader) lists what it takes"),
    ],
)
def test_what_a_dataloader_takes_is_refused_with_what_to_write(
    name: str, value: Any, advice: str, shared_store: Path
) -> None:
    with pytest.raises(TypeError) as caught:
        MemmapLoader(MemmapDataset(shared_store), 8, **{name: value})
    assert str(caught.value).startswith(f"MemmapLoader takes no {name}=: {advice}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["drop_last", "as_tuple"])
def test_a_word_is_no_truth(name: str, shared_store: Path) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is 'no', expected True or False\.$"):
        MemmapLoader(MemmapDataset(shared_store), 8, **{name: "no"})
    loader = MemmapLoader(MemmapDataset(shared_store), 8, **{name: np.bool_(True)})
    assert getattr(loader, name) is True


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
