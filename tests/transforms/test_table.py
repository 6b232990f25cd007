"""One table: each transform that bears a name of torchvision's gives its pixels, wherever it stands in a recipe.

Of rows of one size and of their own, odd sizes, gray, RGB and RGBA, by the compiled part and by torch.

What is drawn, torchvision is given as ours drew it: by ranges of one value, by methods that say what is drawn, or by what becomes
of a picture of coordinates.
"""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from augmenting import v2
from conftest import Tune, torchvision_or_skip

from reader import ImageBatch, RaggedBatch, compiled, from_torchvision, transforms
from reader.transforms.policies import OPERATIONS

# (name, arguments): made alike with both
Case = tuple[str, tuple[Any, ...], dict[str, Any]]
MEAN, STD = [0.485, 0.456, 0.406, 0.5], [0.229, 0.224, 0.225, 0.25]
CASES: list[Case] = [
    ("CenterCrop", (13,), {}),
    ("CenterCrop", ((11, 12),), {}),
    ("CenterCrop", ((40, 9),), {}),
    ("Resize", (15,), {}),
    ("Resize", (37,), {"max_size": 41}),
    ("Resize", ((19, 14),), {}),
    ("Resize", ((30, 26), "bicubic"), {}),
    ("Pad", ((1, 2, 3, 0),), {"fill": 9}),
    ("Pad", (2,), {"padding_mode": "reflect"}),
    ("RandomCrop", ((12, 11), 3), {"fill": 7, "pad_if_needed": True}),
    ("RandomResizedCrop", ((14, 17),), {}),
    ("RandomHorizontalFlip", (1,), {}),
    ("RandomVerticalFlip", (1,), {}),
    ("RandomRotation", ((33, 33), "bilinear"), {"fill": 9}),
    ("RandomRotation", ((-21, -21),), {}),
    ("RandomAffine", ((12, 12), None, (1.2, 1.2), (5, 5, -7, -7), "bilinear"), {}),
    ("RandomErasing", (1, (0.1, 0.3), (0.8, 1.25), 31), {}),
    ("ColorJitter", (0.4, 0.5, 0.6, 0.2), {}),
    ("ColorJitter", (), {"saturation": (1.7, 1.7)}),
    ("ColorJitter", (), {"contrast": (0.3, 0.3)}),
    ("Grayscale", (), {}),
    ("Grayscale", (3,), {}),
    ("RandomGrayscale", (1,), {}),
    ("GaussianBlur", (3, (1.3, 1.3)), {}),
    ("RandomInvert", (1,), {}),
    ("RandomSolarize", (90, 1), {}),
    ("RandomPosterize", (3, 1), {}),
    ("RandomEqualize", (1,), {}),
    ("RandomAutocontrast", (1,), {}),
    ("RandomAdjustSharpness", (1.8, 1), {}),
    ("ScaleJitter", ((31, 27), (0.7, 0.7)), {}),
    ("RandomShortestSize", (15, 24), {}),
    ("RandAugment", (2, 5), {}),
    ("TrivialAugmentWide", (), {}),
    ("Normalize", (MEAN, STD), {}),
    ("Compose", ([("RandomInvert", (1,), {}), ("CenterCrop", (19,), {})],), {}),
    ("RandomApply", ([("RandomInvert", (1,), {}), ("RandomPosterize", (4, 1), {})], 1), {}),
    ("RandomChoice", ([("RandomSolarize", (120, 1), {})],), {}),
]
# Further arguments, alone.
FACTORS: list[Case] = [
    ("ColorJitter", (), {name: (factor, factor)})
    for name in ("brightness", "contrast", "saturation")
    for factor in (0.0, 0.5, 2.4)
]
AFFINE = (40, (0.2, 0.3), (0.7, 1.4), (-20, 20, -10, 15))
VARIANTS: list[Case] = [
    *FACTORS,
    ("ColorJitter", (), {"hue": (-0.5, 0.5)}),
    ("RandomResizedCrop", ((7, 30), (0.08, 1), (3 / 4, 4 / 3), "bicubic"), {}),
    ("RandomResizedCrop", (33, (0.9, 1.0)), {}),
    ("RandomResizedCrop", ((1, 1), (0.01, 0.02), (1, 1)), {}),
    ("Resize", ((40, 13), "bicubic"), {}),
    ("Resize", (12, "bicubic"), {}),
    ("CenterCrop", ((61, 33),), {}),
    ("Pad", (3, None), {}),
    ("Pad", (3, (7, 8, 9)), {}),
    ("Pad", ((2, 5),), {"padding_mode": "edge"}),
    ("Pad", ([1, 2, 3, 4],), {"padding_mode": "symmetric"}),
    ("RandomCrop", (15,), {}),
    ("RandomRotation", ((90, 90),), {}),
    ("RandomRotation", (180, "bilinear", False, (3, 7), 128), {}),
    *(
        ("RandomAffine", (*AFFINE, interpolation, fill, center), {})
        for interpolation in ("nearest", "bilinear")
        for fill, center in ((None, None), (128, (3, 17)), ((10, 200, 30), None))
    ),
    ("GaussianBlur", ((3, 7), (0.8, 0.8)), {}),
    ("GaussianBlur", (1, (5.0, 5.0)), {}),
    ("RandomSolarize", (127.5, 1), {}),
    ("RandomPosterize", (0, 1), {}),
    ("RandomPosterize", (8, 1), {}),
    ("RandomAdjustSharpness", (0, 1), {}),
    ("RandAugment", (3, 12), {}),
    ("RandAugment", (1, 29, 31, "bilinear", 128), {}),
    ("TrivialAugmentWide", (31, "bilinear", (1, 200, 30)), {}),
]
# what stands behind these ours refuses, but for what it does before them
FLOATS = {"Normalize"}
# Compared where they belong: what mixes a batch.
ELSEWHERE = {
    "CutMix",
    "MixUp",
}
# What ours refuses and torchvision does not.
REFUSALS = re.compile("takes uint8 pixels, and|images have sizes of their own|TrivialAugmentWide takes 1 or 3 channels")
# What torchvision refuses and ours does not: levels are floats to it.
OURS_ALONE = "Input tensor should be a float tensor. Got torch.uint8."
# (row, height, width): two, and more where a transform stands alone
ROWS = [(7, 23, 17), (8, 16, 29)]
MANY = [*ROWS, (0, 19, 40), (1, 33, 15), (2, 16, 16), (9, 44, 57)]
# A place between two pixels is rounded to either, and a later operation makes more of a level.
MOVED = ("RandomAffine", "RandomRotation", "RandAugment", "TrivialAugmentWide")


def pixels(row: int, height: int, width: int, channels: int) -> torch.Tensor:
    """Make uint8[H, W, C]: slopes, an edge and noise; row 0 of one level, row 1 of noise alone."""
    generator = torch.Generator().manual_seed(row)
    if row < 2:
        return torch.randint(77, 256 if row else 78, (height, width, channels), dtype=torch.uint8, generator=generator)
    y, x = torch.arange(height)[:, None, None], torch.arange(width)[None, :, None]
    slopes = 4 * y + 5 * x * (1 + torch.arange(channels)) + 60 * (x > width // 3)
    return ((slopes + torch.randint(0, 40, (height, width, channels), generator=generator)) % 256).to(torch.uint8)


def one(row: int, image: torch.Tensor) -> ImageBatch:
    """Make a batch of one of uint8[H, W, C]."""
    rows = torch.tensor([row])
    return ImageBatch(pixels=image[None], targets=rows, rows=rows, batch_size=[1])


def ragged(images: Sequence[torch.Tensor], rows: Sequence[int]) -> RaggedBatch:
    sizes = torch.tensor([image.numel() for image in images])
    return RaggedBatch(
        pixels=torch.cat([image.reshape(-1) for image in images]),
        targets=torch.tensor(rows),
        offsets=sizes.cumsum(0) - sizes,
        shapes=torch.tensor([image.shape for image in images], dtype=torch.int32),
        rows=torch.tensor(rows),
        batch_size=[],
    )


def made(module: Any, case: Case) -> Any:
    """Make a transform of ours or of torchvision's, whose interpolation is an enumeration."""
    name, given, named = case
    of_kind = {
        list: lambda cases: [made(module, each) for each in cases] if isinstance(cases[0], tuple) else cases,
        str: lambda name: name if module is transforms else module.InterpolationMode(name),
    }
    return getattr(module, name)(*(of_kind.get(type(each), lambda same: same)(each) for each in given), **named)


def corner(transform: Any, row: int, height: int, width: int) -> tuple[int, int, torch.Tensor]:
    """Return what a picture of coordinates becomes: its first pixel (y, x) there, and uint8[H, W, 3]."""
    y, x = torch.meshgrid(torch.arange(1, height + 1), torch.arange(1, width + 1), indexing="ij")
    found = transform(one(row, torch.stack([y, x, torch.full_like(y, 255)], -1).to(torch.uint8)))
    image = found.image(0) if isinstance(found, RaggedBatch) else found.pixels[0]
    top, left = (image[..., 2] == 255).nonzero()[0].tolist()
    return top, left, image


def drawn_crop(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    height, width = image.shape[-2:]
    params = theirs.make_params([image])
    left, top = params["padding"][:2]
    down, across, found = corner(ours, row, height, width)
    y, x = found[down, across, :2].tolist()
    return params | {"needs_crop": True, "top": top + y - 1 - down, "left": left + x - 1 - across}


def drawn_box(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    x0, y0, x1, y1 = ours.boxes(one(row, image.movedim(0, -1)))[0].tolist()
    return {"top": y0, "left": x0, "height": y1 - y0, "width": x1 - x0}


def drawn_rectangle(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    (level,) = theirs.value
    y, x = (ours(one(row, torch.zeros(*image.shape[-2:], 1, dtype=torch.uint8))).pixels[0, ..., 0] == level).nonzero().T
    size = {"h": int(y.max() - y.min() + 1), "w": int(x.max() - x.min() + 1)}
    return {"i": int(y.min()), "j": int(x.min()), "v": torch.tensor([level])[:, None, None], **size}


def drawn_colors(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    factors, order = ours.drawn(one(row, image.movedim(0, -1)))
    names = ("brightness", "contrast", "saturation", "hue")
    limits = [getattr(theirs, name) for name in names]
    given = {f"{name}_factor": float(f) for name, f in zip(names, factors, strict=True)}
    given |= {f"{name}_factor": None for name, limit in zip(names, limits, strict=True) if limit is None}
    return {"fn_idx": order[0], **given}


def of_policy(theirs: Any, image: torch.Tensor, drawn: Any) -> torch.Tensor:
    """Apply the operations that ours drew for one image."""
    for operation, magnitude in drawn:
        steps = OPERATIONS[int(operation)], float(magnitude), theirs.interpolation, theirs._fill
        image = theirs._apply_image_or_video_transform(image, *steps)
    return image


def drawn_motion(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    angle, shift, scale, shear = (each.tolist()[0] for each in ours.drawn(one(row, image.movedim(0, -1))))
    return {"angle": angle, "translate": shift, "scale": scale, "shear": shear}


def drawn_angle(ours: Any, theirs: Any, row: int, image: torch.Tensor) -> dict[str, Any]:
    return {"angle": float(ours.angles(one(row, image.movedim(0, -1))))}


DRAWN: dict[str, Callable[..., dict[str, Any]]] = {
    "RandomCrop": drawn_crop,
    "RandomResizedCrop": drawn_box,
    "RandomErasing": drawn_rectangle,
    "ColorJitter": drawn_colors,
    "RandomAffine": drawn_motion,
    "RandomRotation": drawn_angle,
}


def by_torchvision(case: Case, ours: Any, row: int, image: torch.Tensor) -> torch.Tensor:
    """Call torchvision's for an image [C, H, W], with what ours draws."""
    name, theirs = case[0], made(v2(), case)
    if name in DRAWN:
        return theirs.transform(image, DRAWN[name](ours, theirs, row, image))
    if name in ("RandAugment", "TrivialAugmentWide"):
        return of_policy(theirs, image, ours.drawn(one(row, image.movedim(0, -1))))
    if name == "Normalize":
        image = v2().functional.to_dtype(image, torch.float32, scale=True)
    found: torch.Tensor = theirs(image)
    return found


def with_others(case: Case, length: int, position: int) -> Iterator[list[Case]]:
    """Yield recipes that have a case in a position, others around it; of the cases before it none makes floats."""
    draws, others = random.Random(f"{case} {length} {position}"), [case for case in CASES if case[0] not in FLOATS]
    while True:
        drawn = draws.sample([each for each in others if each[0] != case[0]], length - 1)
        if len({name for name, _, _ in drawn}) == length - 1:
            yield [*drawn[:position], case, *drawn[position:]]


def of_channels(case: Case, channels: int) -> Case:
    name, given, named = case
    return (name, tuple(values[:channels] for values in given), named) if name == "Normalize" else case


def compared(recipe: list[Case], channels: int, has_own_sizes: bool, given: Any = ROWS) -> bool:
    """Compare what a recipe makes of rows; False: one of the two refuses it, as it may."""
    recipe, rows = [of_channels(case, channels) for case in recipe], [row for row, _, _ in given]
    images = [pixels(row, *(size if has_own_sizes else given[0][1:]), channels) for row, *size in given]
    singles, numbers = [made(transforms, case) for case in recipe], torch.tensor(rows)
    batch: Any = ragged(images, rows)
    if not has_own_sizes:
        batch = ImageBatch(pixels=torch.stack(images), targets=numbers, rows=numbers, batch_size=[len(rows)])
    refused = None
    try:
        found = transforms.Compose([made(transforms, case) for case in recipe])(batch).images
    except (ValueError, TypeError) as e:
        if REFUSALS.search(str(e)):
            return False
        refused = e
    expected = [image.movedim(-1, 0) for image in images]
    try:
        for n, (case, single) in itertools.product(range(len(rows)), zip(recipe, singles, strict=True)):
            expected[n] = by_torchvision(case, single, rows[n], expected[n])
    except (ValueError, TypeError, RuntimeError) as e:
        if refused is not None or OURS_ALONE in str(e):
            return False
        raise
    assert refused is None, f"{recipe}: {refused}"
    are_far = []
    for one_of_ours, one_of_theirs in zip(found, expected, strict=True):
        assert (one_of_ours.shape, one_of_ours.dtype) == (one_of_theirs.shape, one_of_theirs.dtype), recipe
        level = 1 if one_of_ours.dtype == torch.uint8 else 1 / 255 / min(STD)
        are_far.append(((one_of_ours.double() - one_of_theirs.double()).abs() > 1.001 * level).flatten())
    # of one level less a later step can make several
    share = (
        1e-2 if len(recipe) > 1 or recipe[0][0] in MOVED or (len(given) > 2 and recipe[0][0] == "ColorJitter") else 0
    )
    assert torch.cat(are_far).double().mean() <= share, f"{recipe}, {channels} channels"
    return True


# RandomChoice is of single images there, and Normalize of floats
CONVERTED = [case for case in [*CASES, *VARIANTS] if case[0] not in ("Compose", "Normalize", "RandomChoice")]
CONVERTED += [("RandomErasing", (1,), {"value": "random"})]


@pytest.mark.parametrize("case", CONVERTED, ids=str)
def test_each_of_torchvisions_is_converted_to_the_one_of_its_name(case: Case) -> None:
    expected = repr(transforms.Compose([made(transforms, case)]))
    # the first transforms of torchvision make 0 of a fill of None, which some variants have
    modules = [v2()] if case in VARIANTS else [v2(), torchvision_or_skip().transforms]
    for module in modules:
        if hasattr(module, case[0]):
            converted = repr(from_torchvision(made(module, case)))
            # torchvision makes floats of some numbers
            assert converted.replace(".0", "") == expected.replace(".0", "")


def test_all_that_bear_a_name_of_torchvisions_are_compared() -> None:
    names = {name for name in transforms.__all__ if hasattr(v2(), name)}
    assert names == {name for name, _, _ in CASES} | ELSEWHERE
    for name in names:
        ours, theirs = (list(inspect.signature(getattr(of, name)).parameters.values()) for of in (transforms, v2()))
        given = [each.name for each in ours if each.kind == each.POSITIONAL_OR_KEYWORD]
        # of those that are left out none stands before another
        assert [each.name for each in theirs][: len(given)] == given or name == "Normalize", name


@pytest.fixture(params=["compiled", "torch"])
def _by(request: pytest.FixtureRequest, tune: Tune) -> None:
    """Transform with the compiled part, and without it."""
    if request.param == "torch":
        tune(compiled_transforms=0)
    elif not compiled.is_built():
        pytest.skip("the compiled part is not built here")


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("has_own_sizes", [False, True], ids=["one size", "own sizes"])
@pytest.mark.parametrize("case", VARIANTS, ids=lambda case: f"{case[0]} {case[1]} {case[2]}")
def test_each_gives_torchvisions_pixels_with_other_arguments(case: Case, has_own_sizes: bool) -> None:
    takes_three = any(isinstance(each, tuple) and len(each) == 3 for each in case[1])
    assert compared([case], 3, has_own_sizes, MANY) or has_own_sizes
    for channels in () if takes_three else (1, 4):
        compared([case], channels, has_own_sizes, MANY)


@pytest.mark.usefixtures("_by")
@pytest.mark.parametrize("has_own_sizes", [False, True], ids=["one size", "own sizes"])
def test_each_gives_torchvisions_pixels_in_every_position(has_own_sizes: bool) -> None:
    seen, missed = Counter[int](), set()
    for case, (length, position) in itertools.product(CASES, [(n, k) for n in (1, 2, 3) for k in range(n)]):
        for recipe in itertools.islice(with_others(case, length, position), 40 if length > 1 else 1):
            if compared(recipe, 3, has_own_sizes):
                seen.update(
                    channels for channels in (1, 3, 4) if channels == 3 or compared(recipe, channels, has_own_sizes)
                )
                break
        else:
            missed.add((case[0], length, position))
    if has_own_sizes:
        assert {"CenterCrop", "Resize", "RandomResizedCrop", "RandomHorizontalFlip"} & {
            name for name, *_ in missed
        } == set()
    else:
        # what computes levels takes no floats
        assert {name for name, *_ in missed} <= FLOATS
    assert min(seen.values()) > 50, seen


def test_saturation_of_gray_rows_changes_no_pixel() -> None:
    images = [pixels(row, height, width, 1) for row, height, width in ROWS]
    for transform in (transforms.ColorJitter(saturation=(0.3, 1.8)), transforms.ColorJitter((1, 1), 0, 0.7, 0)):
        for row, image in enumerate(images):
            assert torch.equal(transform(one(row, image)).pixels[0], image)
        assert torch.equal(transform(ragged(images, [7, 8])).pixels, torch.cat([image.reshape(-1) for image in images]))
