"""Detection's transforms of batches and arguments that are not what a recipe gives: floats, gray images, other columns."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest
import torch
from augmenting import pictures, v2
from conftest import torchvision_or_skip
from detecting import detections
from tensordict import TensorDict

from reader import ImageBatch, RaggedBatch, compiled, from_torchvision
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    FixedSizeCrop,
    Normalize,
    RandomHorizontalFlip,
    RandomIoUCrop,
    RandomPhotometricDistort,
    RandomShortestSize,
    RandomZoomOut,
    Resize,
    ResizeCenterCrop,
    SanitizeBoundingBoxes,
    ScaleJitter,
    ToDetection,
    ToDtype,
)

FLOATS = ToDtype(torch.float32, scale=True)
OF_LEVELS = [
    RandomHorizontalFlip(p=1),
    ColorJitter(0.4),
    RandomPhotometricDistort(),
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
        ValueError, match=r"takes uint8 pixels, and these are torch\.float32\. Let it come before ToDtype"
    ):
        transform(FLOATS(detections(4)))


def test_floats_of_one_size_are_refused_by_what_gives_sizes() -> None:
    floats = FLOATS(pictures(3))
    for transform in (RandomZoomOut(), RandomPhotometricDistort()):
        with pytest.raises(ValueError, match=r"takes uint8 pixels, and these are torch\.float32"):
            transform(floats)


def test_what_changes_boxes_alone_does_not_hide_that_pixels_are_floats() -> None:
    for transform in OF_LEVELS:
        with pytest.raises(ValueError, match="takes uint8 pixels, and what comes before it makes them floats"):
            Compose([FLOATS, SanitizeBoundingBoxes(), transform])
    chain = [FLOATS, SanitizeBoundingBoxes(), ToDtype(torch.float16, scale=True), ToDetection()]
    assert Compose(chain)(detections(4))[0][0].dtype == torch.float16


@pytest.mark.parametrize("is_compiled", [True, False])
def test_crops_take_floats_of_images_of_different_sizes(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(compiled, "_function", lambda: None)
    batch = detections(6)
    expected = ResizeCenterCrop(16)(batch).images / 255
    torch.testing.assert_close(ResizeCenterCrop(16)(FLOATS(batch)).images, expected, atol=1.01 / 255, rtol=0)


class _Centered(Normalize):
    """A program's own, which looks at more of an image than one level."""

    def forward(self, images: Any) -> Any:
        return images.float() - images.float().mean((-2, -1), keepdim=True)


def test_a_programs_own_normalize_is_called_for_each_image() -> None:
    batch = detections(6)
    made = Compose([_Centered([0.5], [0.5])])(batch)
    for image, given in zip(made.images, batch.images, strict=True):
        torch.testing.assert_close(image, given.float() - given.float().mean((-2, -1), keepdim=True))


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
    for transform in (RandomZoomOut((1, 2, 3)), FixedSizeCrop(100, (1, 2, 3))):
        with pytest.raises(ValueError, match="expected one level, or one for each of 1 channels"):
            transform(gray(detections(4)))
    with pytest.raises(ValueError, match="expected one level, or one for each of 3 channels"):
        RandomZoomOut((1, 2))(detections(4))


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


@pytest.mark.parametrize(
    "transform", [RandomIoUCrop(), SanitizeBoundingBoxes(), ToDetection()], ids=lambda t: type(t).__name__
)
def test_boxes_without_a_count_are_refused(transform: Any) -> None:
    batch = detections(4)
    batch.extras = TensorDict({"boxes": torch.rand(4, 2, 4)}, batch_size=[4])
    with pytest.raises(ValueError, match=r"expected \[B, K, 4\] and box_count \[B\] beside them"):
        transform(batch)


def test_levels_by_type_are_those_that_torchvision_takes() -> None:
    from PIL import Image

    kinds, two = torchvision_or_skip().tv_tensors, v2()
    image = kinds.Image(torch.full((3, 4, 4), 9, dtype=torch.uint8))
    by_default: Any = collections.defaultdict(lambda: (123.0, 117.0, 104.0), {kinds.Mask: 0})
    for fill in (
        by_default,
        {"others": 7, kinds.Image: 5},
        {Image.Image: 3, kinds.Image: 5},
        {Image.Image: 3, "others": 5},
        {"others": None},
        None,
        [1, 2, 3],
    ):
        theirs = two.RandomZoomOut(fill=fill, side_range=(2, 2), p=1)
        made: Any = from_torchvision(theirs)
        levels = (theirs(image).as_subclass(torch.Tensor).sum((1, 2)) - 16 * 9) / 48
        assert levels.tolist() == [*made.transforms[0].fill] * (3 // len(made.transforms[0].fill))


WRONG: dict[str, tuple[Any, str]] = {
    "one side": (lambda: ScaleJitter(700), "target_size is 700, expected two sides"),  # type: ignore[arg-type]
    "a word for scales": (lambda: ScaleJitter((8, 8), "ab"), "scale_range is 'ab', expected a number"),  # type: ignore[arg-type]
    "an endless scale": (lambda: ScaleJitter((8, 8), (1, float("inf"))), "expected two factors above 0"),
    "no length": (lambda: RandomShortestSize(None), "min_size is None, expected a number"),  # type: ignore[arg-type]
    "no level": (lambda: RandomZoomOut(None), "fill is None, expected a number"),  # type: ignore[arg-type]
    "one factor": (lambda: RandomZoomOut(side_range=3), "side_range is 3, expected two factors"),  # type: ignore[arg-type]
    "an endless canvas": (lambda: RandomZoomOut(side_range=(1, float("inf"))), "expected two factors of 1 or more"),
    "a word for a scale": (lambda: RandomIoUCrop("a"), "min_scale is 'a', expected a number"),  # type: ignore[arg-type]
    "half a trial": (lambda: RandomIoUCrop(trials=0.5), "trials is 0.5, expected an integer"),  # type: ignore[arg-type]
    "one brightness": (lambda: RandomPhotometricDistort(0.5), "brightness is 0.5, expected two"),  # type: ignore[arg-type]
    "a word for a size": (lambda: SanitizeBoundingBoxes("a"), "min_size is 'a', expected a number"),  # type: ignore[arg-type]
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
    level: Any = np.uint8(3)
    assert torch.equal(RandomZoomOut(level)(batch).pixels, RandomZoomOut(3)(batch).pixels)
