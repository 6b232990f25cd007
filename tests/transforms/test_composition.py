"""Compose, RandomApply, RandomChoice: how often, and other numbers for a second of a kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from augmenting import many, pictures
from tensordict import TensorDict

import reader.transforms
from reader import ColorJitter, ImageBatch, Normalize, RandomCrop, RandomHorizontalFlip
from reader.transforms import (
    CenterCrop,
    Compose,
    CutMix,
    GaussianBlur,
    Grayscale,
    MixUp,
    Pad,
    RandomApply,
    RandomChoice,
    RandomErasing,
    RandomInvert,
    RandomSolarize,
    ResizeCenterCrop,
)


def shares(made: torch.Tensor, *alternatives: torch.Tensor) -> list[float]:
    """Return how many of the images are those of each alternative; each must be one of them."""
    found = torch.stack([(made == other).flatten(1).all(1) for other in alternatives])
    assert (found.sum(0) == 1).all()
    return found.float().mean(1).tolist()


@pytest.fixture(scope="module")
def batch() -> ImageBatch:
    return pictures(900, size=(6, 5))


def test_compose_calls_one_after_the_other(batch: ImageBatch) -> None:
    flip, jitter = RandomHorizontalFlip(), ColorJitter(0.4)
    assert torch.equal(Compose([flip, jitter])(batch).pixels, jitter(flip(batch)).pixels)
    assert Compose([flip, lambda made: made.images])(batch).shape == (900, 3, 6, 5)


def test_two_of_a_kind_draw_different_numbers(batch: ImageBatch) -> None:
    invert = RandomInvert()
    both = Compose([RandomApply([invert], 0.5), Compose([RandomApply([invert], 0.5)]), RandomInvert()])
    # an even number of inversions changes nothing: of two alike, there would be none that are changed once
    inverted = RandomInvert(1)(batch).pixels
    _, changed = shares(both(batch).pixels, batch.pixels, inverted)
    assert 0.3 < changed < 0.7
    seeds = {transform.seed for transform in both.transforms}
    assert len(seeds) == 3 - (both.transforms[0].seed == both.transforms[2].seed)
    assert invert.seed == 0
    assert both.transforms[0].transforms[0].seed == 0
    assert both.transforms[1].transforms[0].seed != 0


class OwnJitter(ColorJitter):
    """A program's own, made of one of ours."""


class OwnCompose(Compose):
    """A program's own, made of one of ours."""


def test_two_of_a_programs_own_kind_draw_different_numbers(batch: ImageBatch) -> None:
    own, ours = OwnJitter(0.5), ColorJitter(0.5)
    alone = ours.drawn(batch)[0]
    kept = Compose([own, GaussianBlur(3)]).transforms[0]
    assert kept is own
    for recipe in ([own, own], [ours, own], [own, ours], [Compose([ours]), RandomApply([own])]):
        made: list[Any] = Compose(recipe).transforms
        both = [each.transforms[0] if isinstance(each, RandomApply) else each for each in made]
        first, second = (each.drawn(batch)[0] for each in both)
        assert torch.equal(first, alone)
        assert not torch.equal(second, alone)
    within: list[Any] = Compose([OwnCompose([ours]), OwnCompose([ours])]).transforms
    assert within[0].transforms[0].seed != within[1].transforms[0].seed
    assert own.seed == ours.seed == 0


@pytest.mark.parametrize(
    "transform",
    [
        RandomCrop(16, 2),
        Compose([RandomCrop(16), RandomHorizontalFlip()]),
        CenterCrop(16),
        RandomErasing(value="random"),
        RandomChoice([ColorJitter(0.4), RandomInvert()]),
        MixUp(num_classes=3),
        CutMix(num_classes=3),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_an_empty_batch_stays_empty(transform: Any) -> None:
    full = pictures(4)
    full.targets = full.targets % 3
    expected, made = transform(full), transform(full[:0])
    assert made.pixels.shape == (0, *expected.pixels.shape[1:])
    assert made.targets.shape == (0, *expected.targets.shape[1:])
    assert (made.pixels.dtype, made.targets.dtype) == (expected.pixels.dtype, expected.targets.dtype)


class Counted:
    """A program's own transform; it has attributes of the names that ours have."""

    steps, where = 3, 4

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        return batch.replace(targets=batch.targets + 1)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ColorJitter, (0.4,)),
        (RandomInvert, (1.0,)),
        (GaussianBlur, (3,)),
        (Compose, ([RandomInvert(1)],)),
        (RandomApply, ([RandomInvert(1)], 1)),
        (object, ()),
    ],
)
@pytest.mark.parametrize(
    "within", [lambda own: Compose([RandomInvert(0), own, RandomSolarize(0, 0)]), lambda own: RandomApply([own], 1)]
)
def test_a_program_s_own_class_is_called_not_what_it_inherits_from(
    batch: ImageBatch, kind: Any, arguments: Any, within: Any
) -> None:
    own = type("Own", (Counted, kind), {"__module__": __name__})(*arguments)
    made = within(own)(batch)
    assert torch.equal(made.pixels, batch.pixels)
    assert torch.equal(made.targets, batch.targets + 1)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_as_many_go_through_as_p_says(batch: ImageBatch, p: float) -> None:
    chain = [Grayscale(3), RandomInvert(1)]
    made = RandomApply(chain, p)(batch)
    _, changed = shares(made.pixels, batch.pixels, Compose(chain)(batch).pixels)
    assert abs(changed - p) < 5 * (p * (1 - p) / 900) ** 0.5 + 1e-6
    assert torch.equal(RandomApply(chain, p)(batch[300:310]).pixels, made.pixels[300:310])
    assert torch.equal(made.rows, batch.rows)
    assert torch.equal(made.targets, batch.targets)


def test_one_of_several_is_called_for_a_batch_as_often_as_its_share_says(batch: ImageBatch) -> None:
    choice = RandomChoice([Grayscale(3), RandomInvert(1), RandomSolarize(0, 0)], p=[1, 3, 6])
    ways = [Grayscale(3)(batch).pixels, RandomInvert(1)(batch).pixels, batch.pixels]
    found = [0, 0, 0]
    for n in range(2, 900):
        made = choice(batch[n : n + 3]).pixels
        which = [torch.equal(made, way[n : n + 3]) for way in ways]
        assert sum(which) == 1
        found[which.index(True)] += 1
    for count, expected in zip(found, (0.1, 0.3, 0.6), strict=True):
        assert abs(count / 898 - expected) < 5 * (0.25 / 898) ** 0.5


def test_boxes_masks_and_content_come_from_the_part_that_an_image_went_through() -> None:
    batch = pictures(40, size=(12, 10))
    boxes, count = torch.tensor([[[1.0, 2.0, 4.0, 6.0]]]).repeat(40, 1, 1), torch.ones(40, dtype=torch.int32)
    masks = torch.arange(120, dtype=torch.uint8).view(12, 10).repeat(40, 1, 1)
    batch.extras = TensorDict({"boxes": boxes, "box_count": count, "masks": masks}, batch_size=[40])
    made = RandomApply([RandomHorizontalFlip(1)])(batch)
    is_flipped = (made.pixels == batch.pixels.flip(2)).flatten(1).all(1)
    assert 5 < is_flipped[1:].sum() < 35
    flipped = RandomHorizontalFlip(1)(batch)
    for n in range(1, 40):
        source = flipped if is_flipped[n] else batch
        assert torch.equal(made.extras["boxes"][n], source.extras["boxes"][n])
        assert torch.equal(made.extras["masks"][n], source.extras["masks"][n])
    batch = pictures(40, size=(12, 10))
    batch.content = torch.tensor([0, 0, 12, 10], dtype=torch.int32).repeat(40, 1)
    padded = RandomApply([Compose([Pad(2), RandomCrop((12, 10))])])(batch)
    wholes = (padded.content == batch.content).all(1)
    assert 5 < wholes.sum() <= 40


@pytest.mark.parametrize(
    ("make", "kind", "sentence"),
    [
        (lambda: Compose([]), ValueError, "transforms is .* expected a list of one or more"),
        (lambda: Compose([3]), TypeError, "transforms has 3, expected functions"),
        (lambda: RandomApply([Grayscale()], 2), ValueError, "p is 2"),
        (lambda: RandomChoice([Grayscale()], [1, 2]), ValueError, "p is .* a share for each of 1"),
        (
            lambda: RandomApply([ResizeCenterCrop(4)])(many(40, (8, 8))),
            ValueError,
            "a transform in it changed their size or type",
        ),
        (lambda: RandomApply([lambda batch: 3])(many(40)), ValueError, "a transform in it changed their size or type"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, kind: Any, sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        make()


def test_transforms_are_shown_with_their_settings() -> None:
    """Those of a Compose too; a print shows no address of memory."""
    recipe = Compose([RandomCrop(8, 2, seed=3), RandomApply([ColorJitter(0.4), GaussianBlur(3)], p=0.25), Pad(1)])

    shown = repr(recipe)

    assert shown.startswith("Compose(transforms=[RandomCrop(height=8, width=8, padding=Padding(left=2,")
    assert "RandomApply(transforms=[ColorJitter(brightness=(0.6, 1.4)" in shown
    assert "p=0.25" in shown
    assert " at 0x" not in shown


def test_every_transform_has_settings_to_show() -> None:
    transforms = [
        member
        for name in reader.transforms.__all__
        if isinstance(member := getattr(reader.transforms, name), type) and "__call__" in dir(member)
    ]

    assert len(transforms) > 30
    assert [transform for transform in transforms if transform.__repr__ is object.__repr__] == []


def test_normalize_is_shown_with_the_numbers_that_it_was_given() -> None:
    assert repr(Normalize([0.485, 0.5], [0.229, 0.25])) == (
        "Normalize(mean=[0.485, 0.5], std=[0.229, 0.25], dtype=torch.float32)"
    )
