"""torchvision's own objects made transforms of batches: the same names and arguments, or one sentence that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import pictures, v2
from conftest import torchvision_or_skip

from reader import Normalize, from_torchvision, transforms
from reader.transforms import Compose

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def versions() -> list[Any]:
    return [torchvision_or_skip().transforms, v2()]


def same(made: Any, expected: Any) -> bool:
    """Return whether two transforms give the same for a batch."""
    ours, theirs = (transform(pictures(8, size=(30, 28))).pixels for transform in (made, expected))
    return bool(torch.equal(ours, theirs))


def test_a_recipe_within_a_recipe_becomes_one_of_ours() -> None:
    two = v2()
    floats = two.Compose([two.ToImage(), two.ToDtype(torch.float32, scale=True), two.Normalize(MEAN, STD)])
    jitter = two.RandomApply([two.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    made = from_torchvision(two.Compose([two.RandomResizedCrop(20), jitter, floats, two.RandomErasing(0.5)]))
    of_ours = transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    erasing = transforms.RandomErasing(0.5, value=[round(255 * mean) for mean in MEAN])
    assert same(made, Compose([transforms.RandomResizedCrop(20), of_ours, erasing, Normalize(MEAN, STD)]))
    assert made(pictures(4, size=(30, 28))).pixels.dtype == torch.float32
    assert same(from_torchvision(torch.nn.Sequential(two.RandomInvert(1))), transforms.RandomInvert(1))


def test_recipes_of_timm_become_ours_where_each_step_has_its_like() -> None:
    v2()
    create = pytest.importorskip("timm.data", reason="timm is not installed").create_transform
    train = [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ColorJitter(0.4, 0.4, 0.4)]
    val = [transforms.Resize(32), transforms.CenterCrop(28)]
    for made, expected in ((create(24, is_training=True), train), (create(28), val)):
        assert repr(from_torchvision(made)) == repr(Compose([*expected, Normalize(MEAN, STD)]))
    with pytest.raises(TypeError, match=r"the step timm\.data\.auto_augment\.RandAugment has no"):
        from_torchvision(create(24, is_training=True, auto_augment="rand-m9"))


UNDRAWN: dict[str, Callable[[Any], list[Any]]] = {
    "a crop behind a bicubic resize": lambda t: [t.Resize(36, t.InterpolationMode.BICUBIC), t.CenterCrop(32)],
    "a crop behind a resize of both sides": lambda t: [t.Resize((36, 44)), t.CenterCrop(31)],
    "an oblong crop behind a resize": lambda t: [t.Resize(36), t.CenterCrop((30, 27))],
    "a crop that is larger than the resized": lambda t: [t.Resize(30), t.CenterCrop(33)],
    "two sides of padding": lambda t: [t.RandomCrop((54, 46), padding=(3, 2), fill=9)],
    "four sides of padding": lambda t: [t.RandomCrop((56, 44), padding=[1, 2, 3, 4])],
    "floats that are cut": lambda t: [t.ConvertImageDtype(torch.float32), t.Resize(36), t.CenterCrop(32)],
    "floats that are padded": lambda t: [
        t.ConvertImageDtype(torch.float32),
        t.Pad(3, fill=0.2),
        t.Normalize(MEAN, STD),
    ],
    "normalized floats that are padded": lambda t: [
        t.ConvertImageDtype(torch.float32),
        t.Normalize(MEAN, STD),
        t.Pad(3, fill=0.5),
    ],
    "half floats": lambda t: [t.ConvertImageDtype(torch.float16), t.Normalize(MEAN, STD)],
}


@pytest.mark.parametrize("make", UNDRAWN.values(), ids=UNDRAWN.keys())
def test_each_gives_the_pixels_of_torchvision(make: Callable[[Any], list[Any]]) -> None:
    batch, two = pictures(4, size=(50, 40)), v2()
    recipe = two.Compose(make(two))
    made, expected = from_torchvision(recipe)(batch).images, torch.stack([recipe(image) for image in batch.images])
    assert made.dtype == expected.dtype
    # of floats half a level, which torchvision does not round, and fills are rounded to levels
    level = (
        1.01 / 255 / min(STD) if any(type(step).__name__ == "Normalize" for step in recipe.transforms) else 1.01 / 255
    )
    torch.testing.assert_close(made, expected, atol=level if made.dtype.is_floating_point else 0, rtol=0)


def rolled(image: Any) -> Any:
    """Shift an image by a pixel."""
    return torch.roll(image, 1, -1)


# Steps that have no transform of batches, and what is said.
UNKNOWN: dict[str, tuple[Callable[[Any], list[Any]], str]] = {
    "a function": (lambda t: [t.CenterCrop(30), rolled], "the step rolled has no transform of batches"),
    "a transform of its alone": (lambda t: [t.RandomPerspective(0, 1)], "the step RandomPerspective has no transform"),
    "one in a RandomApply": (lambda t: [t.RandomApply([t.ElasticTransform()])], "the step ElasticTransform has no"),
    "a program's own": (lambda t: [type("ToTensor", (), {})()], r"the step \w+\.ToTensor has no"),
    "one of single images": (lambda t: [t.RandomChoice([t.RandomInvert(1)])], "the step RandomChoice has no"),
    "colors of floats": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.ColorJitter(0.4)],
        "the step ColorJitter of floats has no",
    ),
    "levels of floats": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.ConvertImageDtype(torch.uint8)],
        "gives no floats",
    ),
    "levels that are normalized": (lambda t: [t.Normalize(MEAN, STD)], "the step Normalize has no"),
    "twice normalized": (
        lambda t: [t.ConvertImageDtype(torch.float32), t.Normalize(MEAN, STD), t.Normalize(MEAN, STD)],
        "the step Normalize has no",
    ),
    "not averaged": (lambda t: [t.Resize(9, antialias=False)], "the step Resize: it has antialias=False, and here"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_step_is_named_with_the_line_of_a_dataloader(name: str) -> None:
    make, message = UNKNOWN[name]
    for version in versions():
        with pytest.raises((TypeError, ValueError), match=message) as raised:
            from_torchvision(version.Compose(make(version)))
        assert "DataLoader(MemmapDataset(path, transform=recipe, as_pil=True)" in str(raised.value)
