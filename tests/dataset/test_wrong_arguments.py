"""Arguments of the wrong kind: one sentence that names the argument and what is expected, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reader import (
    ColorJitter,
    CutMix,
    GaussianBlur,
    MemmapDataset,
    MixUp,
    MultiCrop,
    MultiView,
    RandAugment,
    RandomAdjustSharpness,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomHorizontalFlip,
    RandomRotation,
    RandomSolarize,
    ResizeCenterCrop,
)

# what is no number, in any of these places
ODD: list[Any] = [None, "abc", b"x", [], {}, object(), 1j, int, np.ones(2), torch.ones(2, 2)]


NUMBERS: dict[str, Callable[[Any], object]] = {
    "p": RandomHorizontalFlip,
    "brightness": ColorJitter,
    "hue": lambda value: ColorJitter(hue=value),
    "kernel_size": GaussianBlur,
    "sigma": lambda value: GaussianBlur(3, value),
    "threshold": RandomSolarize,
    "sharpness_factor": RandomAdjustSharpness,
    "fraction": lambda value: ResizeCenterCrop(8, fraction=value),
    "magnitude": lambda value: RandAugment(magnitude=value),
    "num_magnitude_bins": lambda value: RandAugment(num_magnitude_bins=value),
    "label_smoothing": lambda value: MixUp(num_classes=3, label_smoothing=value),
    "num_classes": lambda value: CutMix(num_classes=value),
    "global_crops": lambda value: MultiCrop(value, global_size=8, local_size=4),
    "local_crops": lambda value: MultiCrop(1, value, global_size=8, local_size=4),
}
# None stands for a default there
OPTIONAL = {"brightness", "hue", "num_classes"}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ODD, ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused_by_name(name: str, value: object) -> None:
    if value is None and name in OPTIONAL:
        return
    with pytest.raises(ValueError, match=rf"(?s)^{name} is .*, expected "):
        NUMBERS[name](value)


def test_numbers_of_numpy_and_torch_are_numbers(store: Path) -> None:
    batch = MemmapDataset(store, as_tuple=False)[0:6]
    for plain, other in [
        (
            ColorJitter(0.5, (0.2, 0.75), hue=0.25),
            ColorJitter(np.float32(0.5), (np.float64(0.2), 0.75), hue=torch.tensor(0.25)),
        ),  # type: ignore[arg-type]
        (GaussianBlur(3, 1.5), GaussianBlur(np.int64(3), np.float32(1.5))),  # type: ignore[arg-type]
        (RandomCrop(8, seed=5), RandomCrop(8, seed=np.int64(5))),
        (RandomApply([RandomHorizontalFlip()], seed=1 << 70), RandomApply([RandomHorizontalFlip()], seed=1 << 70)),
    ]:
        assert torch.equal(plain(batch).pixels, other(batch).pixels)


@pytest.mark.parametrize("seed", [None, 1.5, "abc", torch.ones(2)])
def test_a_seed_that_is_not_an_integer_is_refused_where_it_is_drawn_from(store: Path, seed: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)^seed is .*, expected an integer\.$"):
        RandomHorizontalFlip(seed=seed)(MemmapDataset(store, as_tuple=False)[0:4])


@pytest.mark.parametrize("seed", [None, 1.5, "abc", torch.ones(2)])
def test_a_seed_of_several_views_is_an_integer(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"(?s)^seed is .*, expected an integer\.$"):
        MultiView([RandomHorizontalFlip(seed=seed)])


def test_seeds_of_numpy_split_and_crop_alike(store: Path) -> None:
    data = MemmapDataset(store, as_tuple=False)
    first, again = (data.split(0.5, seed=seed)[0] for seed in (5, np.int64(5)))
    assert [row["path"] for row in map(first.source, range(3))] == [row["path"] for row in map(again.source, range(3))]
    plain, other = (MultiCrop(2, 1, global_size=8, local_size=4, seed=seed)(data[0:4])[0] for seed in (5, np.int64(5)))
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


@pytest.mark.parametrize("fill", ["abc", [None], object(), {1}])
def test_a_fill_is_a_number_or_some(store: Path, fill: Any) -> None:
    with pytest.raises(ValueError, match="^fill is .*, expected a number"):
        RandomRotation(9, fill=fill)(MemmapDataset(store, as_tuple=False)[0:4])
    for one, two in ((7, np.int64(7)), ([1, 2, 3], torch.tensor([1, 2, 3]))):
        made = [RandomRotation(30, fill=each)(MemmapDataset(store, as_tuple=False)[0:4]).pixels for each in (one, two)]
        assert torch.equal(*made)


@pytest.mark.parametrize("p", [1.0, [None, 1], [1]])
def test_the_shares_of_a_choice_are_numbers(p: Any) -> None:
    with pytest.raises(ValueError, match="^p is .*, expected "):
        RandomChoice([RandomHorizontalFlip(), ColorJitter(0.5)], p=p)
