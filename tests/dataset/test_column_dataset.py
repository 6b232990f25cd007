"""ColumnDataset: what programs that were written for HF datasets ask of one, without HF's packages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from reader import ColumnDataset, MemmapDataset


@pytest.fixture
def columns(train: MemmapDataset) -> ColumnDataset:
    """The rows of the shared store as columns of PIL images and labels."""
    return ColumnDataset(MemmapDataset(train.path, as_pil=True))


def test_rows_are_dicts_by_column(train: MemmapDataset, columns: ColumnDataset) -> None:
    row, some = columns[3], columns[[3, -1]]
    assert isinstance(row["image"], Image.Image)
    assert (row["label"], some["label"]) == (train[3][1], [train[3][1], train[len(train) - 1][1]])
    assert some["image"][1].tobytes() == train[len(train) - 1][0].movedim(0, -1).contiguous().numpy().tobytes()
    assert [*columns[2:5]["label"]] == train.targets[2:5]
    assert columns.column_names == ["image", "label"]
    assert columns.features["label"].names == train.classes
    named = ColumnDataset(train, image="img", label="fine_label")
    assert [*named[0]] == named.column_names == ["img", "fine_label"]


def test_set_transform_takes_columns_and_is_called_once_a_batch(columns: ColumnDataset) -> None:
    calls: list[int] = []

    # as run_image_classification.py writes it
    def transform(examples: dict[str, list[Any]]) -> dict[str, list[Any]]:
        calls.append(len(examples["image"]))
        examples["pixel_values"] = [torch.tensor(image.size) for image in examples.pop("image")]
        return examples

    columns.set_transform(transform)
    loader = DataLoader(columns, 32)
    batches = list(loader)
    assert calls == [32, 32, 26]
    assert {*batches[0]} == {"pixel_values", "label"}
    assert torch.cat([batch["label"] for batch in batches]).tolist() == columns.dataset.targets
    assert {*columns[0]} == {"pixel_values", "label"}
    assert {*columns.with_transform(None)[0]} == {"image", "label"}
    assert {*columns.select([4])[0]} == {"pixel_values", "label"}


def test_rows_are_chosen_as_of_hf_datasets(columns: ColumnDataset) -> None:
    count, targets = len(columns), columns.dataset.targets
    assert columns.select(range(5, 8))[:]["label"] == targets[5:8]
    shuffled = columns.shuffle(seed=3)
    assert [path for path, _ in shuffled.dataset.samples] != [path for path, _ in columns.dataset.samples]
    assert sorted(shuffled.dataset.samples) == sorted(columns.dataset.samples)
    assert shuffled.dataset.samples == columns.shuffle(seed=3).dataset.samples
    parts = columns.train_test_split(0.2, seed=1)
    assert (len(parts["test"]), len(parts["train"])) == (18, count - 18)
    assert sorted(parts["test"].dataset.samples + parts["train"].dataset.samples) == sorted(columns.dataset.samples)


def test_what_makes_no_sense_is_refused(train: MemmapDataset, columns: ColumnDataset) -> None:
    with pytest.raises(ValueError, match="takes a dataset of tuples and two names, and was given as_tuple=False"):
        ColumnDataset(MemmapDataset(train.path, as_tuple=False))
    with pytest.raises(ValueError, match="image='label', label='label'"):
        ColumnDataset(train, image="label")
    with pytest.raises(IndexError, match="row 900 is out of range"):
        columns[900]
