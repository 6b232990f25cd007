"""Detection's transforms of batches and arguments that are not what a recipe gives: floats, gray images, other columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from detecting import detections
from tensordict import TensorDict

from reader import ImageBatch, RaggedBatch, compiled
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    FixedSizeCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomShortestSize,
    Resize,
    ScaleJitter,
    ToDetection,
)

FLOATS = Normalize([0], [1])
OF_LEVELS = [
    RandomHorizontalFlip(p=1),
    ColorJitter(0.4),
    ScaleJitter((9, 9)),
    FixedSizeCrop(20),
]


def gray(batch: RaggedBatch) -> RaggedBatch:
    """Make images of one channel of the same sizes."""
    shapes = batch.shapes.clone()
    shapes[:, 2] = 1
    sizes = shapes.long().prod(1)
    made: RaggedBatch = batch.replace(shapes=shapes, offsets=sizes.cumsum(0) - sizes)
    return made


@pytest.mark.parametrize("transform", OF_LEVELS, ids=lambda t: type(t).__name__)
def test_floats_of_images_of_different_sizes_are_refused_by_what_takes_levels(transform: Any) -> None:
    with pytest.raises(
        TypeError, match=r"takes uint8 pixels, and these are torch\.float32\. Let it come before Normalize"
    ):
        transform(FLOATS(detections(4)))


def test_gray_images_become_as_many_channels_as_normalize_has() -> None:
    batch = gray(detections(6))
    mean, std = [0.2, 0.4, 0.6], [0.1, 0.2, 0.3]
    made = Compose([Normalize(mean, std)])(batch)
    assert made.shapes[:, 2].tolist() == [3] * 6
    for image, given in zip(made.images, batch.images, strict=True):
        expected = (given / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
        torch.testing.assert_close(image, expected)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_levels_are_one_or_one_for_each_channel(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(compiled, "_function", lambda: None)
    with pytest.raises(ValueError, match="expected one level, or one for each of 1 channels"):
        FixedSizeCrop(100, (1, 2, 3))(gray(detections(4)))
    with pytest.raises(ValueError, match="expected one level, or one for each of 3 channels"):
        FixedSizeCrop(9, (1, 2))(detections(4))


@pytest.mark.parametrize(
    "steps",
    [
        [Resize((24, 24)), Resize(20)],
        [CenterCrop((30, 24)), Resize(20, "bicubic")],
        [CenterCrop((30, 24)), RandomHorizontalFlip(1.0), Resize(20, max_size=22), Resize(9)],
    ],
    ids=str,
)
def test_images_that_have_one_size_have_one_behind_a_shorter_side(steps: list[Any]) -> None:
    expected: Any = detections(6)
    made = Compose(steps)(expected)
    for step in steps:
        expected = step(expected)
    assert type(made) is type(expected) is ImageBatch
    assert torch.equal(made.pixels, expected.pixels)
    torch.testing.assert_close(made.extras["boxes"], expected.extras["boxes"])


def test_columns_do_not_replace_labels() -> None:
    batch = detections(4)
    batch.extras = batch.extras.clone()
    batch.extras["image_id"] = torch.arange(4) + 100
    assert [int(target["image_id"]) for target in ToDetection()(batch)[1]] == [100, 101, 102, 103]
    batch.extras["labels"] = torch.arange(4)
    with pytest.raises(
        ValueError, match=r"ToDetection gives labels of images, and the rows have a column of that name"
    ):
        ToDetection()(batch)


@pytest.mark.parametrize("labels", [None, [1, 2, 3]])
def test_a_box_without_a_class_has_no_label(labels: list[int] | None) -> None:
    batch = detections(4)
    batch.extras = batch.extras.clone()
    batch.extras["box_targets"] = torch.full_like(batch.extras["box_targets"], -1)
    with pytest.raises(ValueError, match=r"no label for a box without a class \(-1\)"):
        ToDetection(labels)(batch)


def test_boxes_without_a_count_are_refused() -> None:
    batch = detections(4)
    batch.extras = TensorDict({"boxes": torch.rand(4, 2, 4)}, batch_size=[4])
    with pytest.raises(ValueError, match=r"expected \[B, K, 4\] and box_count \[B\] beside them"):
        ToDetection()(batch)


WRONG: dict[str, tuple[Any, str]] = {
    "one side": (lambda: ScaleJitter(700), "target_size is 700, expected two sides"),  # type: ignore[arg-type]
    "a word for scales": (lambda: ScaleJitter((8, 8), "ab"), "scale_range is 'ab', expected a number"),  # type: ignore[arg-type]
    "an endless scale": (lambda: ScaleJitter((8, 8), (1, float("inf"))), "expected two factors above 0"),
    "no length": (lambda: RandomShortestSize(None), "min_size is None, expected a number"),  # type: ignore[arg-type]
    "one label": (lambda: ToDetection(3), "labels is 3, expected a list of integers"),  # type: ignore[arg-type]
    "names": (lambda: ToDetection(["crate"]), "labels is 'crate', expected an integer"),  # type: ignore[list-item]
    "half a label": (lambda: ToDetection([0.5]), "labels is 0.5, expected an integer"),  # type: ignore[list-item]
}


@pytest.mark.parametrize("case", WRONG)
def test_arguments_of_the_wrong_kind_are_refused_by_name(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_of_numpy_are_numbers() -> None:
    sides: Any = np.array([8, 8])
    batch = detections(4)
    expected = ScaleJitter((8, 8))(batch)
    assert torch.equal(ScaleJitter(sides)(batch).pixels, expected.pixels)
    length: Any = np.int64(9)
    assert torch.equal(RandomShortestSize(length)(batch).pixels, RandomShortestSize(9)(batch).pixels)
