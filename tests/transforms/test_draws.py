"""What is drawn: a function of seed, epoch, position and row alone, spread as torchvision and timm spread it."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, labelled, many, pictures, v2
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, WeightedRandomSampler

from reader import ImageBatch, MemmapDataset, MemmapLoader, transforms
from reader.epoch import in_epoch, with_origin
from reader.transforms import (
    ColorJitter,
    GaussianBlur,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomRotation,
    TrivialAugmentWide,
)
from reader.transforms.policies import OPERATIONS
from reader.transforms.random import draw

ALL = [
    RandomHorizontalFlip(seed=3),
    RandomCrop((24, 30), padding=2, seed=3),
    RandomResizedCrop((20, 24), seed=3),
    RandomRotation(30, seed=3),
    RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10, "bilinear", seed=3),
    ColorJitter(0.4, 0.4, 0.4, 0.1, seed=3),
    GaussianBlur(3, seed=3),
    RandomErasing(1, value="random", seed=3),
    RandAugment(3, 20, seed=3),
    RandomApply([RandomInvert()], seed=3),
]
CUT = RandomResizedCrop(16)


def name_of(transform: Any) -> str:
    return type(transform).__name__


def of_rows(rows: list[int], has_labels: bool) -> ImageBatch:
    """Make a batch whose pixels are noise by the row, with content, and with boxes and masks if asked."""
    batch = labelled(len(rows))
    batch.extras = batch.extras if has_labels else None
    noise = [torch.Generator().manual_seed(row) for row in rows]
    batch.pixels = torch.stack(
        [torch.randint(0, 256, (30, 41, 3), dtype=torch.uint8, generator=each) for each in noise]
    )
    batch.rows = batch.targets = torch.tensor(rows)
    return batch


def are_equal(a: ImageBatch, b: ImageBatch) -> bool:
    ours, others = a.to_dict(), b.to_dict()
    extras, other_extras = ours.pop("extras"), others.pop("extras")
    pairs = [(ours[name], others[name]) for name in ours] + [
        (extras[name], other_extras[name]) for name in extras or ()
    ]
    return all(a is b if a is None or b is None else torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("transform", ALL, ids=name_of)
@settings(max_examples=12)
@given(rows=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6, unique=True), epoch=st.integers(0, 1 << 40))
def test_what_a_row_becomes_depends_on_seed_epoch_and_row_alone(transform: Any, rows: list[int], epoch: int) -> None:
    torch.manual_seed(len(rows))
    has_labels = not isinstance(transform, RandomRotation | RandomAffine | RandAugment)
    batch = of_rows(rows, has_labels)
    with in_epoch(epoch):
        full, parts = transform(batch), [transform(of_rows([row], has_labels)) for row in reversed(rows)]
    for n, part in enumerate(reversed(parts)):
        assert are_equal(full[n : n + 1], part)
    # the given batch is not changed
    assert are_equal(batch, of_rows(rows, has_labels))


def test_the_random_numbers_stay_what_they_are() -> None:
    """A checkpoint continues with the augmentation that it began with."""
    batch = many(3)
    batch.rows = torch.tensor([0, 1, 1 << 33])
    with in_epoch(3):
        assert draw(batch, 7, range(1, 3)).tolist() == [
            [0.4367661717428839, 0.8509054773853965, 0.9157201111085453],
            [0.3019706071869446, 0.9804942022819285, 0.8034306195636919],
        ]
    batch = many(2)
    batch.rows = torch.tensor([7, 8])
    drawn = draw(with_origin(batch, epoch=3, position=40, seed=5), 1, range(2)).flatten().tolist()
    frozen = [0.46003894940691425, 0.24467332472600067, 0.4036699074510779, 0.0970828683634315]
    assert drawn == pytest.approx(frozen, abs=1e-15)


def test_drawn_numbers_are_uniform_and_independent() -> None:
    drawn = draw(many(20_000), 0, range(28))
    assert ((drawn >= 0) & (drawn < 1)).all()
    # of 28 streams and 378 pairs of them, by five standard deviations
    assert (drawn.mean(1) - 0.5).abs().max() < 5 / math.sqrt(12 * 20_000)
    assert (torch.corrcoef(drawn) - torch.eye(28)).abs().max() < 5 / math.sqrt(20_000)


# -- as torchvision draws


def ones(count: int, make: Any) -> torch.Tensor:
    """Draw for batches of one row: what is drawn for a whole batch."""
    batch = many(1, (30, 41))
    found = []
    for row in range(count):
        batch.rows = torch.tensor([row])
        found.append(make(batch).flatten())
    return torch.stack(found).T


AFFINE = {"degrees": 40, "translate": (0.2, 0.3), "scale": (0.7, 1.4), "shear": (-20, 20, -10, 15)}
# name and arguments, what ours draws, in columns, and the same of torchvision's parameters
SPREADS: list[tuple[str, dict[str, Any], Any, Any]] = [
    (
        "RandomAffine",
        AFFINE,
        lambda t: torch.cat([each.view(4000, -1).T for each in t.drawn(many(size=(30, 41)))]),
        lambda p: [p["angle"], *p["translate"], p["scale"], *p["shear"]],
    ),
    *(
        (
            "RandomResizedCrop",
            {"size": 8} | named,
            lambda t: torch.stack([(b := t.boxes(many(size=(30, 41))).T)[1], b[0], b[3] - b[1], b[2] - b[0]]),
            lambda p: [p["top"], p["left"], p["height"], p["width"]],
        )
        # the second often ends with the central box
        for named in ({}, {"scale": (0.5, 1), "ratio": (0.4, 0.6)}, {"scale": (0.01, 0.02), "ratio": (1, 1)})
    ),
    ("RandomRotation", {"degrees": (-10, 70)}, lambda t: t.angles(many())[None], lambda p: [p["angle"]]),
    (
        "RandomErasing",
        {"p": 1.0},
        lambda t: torch.stack([(b := t.boxes(many(size=(30, 41))).T)[1], b[0], b[3] - b[1], b[2] - b[0]]),
        lambda p: [p["i"], p["j"], p["h"], p["w"]],
    ),
    (
        "GaussianBlur",
        {"kernel_size": 5, "sigma": (0.3, 1.9)},
        lambda t: t.sigmas(many())[None],
        lambda p: p["sigma"][:1],
    ),
    (
        "ColorJitter",
        {"brightness": 0.4, "contrast": (0.2, 1.5), "saturation": 0.9, "hue": (-0.1, 0.3)},
        lambda t: torch.cat([t.drawn(many())[0], (t.drawn(many())[1] * torch.tensor([64, 16, 4, 1])).sum(1)[None]]),
        lambda p: [
            *(p[f"{name}_factor"] for name in ("brightness", "contrast", "saturation", "hue")),
            int((p["fn_idx"] * torch.tensor([64, 16, 4, 1])).sum()),
        ],
    ),
    *(
        ("MixUp", {"alpha": alpha, "num_classes": 2}, lambda t: ones(1500, t.share), lambda p: [p["lam"]])
        for alpha in (0.2, 1.0, 2.0)
    ),
    ("CutMix", {"num_classes": 2}, lambda t: ones(1500, t.box), lambda p: p["box"]),
]


@pytest.mark.parametrize(("name", "named", "ours", "theirs"), SPREADS, ids=[name for name, *_ in SPREADS])
def test_parameters_are_spread_as_torchvisions(name: str, named: dict[str, Any], ours: Any, theirs: Any) -> None:
    found = ours(getattr(transforms, name)(**named))
    other, image = getattr(v2(), name)(**named), torch.zeros(1, 3, 30, 41)
    given: list[Any] = [image] if name == "CutMix" else [image[0]]
    made = [other.make_params(given) for _ in range(found.shape[1])]
    expected = torch.tensor([theirs(each) for each in made if each.get("v", 0) is not None]).T
    if name == "RandomErasing":
        found = found[:, found[2] > 0]
    assert len(found) == len(expected)
    for one, another in zip(found, expected, strict=True):
        assert_same_distribution(one, another)


def steps_of(drawn: Any, n: int) -> list[tuple[str, float]]:
    """Return the steps of one image, as torchvision names them."""
    return [(OPERATIONS[int(operation[n])], float(magnitude[n])) for operation, magnitude in drawn]


@pytest.mark.parametrize("given", [{"num_ops": 3, "magnitude": 12}, {}])
def test_operations_and_magnitudes_are_spread_as_torchvisions(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = RandAugment if given else TrivialAugmentWide
    theirs, of_theirs = getattr(v2(), kind.__name__)(**given), []

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        of_theirs.append((name, magnitude))
        return image

    monkeypatch.setattr(theirs, "_apply_image_or_video_transform", note)
    for _ in range(3000):
        theirs(torch.zeros(3, 30, 41, dtype=torch.uint8))
    of_theirs = [step for step in of_theirs if step[0] != "Identity"]
    drawn = kind(**given).drawn(many(3000, (30, 41)))
    of_ours = [step for n in range(3000) for step in steps_of(drawn, n) if step[0] != "Identity"]
    counts = [Counter(step for step, _ in steps) for steps in (of_ours, of_theirs)]
    for operation in counts[0].keys() | counts[1].keys():
        a, b = (count[operation] for count in counts)
        assert abs(a - b) < 5 * (a + b + 1) ** 0.5, operation
        if operation not in ("AutoContrast", "Equalize", "Invert"):
            assert_same_distribution(*([m for step, m in steps if step == operation] for steps in (of_ours, of_theirs)))


P = [(name, ()) for name in ("RandomGrayscale", "RandomInvert", "RandomEqualize", "RandomAutocontrast")]
P += [("RandomSolarize", (100,)), ("RandomPosterize", (3,)), ("RandomAdjustSharpness", (2,)), ("RandomErasing", ())]  # type: ignore[list-item]
P += [("RandomHorizontalFlip", ()), ("RandomVerticalFlip", ())]


@pytest.mark.parametrize(("name", "given"), P, ids=[name for name, _ in P])
def test_as_many_are_changed_as_p_says(name: str, given: tuple[Any, ...]) -> None:
    batch, kind = pictures(800, size=(20, 18)), getattr(transforms, name)
    named = {"scale": (0.1, 0.1), "ratio": (1, 1)} if name == "RandomErasing" else {}
    sure, made = kind(*given, p=1, **named)(batch).pixels, kind(*given, p=0.3, **named)(batch).pixels
    is_made, is_left = ((made == other).flatten(1).all(1) for other in (sure, batch.pixels))
    assert (is_made | is_left).all()
    can_change = ~(sure == batch.pixels).flatten(1).all(1)
    assert abs(float((is_made & ~is_left).sum() / can_change.sum()) - 0.3) < 5 * (0.25 / 800) ** 0.5


# -- in programs


def epochs(loader: Any, view: Any = lambda batch: batch.images) -> list[torch.Tensor]:
    """Return the images of two epochs, in store order."""
    return [torch.cat([view(batch) for batch in loader]) for _ in range(2)]


def cut(rows: Any) -> torch.Tensor:
    return CUT(rows).images


def test_crops_in_the_loop_are_those_of_the_transform_and_other_ones_each_epoch(train: MemmapDataset) -> None:
    inside = epochs(MemmapLoader(train, 16, seed=1, transform=CUT), lambda pair: pair[0])
    outside = epochs(MemmapLoader(train, 16, seed=1, as_tuple=False), cut)
    other = epochs(MemmapLoader(train, 16, seed=2, transform=CUT), lambda pair: pair[0])
    assert not torch.equal(*outside)
    assert all(torch.equal(a, b) for a, b in zip(inside, outside, strict=True))
    assert not torch.equal(inside[0], other[0])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("way", ["in the loop", "collate_fn", "persistent workers", "rows of two stores"])
def test_crops_behind_torchs_dataloader_are_other_ones_each_epoch(train: MemmapDataset, workers: int, way: str) -> None:
    batches: Any = MemmapDataset(train.path, as_tuple=False)
    data = ConcatDataset([batches, batches.subset([1, 2])]) if way == "rows of two stores" else batches
    is_collated = way in ("collate_fn", "persistent workers")
    options: dict[str, Any] = {"collate_fn": cut} if is_collated else {}
    options |= {"persistent_workers": True} if workers and way == "persistent workers" else {}

    def run() -> list[torch.Tensor]:
        torch.manual_seed(3)
        loader = DataLoader(data, 16, num_workers=workers, **options)
        return epochs(loader, lambda made: made if is_collated else cut(made))

    once, again = run(), run()
    assert not torch.equal(*once)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_a_row_that_comes_twice_gets_two_crops(train: MemmapDataset) -> None:
    def count(images: Any) -> int:
        return len(torch.cat(list(images)).flatten(1).unique(dim=0))

    batches: Any = MemmapDataset(train.path, as_tuple=False)
    weighted = WeightedRandomSampler([1.0] + [0.0] * 89, 16)
    assert count(DataLoader(batches, 16, sampler=weighted, collate_fn=cut)) == 16
    sampler = [5, 7, 5, 5, 7, 7] * 2
    assert count(images for images, _ in MemmapLoader(train, 4, sampler=sampler, transform=CUT)) == 12
    weights = torch.zeros(90)
    weights[[3, 4]] = 1
    assert count(images for images, _ in MemmapLoader(train, 16, seed=0, weights=weights, transform=CUT)) == 90
    # as DeiT's sampler: each row goes to every rank, at the same step of each
    ranks = [MemmapLoader(train, 4, sampler=[8, 2, 9, 8], transform=CUT, rank=rank, world_size=3) for rank in range(3)]
    assert count(images for loader in ranks for images, _ in loader) == 12


def test_neither_batch_size_ranks_nor_prefetch_change_what_a_row_becomes(train: MemmapDataset) -> None:
    def crops(batch_size: int, **options: Any) -> dict[int, torch.Tensor]:
        loader = MemmapLoader(train, batch_size, shuffle="full", seed=1, transform=CUT, as_tuple=False, **options)
        return {int(row): image for batch in loader for row, image in zip(batch.rows, batch.images, strict=True)}

    expected = crops(16)
    ranks = crops(9, rank=0, world_size=2) | crops(9, rank=1, world_size=2)
    for found in (crops(7), crops(16, prefetch=0), ranks):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[row], expected[row]) for row in expected)


def test_a_part_of_a_batch_draws_as_the_batch_does(train: MemmapDataset) -> None:
    batch = next(iter(MemmapLoader(train, 16, shuffle="full", as_tuple=False)))
    full = cut(batch)
    assert torch.equal(cut(batch[[9, 2]]), full[[9, 2]])
    assert torch.equal(torch.cat([cut(part) for part in batch.split(5)]), full)
    assert torch.equal(cut(torch.cat([batch[8:], batch[:8]])), torch.cat([full[8:], full[:8]]))
