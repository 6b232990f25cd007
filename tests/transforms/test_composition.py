"""Compose, RandomApply, RandomChoice and views: how often, in which order, and other numbers for a second of a kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from augmenting import pictures

from packer import pack
from reader import ImageBatch, MemmapDataset, MemmapLoader
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    CutMix,
    GaussianBlur,
    Grayscale,
    MixUp,
    MultiCrop,
    MultiView,
    RandomApply,
    RandomChoice,
    RandomCrop,
    RandomErasing,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomSolarize,
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
    _, changed = shares(both(batch).pixels, batch.pixels, RandomInvert(1)(batch).pixels)
    assert 0.3 < changed < 0.7
    own = type("Own", (RandomInvert,), {})
    assert [transform.seed == 0 for transform in Compose([own(), RandomInvert()]).transforms] == [True, False]
    alone, twice = RandomInvert()(batch).pixels, Compose([RandomInvert(), MultiView([RandomInvert()])])(batch)[0][0]
    assert not torch.equal(twice.movedim(1, -1), RandomInvert()(RandomInvert()(batch)).pixels)
    assert torch.equal(RandomApply([RandomInvert(1)], 0)(batch).pixels, batch.pixels)
    # the given ones stay what they were
    assert torch.equal(invert(batch).pixels, alone)


@pytest.mark.parametrize(
    "transform",
    [
        RandomCrop(16, 2),
        Compose([RandomCrop(16), RandomHorizontalFlip()]),
        CenterCrop(16),
        RandomErasing(value="random"),
        RandomChoice([ColorJitter(0.4), RandomInvert()]),
        MixUp(num_classes=4),
        CutMix(num_classes=4),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_an_empty_batch_stays_empty(transform: Any) -> None:
    full = pictures(4)
    expected, made = transform(full), transform(full[:0])
    assert made.pixels.shape == (0, *expected.pixels.shape[1:])
    assert made.targets.shape == (0, *expected.targets.shape[1:])
    assert (made.pixels.dtype, made.targets.dtype) == (expected.pixels.dtype, expected.targets.dtype)


class Counted:
    """A program's own transform."""

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        return batch.replace(targets=batch.targets + 1)


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (ColorJitter, (0.4,)),
        (GaussianBlur, (3,)),
        (RandomHorizontalFlip, ()),
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
    for chain in ([Grayscale(3), RandomInvert(1)], [RandomInvert(1)]):
        made = RandomApply(chain, p)(batch)
        _, changed = shares(made.pixels, batch.pixels, Compose(chain)(batch).pixels)
        assert abs(changed - p) < 5 * (p * (1 - p) / 900) ** 0.5 + 1e-6
        assert torch.equal(RandomApply(chain, p)(batch[300:310]).pixels, made.pixels[300:310])


def test_one_of_several_is_called_for_a_batch_as_often_as_its_share_says(batch: ImageBatch) -> None:
    choice = RandomChoice([Grayscale(3), RandomInvert(1), RandomSolarize(0, 0)], p=[1, 3, 6])
    ways = [Grayscale(3)(batch).pixels, RandomInvert(1)(batch).pixels, batch.pixels]
    found = torch.zeros(3)
    for n in range(2, 900):
        which = [torch.equal(choice(batch[n : n + 3]).pixels, way[n : n + 3]) for way in ways]
        assert sum(which) == 1
        found += torch.tensor(which)
    assert (found / 898 - torch.tensor([0.1, 0.3, 0.6])).abs().max() < 5 * (0.25 / 898) ** 0.5


# -- views


def test_views_differ_and_each_follows_its_row() -> None:
    batch = pictures(12, size=(60, 60))
    sides, change = {"global_size": 32, "local_size": 16}, {"local_transform": RandomGrayscale()}
    crop = MultiCrop(2, 6, **sides, interpolation="bicubic", global_transform=ColorJitter(0.8), **change)  # type: ignore[arg-type]
    views, targets = crop(batch)
    assert [tuple(view.shape) for view in views] == [(12, 3, 32, 32)] * 2 + [(12, 3, 16, 16)] * 6
    assert torch.equal(targets, batch.targets)
    for group in (views[:2], views[2:]):
        # the first picture is of one level
        assert all(not torch.equal(a[n], b[n]) for a in group for b in group if a is not b for n in range(1, 12))
    assert all(torch.equal(a, b[4:7]) for a, b in zip(crop(batch[4:7])[0], views, strict=True))
    first = Compose([RandomResizedCrop(32, (0.4, 1), interpolation="bicubic"), ColorJitter(0.8)])
    assert torch.equal(views[0], first(batch).images)
    same, _ = MultiView([first] * 3)(batch)
    assert torch.equal(same[0], views[0])
    assert not torch.equal(same[1], same[2])


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
