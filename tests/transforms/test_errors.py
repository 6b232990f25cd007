"""What transforms refuse, and in which words: wrong arguments when they are made, wrong rows when they are called."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import labelled, many, pictures
from detecting import detections, gray, with_masks

from reader import ImageBatch, MemmapDataset
from reader.transforms import (
    ColorJitter,
    Compose,
    CutMix,
    FixedSizeCrop,
    GaussianBlur,
    Grayscale,
    MixUp,
    MultiCrop,
    MultiView,
    Normalize,
    Pad,
    RandAugment,
    RandomAdjustSharpness,
    RandomAffine,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomPosterize,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    Resize,
    ResizeCenterCrop,
    ScaleJitter,
    TimmRandAugment,
    ToDetection,
    TrivialAugmentWide,
)

# made wrong: (what makes it, the words)
ARGUMENTS: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = [
    (RandomHorizontalFlip, (1.5,), {}, "p is 1.5, expected a number from 0 to 1"),
    (RandomCrop, (0,), {}, "size is 0, expected 1 or more"),
    (RandomCrop, (8,), {"padding": -1}, "padding is -1, expected 0 or more"),
    (RandomResizedCrop, ("224",), {}, "size is '224', expected a number"),
    (RandomResizedCrop, ((8, 2.5),), {}, "size is 2.5, expected an integer"),
    (RandomResizedCrop, ((8, 8, 8),), {}, "expected pixels: one number, or height and width"),
    *(
        (RandomResizedCrop, (8,), {"scale": scale}, "scale is .*, expected (two numbers|a number)")
        for scale in ((1, 0.5), (0.08, math.inf), (math.nan, 1), (-1, 1), (0, 1), (1,), 2, ("a", "b"))
    ),
    (
        RandomResizedCrop,
        (8,),
        {"ratio": (0, 1)},
        "ratio is .0, 1., expected two numbers above 0, the smaller one first",
    ),
    (
        RandomResizedCrop,
        (8,),
        {"interpolation": "nearest"},
        "interpolation is 'nearest', expected one of bilinear, bicubic",
    ),
    (ResizeCenterCrop, (8, 1.5), {}, "fraction is 1.5, expected a number above 0, and at most 1"),
    (Resize, (3, "nearest"), {}, "interpolation is 'nearest', expected"),
    (Resize, ((3, 4),), {"max_size": 9}, "size is .3, 4., expected .height, width., or pixels of the shorter side"),
    (Resize, (9,), {"max_size": 9}, "max_size is 9, expected 10 or more"),
    (Pad, (2.0,), {}, "padding is 2.0, expected an integer"),
    (Pad, ((1, 2, 3),), {}, "padding is .* one number, two or four"),
    (Pad, (1, 300), {}, "fill is 300, expected a number from 0 to 255"),
    (Pad, (1,), {"padding_mode": "wrap"}, "padding_mode is 'wrap', expected one of constant"),
    (ColorJitter, (math.inf,), {}, "brightness is inf, expected one number or two numbers of 0 or more"),
    (ColorJitter, (-0.1,), {}, "brightness is -0.1, expected one number or two numbers of 0 or more"),
    (ColorJitter, (), {"contrast": (2, 1)}, "contrast is .2, 1., expected"),
    *(
        (ColorJitter, (), {"hue": hue}, "hue is .*, expected one number or two numbers from -0.5 to 0.5")
        for hue in (0.6, -0.1, (0.2, 0.1), (-0.6, 0))
    ),
    (Normalize, ([0.5], [math.inf]), {}, "std is inf, expected a number above 0"),
    (Normalize, ([math.nan], [1]), {}, "mean is nan, expected a number that is finite"),
    (Normalize, ([0.5, 0.5], [1]), {}, "expected one number of each a channel"),
    (Normalize, ("mean", [1]), {}, "mean is 'mean', expected a number"),
    (Normalize, ([0.5], [0.5], True), {}, "dtype is True, expected one such as torch.float32"),
    (Grayscale, (2,), {}, "num_output_channels is 2, expected 1 or 3"),
    (RandomPosterize, (9,), {}, "bits is 9, expected 0 to 8"),
    (RandomSolarize, (256,), {}, "threshold is 256, expected a number from 0 to 255"),
    (RandomAdjustSharpness, (-1,), {}, "sharpness_factor is -1, expected a number of 0 or more"),
    (GaussianBlur, (4,), {}, "kernel_size is 4, expected an odd number"),
    (GaussianBlur, (3, 0), {}, "sigma is .*, expected two numbers above 0"),
    (RandomAffine, (-1,), {}, "degrees is -1, expected one number or two numbers"),
    (RandomAffine, ((1, 2, 3),), {}, "degrees is .*, expected one number or two numbers"),
    (RandomAffine, ("30",), {}, "degrees is '30', expected a number"),
    (RandomAffine, (0, (0, 2)), {}, "translate is 2, expected a number from 0 to 1"),
    (RandomAffine, (0, 0.1), {}, "translate is 0.1, expected two numbers from 0 to 1"),
    (RandomAffine, (0, None, (0, 1)), {}, "scale is .*, expected two numbers above 0"),
    (RandomAffine, (0, None, None, (1, 2, 3)), {}, "shear is .*, expected two numbers"),
    (RandomAffine, (0,), {"interpolation": "bicubic"}, "interpolation is 'bicubic', expected one of nearest, bilinear"),
    (RandomAffine, (0,), {"center": (1,)}, "center is .*, expected two numbers"),
    (RandomRotation, (30, "bilinear", True), {}, "expand is True, expected False: .* another size"),
    (RandAugment, (65,), {}, "num_ops is 65, expected 0 to 64"),
    (RandAugment, (), {"magnitude": 31}, "magnitude is 31, expected 0 to 30"),
    (RandAugment, (), {"num_magnitude_bins": 0}, "num_magnitude_bins is 0, expected 1 or more"),
    (TrivialAugmentWide, (2.5,), {}, "num_magnitude_bins is 2.5, expected an integer"),
    *(
        (TimmRandAugment, (config,), {}, "config_str is .*, expected rand and sections of m, n, p, mstd, mmax and inc")
        for config in ("augmix-m5", "rand-m9-tweights", "rand-mx")
    ),
    (TimmRandAugment, ("rand-p2",), {}, "expected n0 to n32, and p0 to p1"),
    (RandomErasing, (), {"scale": (0.5, 0.2)}, "scale is .*, expected two numbers from 0 to 1"),
    (RandomErasing, (), {"ratio": 2}, "ratio is 2, expected two numbers above 0"),
    (RandomErasing, (), {"value": "white"}, "value is 'white', expected a number"),
    (CutMix, (), {"alpha": 0}, "alpha is 0, expected a number above 0"),
    (MixUp, (), {"alpha": math.inf}, "alpha is inf, expected"),
    (MixUp, (), {"label_smoothing": 2}, "label_smoothing is 2, expected a number from 0 to 1"),
    (MixUp, (), {"num_classes": 0}, "num_classes is 0, expected 1 or more"),
    (Compose, ([],), {}, "transforms is .* expected a list of one or more"),
    (Compose, ([3],), {}, "transforms has 3, expected functions"),
    (MultiView, ([],), {}, "expected a list of one or more"),
    (RandomApply, ([Grayscale()], 2), {}, "p is 2"),
    (RandomChoice, ([Grayscale()], [1, 2]), {}, "p is .* a share for each of 1"),
    (MultiCrop, (0, 0), {}, "expected a list of one or more"),
    (MultiCrop, (-1, 3), {}, "global_crops is -1, expected 0 or more"),
    (MultiCrop, (2,), {"global_transform": [RandomGrayscale()]}, "there are 1 transforms for 2 crops"),
    (MultiCrop, (2, 1), {"local_transform": CutMix(num_classes=3)}, "view 2 mixes images and their targets"),
    (ScaleJitter, ((8, 8),), {"interpolation": "nearest"}, "expected one of bilinear"),
    (ScaleJitter, (700,), {}, "target_size is 700, expected two sides"),
    (ScaleJitter, ((8, 8), "ab"), {}, "scale_range is 'ab', expected a number"),
    (RandomShortestSize, ([],), {}, "min_size is empty"),
    (RandomShortestSize, (None,), {}, "min_size is None, expected a number"),
    (RandomShortestSize, (8, 0), {}, "max_size is 0, expected 1 or more"),
    (FixedSizeCrop, (8, 300), {}, "fill is 300, expected a number from 0 to 255"),
    (ToDetection, (["crate"],), {}, "labels is 'crate', expected an integer"),
]


@pytest.mark.parametrize(("kind", "given", "named", "words"), ARGUMENTS)
def test_wrong_arguments_are_named_with_what_was_expected(kind: Any, given: Any, named: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        kind(*given, **named)
    assert str(raised.value).endswith(".")


def without(name: str) -> ImageBatch:
    batch = labelled(1)
    if name == "rows":
        batch.rows = None
    else:
        del batch.extras[name]
    return batch


def with_columns(**columns: torch.Tensor) -> Any:
    batch = detections(4)
    batch.extras = batch.extras.clone().update(columns)
    return batch


def flat_masks() -> ImageBatch:
    batch = labelled(1)
    batch.extras["masks"] = batch.extras["masks"].flatten(1)
    return batch


def masked(count: int) -> ImageBatch:
    """Make rows of one size with masks, and nothing else."""
    batch = labelled(count)
    batch.extras = batch.extras.select("masks")
    return batch


def masked_alone(count: int) -> Any:
    """Make rows with sizes of their own and masks, and nothing else."""
    return with_masks(detections(count)).replace(extras=None)


FLOATS = Normalize([0], [1])
# called wrong
ROWS: list[tuple[Callable[[], Any], str]] = [
    (lambda: RandomCrop(41)(pictures(1)), "cuts 41 x 41 pixels, but the rows have 24 x 20 and padding of .0, 0, 0, 0."),
    (
        lambda: RandomCrop(8)(pictures(1)[0]),
        r"expected \[B, H, W, C\]: give a batch, not a row, such as dataset\[3:4\]",
    ),
    (lambda: RandomResizedCrop(8)(without("rows")), "the batch has no rows"),
    (
        lambda: RandomHorizontalFlip()(without("box_count")),
        r"\[1, 2, 4\], expected \[B, K, 4\] and box_count \[B\] beside",
    ),
    (lambda: ToDetection()(without("box_count")), r"expected \[B, K, 4\] and box_count \[B\] beside them"),
    (lambda: RandomCrop(8)(flat_masks()), r"masks have the shape \[1, 1230\], expected \[B, H, W\]"),
    (
        lambda: ColorJitter(0.1)(many(1).replace(pixels=torch.zeros(1, 9, 9, 4).byte())),
        "takes 1 or 3 channels, the rows have 4",
    ),
    (lambda: GaussianBlur(49)(pictures()), "too large to reflect images of 20 x 24"),
    (lambda: RandomApply([GaussianBlur(99)])(pictures()), "too large to reflect images of 20 x 24"),
    (lambda: Pad(1, (1, 2))(pictures(1)), "fill is .* one for each of 3 channels"),
    (lambda: Pad(2, padding_mode="reflect")(labelled()), 'padding_mode "reflect" repeats the content of boxes'),
    (lambda: Pad(2, padding_mode="edge")(detections(2)), 'padding_mode is "edge", and images have sizes of their own'),
    (lambda: RandomAffine(3, fill=(1, 2))(pictures()), "fill is .* expected one level, or one for each of 3"),
    (lambda: RandomErasing(value=(1, 2))(pictures()), "expected one level, or one for each of 3 channels"),
    (lambda: FixedSizeCrop(100, (1, 2, 3))(gray(detections(4))), "expected one level, or one for each of 1 channels"),
    (lambda: RandomApply([ResizeCenterCrop(4)])(many(40, (8, 8))), "a transform in it changed their size or type"),
    (lambda: RandomApply([lambda batch: 3])(many(40)), "a transform in it changed their size or type"),
    (
        lambda: RandomApply([lambda batch: batch.replace(pixels=batch.pixels / 255)])(many(40)),
        "a transform in it changed their size or type",
    ),
    (lambda: RandomApply([MixUp()], 1)(detections(4)), "the images have sizes of their own"),
    (lambda: MixUp()(pictures()), "MixUp needs num_classes=, since targets are numbers of classes"),
    (lambda: CutMix(num_classes=5)(pictures()), "^CutMix has num_classes=5, and a target is 11, expected less"),
    (
        lambda: CutMix(num_classes=40)(labelled()),
        "CutMix takes no rows with boxes or masks",
    ),
    *(
        (lambda transform=transform, batch=batch: transform(batch), r"^\w+ takes no rows with boxes or masks\.")
        for transform in (
            RandomAffine(9),
            RandomRotation(9),
            RandAugment(0),
            TrivialAugmentWide(),
            TimmRandAugment(),
            RandomApply([RandomRotation(9)], 1),
            MultiView([RandomResizedCrop(8)]),
            MultiCrop(),
        )
        for batch in (labelled(2), masked(2), detections(2), masked_alone(2))
    ),
    (lambda: MixUp(num_classes=40)(detections()), "the images have sizes of their own: let RandomResizedCrop"),
    *(
        (
            lambda transform=transform: transform(FLOATS(detections(4))),
            r"takes uint8 pixels, and these are torch\.float32",
        )
        for transform in (RandomHorizontalFlip(), RandomInvert(), ScaleJitter((9, 9)), FixedSizeCrop(20))
    ),
    (lambda: Normalize([0], [1])(FLOATS(pictures())), "takes uint8 pixels, and these are torch.float32"),
    (lambda: Normalize([0], [1])(torch.zeros(3, 2, 2)), "takes uint8 images and divides them by 255, and these are"),
    (
        lambda: Normalize([0], [1])([torch.zeros(3, 2, 2)]),
        "was given a list. Give the loader a transform .* RandomResizedCrop",
    ),
    (lambda: Normalize([0], [1])((1, 2)), r"was given a tuple. Write images, targets = batch; normalize\(images\)"),
    (lambda: Normalize.from_manifest(3), r"is a int, expected .* Write Normalize\.from_manifest\(dataset\.manifest\)"),  # type: ignore[arg-type]
    (
        lambda: ToDetection()(pictures(2)),
        "ToDetection takes rows with boxes, and these have none. Pack them with --boxes",
    ),
    (
        lambda: ToDetection([1, 2])(detections()),
        "ToDetection has 2 labels, and a box has class 2. Give one for each class",
    ),
    (
        lambda: ToDetection()(with_columns(labels=torch.arange(4))),
        "ToDetection gives labels of images, and the rows have",
    ),
    *(
        (
            lambda labels=labels: ToDetection(labels)(with_columns(box_targets=torch.full((4, 4), -1))),
            r"no label for a box without a class \(-1\)",
        )
        for labels in (None, [1, 2, 3])
    ),
]


@pytest.mark.parametrize(("call", "words"), ROWS)
def test_rows_that_it_cannot_take_are_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        call()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("transform", [ResizeCenterCrop(8), ColorJitter(0.4), RandomErasing(), GaussianBlur(3)])
def test_what_is_no_batch_is_reported_where_the_transform_belongs(train: MemmapDataset, transform: Any) -> None:
    images, targets = train[:4]
    for given in ((images, targets), images, train[3], [images]):
        with pytest.raises(
            TypeError, match=r"takes a whole ImageBatch, and was given a \w+: .*transform=.*as_tuple=False"
        ):
            transform(given)
