"""MultiCrop's views differ; each view is of its own crop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures

from packer import pack
from reader import MemmapDataset, MemmapLoader, RandomResizedCrop
from reader.transforms import (
    ColorJitter,
    Compose,
    CutMix,
    MixUp,
    MultiCrop,
    MultiView,
    Pad,
    RandomAffine,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomRotation,
)


def test_views_differ_and_each_follows_its_row() -> None:
    batch = pictures(12, size=(60, 60))
    crop = MultiCrop(
        2, 6, global_size=32, local_size=16, global_transform=ColorJitter(0.8), local_transform=RandomGrayscale()
    )
    views, targets = crop(batch)
    assert [tuple(view.shape) for view in views] == [(12, 3, 32, 32)] * 2 + [(12, 3, 16, 16)] * 6
    assert torch.equal(targets, batch.targets)
    for group in (views[:2], views[2:]):
        # the first picture is of one level
        assert all(not torch.equal(a[n], b[n]) for a in group for b in group if a is not b for n in range(1, 12))
    part, _ = crop(batch[4:7])
    assert all(torch.equal(a, b[4:7]) for a, b in zip(part, views, strict=True))
    assert torch.equal(views[0], Compose([RandomResizedCrop(32, (0.4, 1)), ColorJitter(0.8)])(batch).images)


def test_views_are_resized_as_asked() -> None:
    interpolation = "bicubic"
    batch = pictures(4, size=(60, 60))
    views, _ = MultiCrop(1, 1, global_size=32, local_size=16, interpolation=interpolation)(batch)
    expected = RandomResizedCrop(32, (0.4, 1), interpolation=interpolation)
    assert torch.equal(views[0], expected(batch).images)
    assert not torch.equal(views[0], RandomResizedCrop(32, (0.4, 1))(batch).images)


def test_areas_of_views_are_those_of_their_scale() -> None:
    crop, batch = MultiCrop(1, 1, global_scale=(0.4, 1), local_scale=(0.05, 0.4)), pictures(300, size=(100, 100))
    for view, (low, high) in zip(crop.transforms, ((0.4, 1.0), (0.05, 0.4)), strict=True):
        x0, y0, x1, y1 = view.transforms[0].boxes(batch).unbind(1)
        areas = ((x1 - x0) * (y1 - y0)).float() / 10_000
        assert low - 0.01 < areas.min() < low + 0.05
        assert high - 0.1 < areas.max() < high + 0.01


def test_a_loader_gives_views_of_rows_of_one_size_and_of_many(images: Path, tmp_path: Path, shared_store: Path) -> None:
    pack(images, tmp_path / "out", fit="none", workers=1)
    for path in (shared_store, tmp_path / "out"):
        crop = MultiCrop(2, 1, global_size=24, local_size=12, global_transform=[RandomGrayscale(0), RandomGrayscale(1)])
        loader = MemmapLoader(MemmapDataset(path), 8, shuffle=True, transform=crop)
        views, targets = next(iter(loader))
        assert [tuple(view.shape) for view in views] == [(8, 3, 24, 24)] * 2 + [(8, 3, 12, 12)]
        assert targets.shape == (8,)
        assert torch.equal(views[1][:, 0], views[1][:, 1])
        assert not torch.equal(views[0][:, 0], views[0][:, 1])


@pytest.mark.parametrize("kind", [np.int64, np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_are_numbers(kind: Any) -> None:
    batch = pictures(size=(32, 30))
    for make in (
        lambda number: RandomRotation(number(30)),
        lambda number: RandomAffine(number(5), shear=number(5)),
        lambda number: Pad(2, fill=number(3)),
        lambda number: RandomErasing(1.0, value=number(3)),
    ):
        assert torch.equal(make(kind)(batch).pixels, make(int)(batch).pixels)
    for side in (np.int64(2), torch.tensor(2)):
        assert torch.equal(Pad(side)(batch).pixels, Pad(2)(batch).pixels)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="0 global and 0 local crops, expected"):
        MultiCrop(0, 0)
    with pytest.raises(ValueError, match="there are 1 transforms for 2 crops"):
        MultiCrop(2, global_transform=[RandomGrayscale()])
    mixed = Compose([RandomApply([MixUp(num_classes=3)])])
    with pytest.raises(ValueError, match="view 1 mixes images and their targets, and MultiView gives one column"):
        MultiView([RandomGrayscale(), mixed])
    with pytest.raises(ValueError, match="view 2 mixes images and their targets, and MultiCrop gives one column"):
        MultiCrop(2, 1, local_transform=CutMix(num_classes=3))
