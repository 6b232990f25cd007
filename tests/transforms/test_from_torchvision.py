"""torchvision's own objects made transforms of batches: the same names and arguments, or one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import many, pictures, v2
from conftest import torchvision_or_skip
from tensordict import TensorDict

from reader import ImageBatch, MultiView, Normalize, from_torchvision, transforms
from reader.transforms import Compose

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
# name and arguments, as both versions of torchvision have them
RECIPE: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("RandomResizedCrop", (20,), {"scale": (0.5, 1.0)}),
    ("RandomCrop", (20, 2), {"padding_mode": "reflect"}),
    ("CenterCrop", (20,), {}),
    ("Resize", (20,), {}),
    ("Resize", ((20, 18),), {}),
    ("Resize", (40,), {"max_size": 41}),
    ("Pad", (3,), {"fill": 7}),
    ("RandomHorizontalFlip", (0.3,), {}),
    ("ColorJitter", (0.4, 0.3, 0.2, 0.1), {}),
    ("ColorJitter", (), {"hue": 0.1}),
    ("RandomGrayscale", (0.3,), {}),
    ("Grayscale", (3,), {}),
    ("GaussianBlur", (3, (0.1, 2.0)), {}),
    ("RandomSolarize", (100, 0.3), {}),
    ("RandomPosterize", (3, 0.3), {}),
    ("RandomEqualize", (0.3,), {}),
    ("RandomAutocontrast", (0.3,), {}),
    ("RandomAdjustSharpness", (2, 0.3), {}),
    ("RandomInvert", (0.3,), {}),
    ("RandomRotation", (30,), {"fill": 9}),
    ("RandomAffine", (30, (0.1, 0.1), (0.8, 1.2), 10), {}),
    ("RandomErasing", (0.4,), {"value": 3}),
    ("RandAugment", (1, 5), {}),
    ("TrivialAugmentWide", (), {}),
    ("AutoAugment", (), {}),
    ("AugMix", (2,), {}),
    ("PILToTensor", (), {}),
    ("ConvertImageDtype", (torch.float32,), {}),
    ("Normalize", (MEAN, STD), {}),
]
NAMES = [f"{n}-{name}" for n, (name, _, _) in enumerate(RECIPE)]


def versions() -> list[Any]:
    return [torchvision_or_skip().transforms, v2()]


def same(made: Any, expected: Any) -> bool:
    """Say whether two transforms give the same for a batch."""
    ours, theirs = (transform(pictures(8, size=(30, 28))).pixels for transform in (made, expected))
    return bool(torch.equal(ours, theirs))


@pytest.mark.parametrize(("name", "given", "named"), RECIPE, ids=NAMES)
def test_each_is_ours_of_the_same_name_and_arguments(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    expected = Compose([getattr(transforms, name)(*given, **named)])
    for version in versions():
        assert same(from_torchvision(getattr(version, name)(*given, **named)), expected)


def test_a_recipe_within_a_recipe_becomes_one_of_ours() -> None:
    two = v2()
    floats = two.Compose([two.ToImage(), two.ToDtype(torch.float32, scale=True), two.Normalize(MEAN, STD)])
    jitter = two.RandomApply([two.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    choice = two.RandomChoice([two.RandomInvert(1), two.RandomGrayscale(1)], p=[0.2, 0.8])
    made = from_torchvision(two.Compose([two.RandomResizedCrop(20), jitter, choice, floats, two.RandomErasing(0.5)]))
    of_ours = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    ours = transforms.RandomChoice([transforms.RandomInvert(1), transforms.RandomGrayscale(1)], p=[0.2, 0.8])
    end = [transforms.Compose([Normalize(MEAN, STD)]), transforms.RandomErasing(0.5)]
    assert same(made, Compose([transforms.RandomResizedCrop(20), of_ours, ours, *end]))
    assert made(pictures(4, size=(30, 28))).pixels.dtype == torch.float32


def test_pixels_are_torchvisions_where_nothing_is_drawn() -> None:
    two, batch = v2(), pictures(6, size=(50, 40))
    floats = [two.ToImage(), two.ToDtype(torch.float32, scale=True), two.Normalize(MEAN, STD)]
    recipe = two.Compose([two.Resize(32), two.CenterCrop(28), *floats])
    made = from_torchvision(recipe)(batch).images
    torch.testing.assert_close(made, torch.stack([recipe(image) for image in batch.images]), atol=1e-5, rtol=1e-5)


UNDRAWN: dict[str, Callable[[Any], list[Any]]] = {
    "a crop resizes nothing": lambda t: [t.CenterCrop((20, 15))],
    "zeros around a smaller image": lambda t: [t.CenterCrop((61, 33))],
    "a crop behind a bicubic resize": lambda t: [t.Resize(36, t.InterpolationMode.BICUBIC), t.CenterCrop(32)],
    "a crop behind a resize of both sides": lambda t: [t.Resize((36, 44)), t.CenterCrop(31)],
    "an oblong crop behind a resize": lambda t: [t.Resize(36), t.CenterCrop((30, 27))],
    "a crop that is larger than the resized": lambda t: [t.Resize(30), t.CenterCrop(33)],
    "a crop in a recipe within": lambda t: [t.Resize(36), t.Compose([t.CenterCrop(32)])],
    "two sides of padding": lambda t: [t.RandomCrop((54, 46), padding=(3, 2), fill=9)],
    "four sides of padding": lambda t: [t.RandomCrop((56, 44), padding=[1, 2, 3, 4])],
    "padding of no level": lambda t: [t.Pad(2, fill=None)],
    "a kernel of two sides": lambda t: [t.GaussianBlur((3, 7), (1.5, 1.5))],
    "half floats": lambda t: [t.ConvertImageDtype(torch.float16), t.Normalize(MEAN, STD)],
}


@pytest.mark.parametrize("make", UNDRAWN.values(), ids=UNDRAWN.keys())
def test_each_gives_the_pixels_of_torchvision(make: Callable[[Any], list[Any]]) -> None:
    batch, two = pictures(4, size=(50, 40)), v2()
    recipe = two.Compose(make(two))
    made, expected = from_torchvision(recipe)(batch).images, torch.stack([recipe(image) for image in batch.images])
    assert made.dtype == expected.dtype
    torch.testing.assert_close(made, expected, atol=2e-3 if made.dtype.is_floating_point else 0, rtol=0)


def test_what_is_cut_without_a_resize_moves_boxes_and_masks() -> None:
    boxes = torch.tensor([[[10.0, 12.0, 20.0, 30.0]]])
    extras = {"boxes": boxes, "box_count": torch.ones(1, dtype=torch.int32)}
    masks = pictures(1, size=(50, 40)).pixels[..., 0]
    batch = ImageBatch(
        pixels=pictures(1, size=(50, 40)).pixels,
        targets=torch.zeros(1, dtype=torch.int64),
        rows=torch.arange(1),
        extras=TensorDict({**extras, "masks": masks}, batch_size=[1]),
        batch_size=[1],
    )
    made = from_torchvision(v2().CenterCrop((30, 20)))(batch)
    assert made.extras["boxes"].tolist() == [[[0.0, 2.0, 10.0, 20.0]]]
    assert torch.equal(made.extras["masks"], masks[:, 10:40, 10:30])
    assert torch.equal(made.pixels, batch.pixels[:, 10:40, 10:30])


def test_noise_is_noise_and_no_levels_are_made_of_floats() -> None:
    batch = pictures(4)
    assert same(from_torchvision(v2().RandomErasing(1, value="random")), transforms.RandomErasing(1, value="random"))
    assert not torch.equal(from_torchvision(v2().RandomErasing(1, value="random"))(batch).pixels, batch.pixels)
    with pytest.raises(
        ValueError, match="^ConvertImageDtype takes uint8 pixels, and what comes before it makes them floats"
    ):
        transforms.Compose([transforms.ToTensor(), transforms.ConvertImageDtype(torch.uint8)])


def test_what_has_no_transform_of_batches_is_refused_with_the_way_out() -> None:
    two = v2()
    way = (
        r"Leave the recipe to the dataset, MemmapDataset\(\.\.\., transform=\.\.\.\), which calls it for each image\.$"
    )
    with pytest.raises(
        TypeError, match=f"^RandomVerticalFlip of torchvision has no transform of batches of its name. {way}"
    ):
        from_torchvision(two.Compose([two.RandomVerticalFlip()]))
    with pytest.raises(TypeError, match=f"is not a transform of torchvision. {way}"):
        from_torchvision(two.Compose([lambda image: image]))
    with pytest.raises(TypeError, match=r"^reader\.transforms\.composition\.Compose is not a transform of torchvision"):
        from_torchvision(Compose([transforms.RandomInvert()]))
    with pytest.raises(ValueError, match="^RandomResizedCrop of torchvision has antialias=False"):
        from_torchvision(two.RandomResizedCrop(30, antialias=False))
    with pytest.raises(ValueError, match="expand=True"):
        from_torchvision(two.RandomRotation(30, expand=True))
    with pytest.raises(TypeError, match=r"^MixUp of torchvision mixes a batch .* Take reader\.transforms\.MixUp\.$"):
        from_torchvision(two.MixUp(num_classes=3))
    with pytest.raises(ValueError, match="^interpolation is"):
        from_torchvision(two.RandomResizedCrop(30, interpolation=two.InterpolationMode.NEAREST))


def test_views_of_one_transform_differ() -> None:
    batch = many(50, (24, 20))
    pixels = pictures(50).pixels
    batch = ImageBatch(pixels=pixels, targets=batch.targets, rows=batch.rows, batch_size=[50])
    recipe = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ColorJitter(0.4, 0.4, 0.4)])
    views, targets = MultiView([recipe] * 3)(batch)
    assert [tuple(view.shape) for view in views] == [(50, 3, 16, 16)] * 3
    assert torch.equal(targets, batch.targets)
    assert torch.equal(views[0], recipe(batch).images)
    for other in views[1:]:
        assert (views[0] != other).flatten(1).any(1).sum() > 45
    with pytest.raises(ValueError, match="expected a list of one or more"):
        MultiView([])
