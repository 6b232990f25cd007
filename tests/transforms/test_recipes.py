"""MultiCrop's views differ; presets are the chains of torchvision's and timm's programs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures

from packer import pack
from reader import MemmapDataset, MemmapLoader, RandomHorizontalFlip, RandomResizedCrop
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    MixUp,
    MultiCrop,
    MultiView,
    Pad,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomErasing,
    RandomGrayscale,
    RandomRotation,
    TimmRandAugment,
    timm_train,
    torchvision_eval,
    torchvision_train,
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


@pytest.mark.parametrize("interpolation", ["bicubic", "random"])
def test_views_are_resized_as_asked(interpolation: str) -> None:
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


def test_presets_are_the_chains_of_the_programs() -> None:
    def kinds(chain: Compose) -> list[type]:
        return [type(transform) for transform in chain.transforms]

    assert kinds(torchvision_train()) == [RandomResizedCrop, RandomHorizontalFlip]
    full = torchvision_train(176, auto_augment_policy="ra", random_erase_prob=0.1)
    assert kinds(full) == [RandomResizedCrop, RandomHorizontalFlip, RandAugment, RandomErasing]
    assert full(pictures(3, size=(200, 200))).pixels.shape == (3, 176, 176, 3)
    for policy in ("ta_wide", "augmix", "imagenet", "cifar10"):
        assert torchvision_train(20, auto_augment_policy=policy)(pictures(3)).pixels.shape == (3, 20, 20, 3)
    evaluated = torchvision_eval()
    assert (evaluated.height, evaluated.fraction) == (224, 0.875)
    timm = timm_train(re_prob=0.25)
    assert kinds(timm) == [RandomResizedCrop, RandomHorizontalFlip, ColorJitter, RandomErasing]
    assert timm.transforms[2].brightness == timm.transforms[2].saturation == (0.6, 1.4)
    assert timm.transforms[2].hue == (0, 0)
    assert kinds(timm_train(color_jitter=None, hflip=0)) == [RandomResizedCrop]
    augmented = timm_train(auto_augment="rand-m9-mstd0.5-inc1")
    assert kinds(augmented) == [RandomResizedCrop, RandomHorizontalFlip, TimmRandAugment]


def test_the_shorter_side_is_resized_to_what_was_asked() -> None:
    # those whose crop_size / (crop_size / resize_size) is rounded to less
    pairs = [(c, r) for r in range(1, 701) for c in range(1, r + 1) if math.floor(c / (c / r)) < r]
    assert (224, 400) in pairs
    for crop_size, resize_size in pairs[:: len(pairs) // 40]:
        batch = pictures(2, size=(resize_size, resize_size + 1))
        expected = CenterCrop(crop_size)(batch).pixels
        assert torch.equal(torchvision_eval(crop_size, resize_size)(batch).pixels, expected)


@pytest.mark.parametrize("kind", [np.int64, np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_are_numbers(kind: Any) -> None:
    batch = pictures(size=(32, 30))
    for make in (
        lambda number: RandomRotation(number(30)),
        lambda number: RandomAffine(number(5), shear=number(5)),
        lambda number: Pad(2, fill=number(3)),
        lambda number: RandomErasing(1.0, value=number(3)),
        lambda number: timm_train(16, color_jitter=number(1)),
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
    for sizes in ((224, 0), (224, 200), (0, 200)):
        with pytest.raises(ValueError, match=f"crop_size is {sizes[0]} and resize_size {sizes[1]}, expected"):
            torchvision_eval(*sizes)
    with pytest.raises(ValueError, match="policy is 'rand-m9', expected one of"):
        torchvision_train(auto_augment_policy="rand-m9")
    with pytest.raises(ValueError, match="re_mode is 'rand', expected"):
        timm_train(re_mode="rand")
