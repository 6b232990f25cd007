"""TimmRandAugment has timm's operations, strengths and chances."""

from __future__ import annotations

import random

import pytest
import torch
from augmenting import assert_same_distribution, by_torch, difference, many, pictures

from reader.transforms import RandAugment, TimmRandAugment
from reader.transforms.policies import OPERATIONS

# By timm's formulas, of rows of 200 x 100: of m9 and inc1, and of m5 without.
STRENGTHS = {
    "Rotate": (27.0, 15.0),
    "Posterize": (1, 2),
    # 256 - 230 and 128, half a level less
    "Solarize": (25.5 / 255, 127.5 / 255),
    "SolarizeAdd": (99, 55),
    "ShearX": (0.27, 0.15),
    "ShearY": (0.27, 0.15),
    "TranslateX": (81.0, 45.0),
    "TranslateY": (40.5, 22.5),
}
ENHANCING = ("Color", "Contrast", "Brightness", "Sharpness")


def drawn_of(ours: TimmRandAugment, name: str, count: int = 4000, size: tuple[int, int] = (100, 200)) -> torch.Tensor:
    """Return the strengths that were drawn for an operation, where it is not skipped."""
    steps = ours.drawn(many(count, size))
    return torch.cat([magnitude[operation == OPERATIONS.index(name)] for operation, magnitude in steps])


@pytest.mark.parametrize(("config", "column"), [("rand-m9-inc1", 0), ("rand-m5", 1)])
def test_strengths_are_those_of_timms_formulas(config: str, column: int) -> None:
    ours = TimmRandAugment(config)
    for name, strengths in STRENGTHS.items():
        found = drawn_of(ours, name)
        torch.testing.assert_close(found.abs().unique(), torch.tensor([strengths[column]]).float(), msg=name)
        if name in ("Rotate", "ShearX", "TranslateY"):
            assert 0.4 < (found > 0).float().mean() < 0.6
    for name in ENHANCING:
        # with inc1 1 + 0.81 or 1 - 0.81; without 0.5 * 1.8 + 0.1
        torch.testing.assert_close(drawn_of(ours, name).unique(), torch.tensor([[-0.81, 0.81], [0.0]][column]))


def test_operations_are_drawn_alike_and_half_of_them_skipped() -> None:
    steps = TimmRandAugment("rand-m9-n3").drawn(many(4000))
    assert len(steps) == 3
    for operation, _ in steps:
        counts = torch.bincount(operation, minlength=len(OPERATIONS))
        assert abs(int(counts[0]) - 2000) < 150
        assert set(counts[1:].tolist()) <= set(range(90, 180))
    # p1 skips none, and the two steps of an image are not alike
    first, second = (operation for operation, _ in TimmRandAugment("rand-p1").drawn(many(4000)))
    assert (first > 0).all()
    assert (first == second).float().mean() < 0.1


@pytest.mark.parametrize(
    ("config", "mean", "std", "most"),
    [
        ("rand-m9-mstd0.5", 9, 0.5, 10),
        ("rand-m6-mstd2", 6, 2, 10),
        ("rand-m9-mstd101", 9, None, 10),
        ("rand-m12-mmax14-mstd1", 12, 1, 14),
    ],
)
def test_the_strength_is_spread_as_timm_spreads_it(config: str, mean: float, std: float | None, most: float) -> None:
    generator = random.Random(0)
    drawn = [generator.uniform(0, mean) if std is None else generator.gauss(mean, std) for _ in range(4000)]
    expected = [min(max(level, 0.0), most) / 10 * 30 for level in drawn]
    assert_same_distribution(drawn_of(TimmRandAugment(f"{config}-p1-n6"), "Rotate", 12_000).abs(), expected)


def test_solarize_add_makes_the_dark_lighter() -> None:
    batch = pictures(2, size=(8, 8))
    step = torch.full((2,), OPERATIONS.index("SolarizeAdd")), torch.tensor([0.0, 110.0])
    images = TimmRandAugment(fill=None).applied(batch, [step]).images
    with by_torch():
        assert torch.equal(TimmRandAugment(fill=None).applied(batch, [step]).images, images)
    levels = batch.images.int()
    assert difference(images[0], batch.images[0]) == 0
    assert torch.equal(images[1].int(), torch.where(levels[1] < 128, levels[1] + 110, levels[1]))


@pytest.mark.parametrize("config", ["rand-m15-mmax15-inc1", "rand-m30-mmax30", "rand-m9-mstd3-mmax20-inc1"])
def test_strengths_above_10_keep_0_to_8_bits(config: str) -> None:
    bits = set(drawn_of(TimmRandAugment(config), "Posterize").tolist())
    assert bits <= set(range(9))
    assert {0.0, 8.0} & bits


def test_no_operations_leave_images_as_they_are() -> None:
    batch = pictures()
    for policy in (TimmRandAugment("rand-m9-n0"), RandAugment(0)):
        assert torch.equal(policy(batch).pixels, batch.pixels)
