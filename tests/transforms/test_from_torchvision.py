"""torchvision's own objects made transforms of batches: the same names and arguments, or one sentence that says what to do."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import difference, many, pictures, v2
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
    ("RandomVerticalFlip", (0.3,), {}),
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


class ToTensor:
    """Make a tensor of a PIL image, as a library other than torchvision does."""

    def __call__(self, image: Any) -> torch.Tensor:
        return v2().functional.pil_to_tensor(image)


class MaybeToTensor(ToTensor):
    """Make a tensor of what is none."""


class Recipe:
    """Calls torchvision's, as the classes of references/classification/presets.py do."""

    def __init__(self, steps: list[Any]) -> None:
        self.transforms = importlib.import_module("torchvision.transforms").Compose(steps)

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class ClassificationPresetEval(Recipe):
    """As torchvision's repository has it."""


# Makes a recipe of a version: the steps of images alone, by name, and what runs for each image.
PER_IMAGE: dict[str, tuple[Callable[[Any], list[Any]], str]] = {
    "a function": (
        lambda t: [t.CenterCrop(30), rolled],
        "rolled is not a transform of torchvision. So for each image by itself: rolled",
    ),
    "a function of PIL images": (
        lambda t: [t.CenterCrop(30), lambda image: image.convert("L"), t.PILToTensor()],
        "<lambda>, PILToTensor; on batches: the 1 steps before",
    ),
    "PIL images, and a ToTensor that is not torchvision's, as lightly has": (
        lambda t: [t.CenterCrop(30), lambda image: image.convert("L"), ToTensor()],
        "<lambda>, ToTensor; on batches: the 1 steps before",
    ),
    "PIL images, and a ToTensor of a name of its own, as open_clip has": (
        lambda t: [t.CenterCrop(30), lambda image: image.convert("L"), MaybeToTensor()],
        "<lambda>, MaybeToTensor; on batches: the 1 steps before",
    ),
    "a function behind a conversion": (
        lambda t: [
            t.CenterCrop(30),
            t.PILToTensor(),
            rolled,
            t.ConvertImageDtype(torch.float32),
            t.Normalize(MEAN, STD),
        ],
        "rolled, ConvertImageDtype, Normalize; on batches: the 2 steps before",
    ),
    "a function of floats": (
        lambda t: [t.CenterCrop(30), t.ConvertImageDtype(torch.float32), t.Normalize(MEAN, STD), rolled],
        "rolled; on batches: the 3 steps before",
    ),
    "PIL images, in a recipe of the program's": (
        lambda t: [t.CenterCrop(30), Recipe([t.RandomVerticalFlip(1), t.PILToTensor()])],
        "Recipe; on batches: the 1 steps before",
    ),
    "a transform of its alone": (
        lambda t: [t.RandomVerticalFlip(1), t.RandomPerspective(0, 1)],
        "RandomPerspective of torchvision has no",
    ),
    "an argument of its alone": (
        lambda t: [t.RandomRotation((20, 20), expand=True), t.Pad(1)],
        "expand=True.* RandomRotation, Pad",
    ),
    "floats that are erased and normalized": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.RandomErasing(0), t.Normalize(MEAN, STD)],
        "itself: Normalize; on batches: the 2",
    ),
    "levels of floats that are erased": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.RandomErasing(0), t.GaussianBlur(3, (1, 1))],
        "itself: GaussianBlur; on batches: the 2",
    ),
    "floats that become levels again": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.RandomErasing(0), t.ConvertImageDtype(torch.uint8)],
        "itself: ConvertImageDtype; on batches: the 2",
    ),
    "tensors that are not averaged": (
        lambda t: [t.RandomResizedCrop(9, (1, 1), (1, 1), antialias=None), t.Pad(1)],
        "antialias=None, which no transform of batches takes",
    ),
    "one within another": (
        lambda t: [t.Compose([t.CenterCrop(30), t.Compose([rolled])]), t.Pad(1)],
        "rolled, Pad; on batches: the 1",
    ),
}


def rolled(image: Any) -> Any:
    """Shift an image by a pixel."""
    return torch.roll(image, 1, -1)


@pytest.mark.parametrize("name", PER_IMAGE)
def test_what_has_no_transform_of_batches_runs_for_each_image_and_is_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    make, warning = PER_IMAGE[name]
    batch = pictures(4, size=(50, 40))
    for version in versions():
        caplog.clear()
        recipe = version.Compose(make(version))
        converted = from_torchvision(recipe)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert re.search(warning, caplog.messages[0])
        made = converted(batch)
        images = made[0] if isinstance(made, tuple) else made.images
        takes_pil = "PIL" in name
        given = [version.ToPILImage()(image) if takes_pil else image for image in batch.images]
        # v1 has no conversion of tensors
        steps = [step for step in recipe.transforms if takes_pil or type(step).__name__ != "PILToTensor"]
        expected = torch.stack([version.Compose(steps)(image) for image in given])
        torch.testing.assert_close(images, expected, atol=1e-5 if images.dtype.is_floating_point else 0, rtol=0)


class Seen:
    """Notes what it is called with, and returns it."""

    def __init__(self) -> None:
        self.kinds = set[tuple[str, object]]()

    def __call__(self, image: Any) -> Any:
        self.kinds.add((type(image).__name__, getattr(image, "dtype", None)))
        return image


# Of PIL images, as ImageFolder gives them; those of v2 alone have a True.
CONVERSIONS: dict[str, tuple[Callable[[Any, Seen], list[Any]], bool]] = {
    "PIL images of tensors": (
        lambda t, seen: [t.RandomCrop(20), seen, t.ToTensor(), t.Normalize(MEAN, STD)],
        False,
    ),
    "PIL images of floats": (lambda t, seen: [t.ToTensor(), t.ToPILImage(), seen, t.ToTensor()], False),
    "PIL images of levels": (
        lambda t, seen: [t.PILToTensor(), t.RandomPerspective(p=0), t.ToPILImage(), seen, t.ToTensor()],
        False,
    ),
    "floats": (lambda t, seen: [t.ToTensor(), t.Normalize(MEAN, STD), seen, t.ToImage()], True),
    "levels": (lambda t, seen: [t.PILToTensor(), seen, t.ToImage(), t.ConvertImageDtype(torch.float32)], True),
    "a tv_tensor": (lambda t, seen: [t.ToImage(), seen, t.ConvertImageDtype(torch.float32)], True),
    "a tv_tensor before PIL images": (lambda t, seen: [t.ToImage(), seen, t.ToPILImage(), t.ToTensor()], True),
    "a plain tensor": (lambda t, seen: [t.ToImage(), t.ToPureTensor(), seen, t.ToPILImage(), t.ToTensor()], True),
    "a type by kind": (
        lambda t, seen: [t.ToImage(), t.ToDtype({tv_image(): torch.float32, "others": None}, scale=True), seen],
        True,
    ),
}


def tv_image() -> Any:
    return importlib.import_module("torchvision.tv_tensors").Image


@pytest.mark.parametrize(("make", "is_of_v2"), CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_what_runs_for_each_image_gets_what_it_gets_in_torchvision(
    make: Callable[[Any, Seen], list[Any]], is_of_v2: bool
) -> None:
    batch = pictures(4, size=(20, 20))
    for version in versions()[is_of_v2:]:
        ours, theirs = Seen(), Seen()
        images, _ = from_torchvision(version.Compose(make(version, ours)))(batch)
        recipe = version.Compose(make(version, theirs))
        expected = torch.stack([recipe(v2().functional.to_pil_image(image)) for image in batch.images])
        assert ours.kinds == theirs.kinds != set()
        torch.testing.assert_close(images, expected.as_subclass(torch.Tensor), atol=1e-5, rtol=0)


def test_a_recipe_that_begins_with_tensors_makes_pil_images_itself() -> None:
    batch = pictures(4, size=(20, 20))
    for version in versions():
        recipe = version.Compose([version.ToPILImage(), version.CenterCrop(16), version.PILToTensor()])
        assert torch.equal(from_torchvision(recipe)(batch).images, torch.stack([*map(recipe, batch.images)]))


def test_views_that_run_for_each_image_are_images_and_draw_by_themselves() -> None:
    two = v2()

    def noisy(image: Any) -> Any:
        return image ^ torch.randint(1, 255, (3, 1, 1), dtype=torch.uint8)

    floats = two.Compose([two.CenterCrop(30), noisy, two.ConvertImageDtype(torch.float32)])
    batch = pictures(4, size=(50, 40))
    views, targets = transforms.MultiView([from_torchvision(floats)] * 2)(batch)
    assert [view.shape for view in views] == [(4, 3, 30, 30)] * 2
    assert all(not torch.equal(one, other) for one, other in zip(*views, strict=True))
    assert targets is batch.targets


def test_recipes_that_are_objects_are_those_of_their_steps(caplog: pytest.LogCaptureFixture) -> None:
    batch = pictures(4, size=(50, 40))
    for version in versions():
        steps = [version.Resize(32), version.CenterCrop(28), version.PILToTensor()]
        expected = from_torchvision(version.Compose(steps))(batch).images
        assert torch.equal(from_torchvision(ClassificationPresetEval(steps))(batch).images, expected)
        assert caplog.records == []
        # by PIL images, which differ by a level or two
        own = from_torchvision(Recipe(steps))(batch).images
        assert (own.int() - expected.int()).abs().max() <= 2
        assert "Recipe is not a transform of torchvision" in caplog.text
        caplog.clear()


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_presets_become_transforms_of_batches(interpolation: str, caplog: pytest.LogCaptureFixture) -> None:
    presets = importlib.import_module(f"{versions()[0].__name__}._presets")
    batch, mode = pictures(6, size=(50, 40)), v2().InterpolationMode(interpolation)
    # of noise bicubic levels that overshoot are cut at another time
    batch = batch[2:]
    for preset in (
        presets.ImageClassification(crop_size=28, resize_size=32, interpolation=mode),
        presets.SemanticSegmentation(resize_size=30, interpolation=mode),
        presets.SemanticSegmentation(resize_size=None),
        presets.ObjectDetection(),
    ):
        made = from_torchvision(preset)(batch).images
        expected = torch.stack([preset(v2().ToPILImage()(image)) for image in batch.images])
        assert (made - expected).abs().max() < 2.1 / 255 / min(STD)
    assert caplog.records == []
    own = from_torchvision(presets.ImageClassification(crop_size=28, interpolation=v2().InterpolationMode.NEAREST))
    assert own(batch)[0].shape == (4, 3, 28, 28)
    assert "ImageClassification" in caplog.messages[0]


# A recipe whose antialias is None, and whether it gets PIL images, of which None is True.
NO_ANTIALIAS: dict[str, tuple[Callable[[Any, Any], list[Any]], bool]] = {
    "alone": (lambda t, antialias: [t.Resize(9, antialias=antialias)], False),
    "bicubic": (lambda t, antialias: [t.Resize((9, 8), t.InterpolationMode.BICUBIC, antialias=antialias)], False),
    "a box": (lambda t, antialias: [t.RandomResizedCrop(9, (1, 1), (1, 1), antialias=antialias)], False),
    "behind a conversion": (lambda t, antialias: [t.PILToTensor(), t.Resize(9, antialias=antialias)], False),
    "within": (
        lambda t, antialias: [t.RandomApply([t.Resize(9, antialias=antialias)], 1), t.Pad(1)],
        False,
    ),
    "before a conversion": (lambda t, antialias: [t.Resize(9, antialias=antialias), t.PILToTensor()], True),
}


@pytest.mark.parametrize(("make", "are_pil"), NO_ANTIALIAS.values(), ids=NO_ANTIALIAS.keys())
def test_antialias_of_none_is_what_it_is_to_torchvision(make: Callable[[Any, Any], list[Any]], are_pil: bool) -> None:
    # of noise bicubic levels that overshoot are cut at another time
    batch = pictures(6, size=(50, 50))[2:]
    for version in versions():
        images = from_torchvision(version.Compose(make(version, None)))(batch).images
        if are_pil:
            assert torch.equal(images, from_torchvision(version.Compose(make(version, True)))(batch).images)
            continue
        # v1 has no conversion of tensors
        steps = [step for step in make(version, None) if type(step).__name__ != "PILToTensor"]
        expected = torch.stack([*map(version.Compose(steps), batch.images)])
        # v1 rounds floats
        assert difference(images, expected) <= 1


def test_what_mixes_batches_or_is_called_with_them_is_refused() -> None:
    two = v2()
    with pytest.raises(TypeError, match=r"^MixUp of torchvision mixes a batch .* Take pixpack\.transforms\.MixUp\.$"):
        from_torchvision(two.Compose([two.CenterCrop(4), two.MixUp(num_classes=3)]))
    with pytest.raises(TypeError, match=r"^RandomInvert takes batches, and stands behind RandomPerspective"):
        from_torchvision(two.Compose([two.RandomPerspective(), transforms.RandomInvert()]))
    with pytest.raises(TypeError, match="^transform is 3, expected one of torchvision's"):
        from_torchvision(3)
    assert same(from_torchvision(torch.nn.Sequential(two.RandomInvert(1))), transforms.RandomInvert(1))
    assert same(
        from_torchvision(two.Compose([two.CenterCrop(9), transforms.RandomInvert(1)])),
        Compose([transforms.CenterCrop(9), transforms.RandomInvert(1)]),
    )


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
