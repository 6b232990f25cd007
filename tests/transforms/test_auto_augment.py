"""RandAugment, TrivialAugmentWide, AutoAugment and AugMix: torchvision's operations, magnitudes, tables and frequencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, many, pictures, v2
from conftest import devices
from tensordict import TensorDict

from reader import ImageBatch
from reader.transforms import AugMix, AutoAugment, RandAugment, TrivialAugmentWide, auto_augment
from reader.transforms.policy_steps import OPERATIONS

POLICIES = [
    ("RandAugment", RandAugment(3, 12)),
    ("RandAugment", RandAugment(1, 29, interpolation="bilinear", fill=128)),
    ("TrivialAugmentWide", TrivialAugmentWide()),
    ("TrivialAugmentWide", TrivialAugmentWide(interpolation="bilinear", fill=(1, 200, 30))),
    ("AutoAugment", AutoAugment()),
    ("AutoAugment", AutoAugment("cifar10")),
    ("AutoAugment", AutoAugment("svhn", "bilinear")),
]


def steps_of(drawn: Any, n: int) -> list[tuple[str, float]]:
    """Return the steps of one image, as torchvision names them."""
    return [(OPERATIONS[int(operation[n])], float(magnitude[n])) for operation, magnitude in drawn]


def applied_by_torchvision(policy: Any, image: torch.Tensor, steps: list[tuple[str, float]], fill: Any) -> torch.Tensor:
    for name, magnitude in steps:
        # made with fill, whatever it is drawn with
        image = policy._apply_image_or_video_transform(image, name, magnitude, policy.interpolation, policy._fill)
    return image


def torchvisions(name: str, ours: Any) -> Any:
    policy = {"policy": v2().AutoAugmentPolicy(ours.policy)} if name == "AutoAugment" else {}
    mode = v2().InterpolationMode(ours.interpolation)
    return getattr(v2(), name)(interpolation=mode, fill=ours.fill, **policy)


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("pair", POLICIES, ids=lambda pair: pair[0])
def test_each_image_goes_through_torchvisions_operations(pair: Any, device: str) -> None:
    name, ours = pair
    batch, theirs = pictures(150, size=(30, 41), device=device), torchvisions(name, ours)
    drawn = ours.drawn(batch)
    expected = [
        applied_by_torchvision(theirs, image, steps_of(drawn, n), ours.fill) for n, image in enumerate(batch.images)
    ]
    made = ours(batch).images
    different = (made.int() - torch.stack(expected).int()).abs()
    # a later step can make more of a level, of a level less or of the pixel beside
    assert (different > 1).float().mean() < 2e-3
    assert (different > 0).float().mean() < 2e-2
    assert torch.equal(ours(batch[70:75]).images, made[70:75])


def recorded(monkeypatch: pytest.MonkeyPatch, policy: Any, count: int) -> list[list[tuple[str, float]]]:
    """Return the steps that torchvision's policy draws for so many images."""
    found: list[list[tuple[str, float]]] = []

    def note(image: Any, name: str, magnitude: float, **_: Any) -> Any:
        found[-1].append((name, magnitude))
        return image

    monkeypatch.setattr(policy, "_apply_image_or_video_transform", note)
    for _ in range(count):
        found.append([])
        policy(torch.zeros(3, 30, 41, dtype=torch.uint8))
    return found


@pytest.mark.parametrize("pair", [*POLICIES[:1], POLICIES[2], *POLICIES[4:]], ids=lambda pair: pair[0])
def test_operations_and_magnitudes_are_drawn_as_torchvision_draws_them(
    pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, ours = pair
    given = {"num_ops": 3, "magnitude": 12} if name == "RandAugment" else {}
    theirs = torchvisions(name, ours)
    for key, value in given.items():
        setattr(theirs, key, value)
    of_theirs = [step for steps in recorded(monkeypatch, theirs, 3000) for step in steps if step[0] != "Identity"]
    drawn = ours.drawn(many(3000, (30, 41)))
    of_ours = [step for n in range(3000) for step in steps_of(drawn, n) if step[0] != "Identity"]
    assert abs(len(of_ours) - len(of_theirs)) < 6 * len(of_theirs) ** 0.5
    counts = [Counter(step for step, _ in steps) for steps in (of_ours, of_theirs)]
    for operation in counts[0].keys() | counts[1].keys():
        a, b = (count[operation] for count in counts)
        assert abs(a - b) < 5 * (a + b + 1) ** 0.5, operation
        if operation in ("AutoContrast", "Equalize", "Invert"):
            continue
        values = [[m for step, m in steps if step == operation] for steps in (of_ours, of_theirs)]
        assert_same_distribution(*values)


def test_mixtures_are_torchvisions() -> None:
    batch, theirs = pictures(60, size=(30, 41)), v2().AugMix()
    ours = AugMix(seed=2)
    weights, chains = ours.weights(batch), ours.drawn(batch)
    torch.testing.assert_close(weights.sum(1), torch.ones(60))
    expected = []
    for n, image in enumerate(batch.images):
        mix = weights[n, 0] * image
        for k, drawn in enumerate(chains):
            mix += weights[n, 1 + k] * applied_by_torchvision(theirs, image, steps_of(drawn, n), None)
        expected.append(mix.to(torch.uint8))
    different = (ours(batch).images.int() - torch.stack(expected).int()).abs()
    assert (different > 1).float().mean() < 2e-3
    assert torch.equal(ours(batch[20:25]).images, ours(batch).images[20:25])


@pytest.mark.parametrize("given", [{}, {"severity": 8, "chain_depth": 2, "all_ops": False, "mixture_width": 2}])
def test_chains_are_drawn_as_torchvision_draws_them(given: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = recorded(monkeypatch, v2().AugMix(**given), 1500)
    chains = AugMix(**given).drawn(many(1500, (30, 41)))
    ours = [[step for drawn in chains for step in steps_of(drawn, n) if step[0] != "Identity"] for n in range(1500)]
    assert_same_distribution([len(steps) for steps in ours], [len(steps) for steps in theirs])
    counts = [Counter(name for steps in found for name, _ in steps) for found in (ours, theirs)]
    assert counts[0].keys() == counts[1].keys()
    for operation in counts[0]:
        assert abs(counts[0][operation] - counts[1][operation]) < 5 * (2 * counts[1][operation]) ** 0.5
        values = [[m for steps in found for name, m in steps if name == operation] for found in (ours, theirs)]
        if operation not in ("AutoContrast", "Equalize"):
            assert_same_distribution(*values)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_weights_have_dirichlets_distribution(alpha: float) -> None:
    weights = AugMix(alpha=alpha).weights(many(20_000))
    torch.manual_seed(0)
    full = torch._sample_dirichlet(torch.full((20_000, 2), alpha))
    of_chains = torch._sample_dirichlet(torch.full((20_000, 3), alpha)) * full[:, 1:]
    for ours, theirs in (
        (weights[:, 0], full[:, 0]),
        (weights[:, 1], of_chains[:, 0]),
        (weights[:, 3], of_chains[:, 2]),
    ):
        assert_same_distribution(ours, theirs)


def test_boxes_masks_and_content_move_with_what_moves_them() -> None:
    batch = pictures(60, size=(30, 41))
    masks = torch.zeros(60, 30, 41, dtype=torch.uint8)
    masks[:, 6:15, 8:20] = 1
    boxes = torch.tensor([[[8.0, 6.0, 20.0, 15.0]]]).repeat(60, 1, 1)
    extras = {"boxes": boxes, "box_count": torch.ones(60, dtype=torch.int32), "masks": masks}
    batch.extras = TensorDict(extras, batch_size=[60])
    made, drawn = RandAugment(2)(batch), RandAugment(2).drawn(batch)
    moves = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
    are_moved = [any(name in moves for name, _ in steps_of(drawn, n)) for n in range(60)]
    assert 10 < sum(are_moved) < 55
    for n, is_moved in enumerate(are_moved):
        assert torch.equal(made.extras["boxes"][n], boxes[n]) != is_moved
        y, x = (positions.float() + 0.5 for positions in made.extras["masks"][n].nonzero().unbind(1))
        x0, y0, x1, y1 = made.extras["boxes"][n, 0].tolist()
        assert ((x > x0 - 1) & (x < x1 + 1) & (y > y0 - 1) & (y < y1 + 1)).all()
    with pytest.raises(ValueError, match="it takes no rows with boxes or masks"):
        AugMix()(batch)


def test_the_tables_of_policies_are_torchvisions() -> None:
    for name in ("imagenet", "cifar10", "svhn"):
        theirs = v2().AutoAugment(v2().AutoAugmentPolicy(name))._policies
        ours = [
            tuple((OPERATIONS[int(o)], p, int(m)) for o, p, m in pair) for pair in AutoAugment(name)._pairs.tolist()
        ]
        assert ours == [tuple((o, p, m or 0) for o, p, m in pair) for pair in theirs]


def test_the_first_pair_of_imagenet_by_hand() -> None:
    assert auto_augment._parsed("Rotate 0.6 9") == [5.0, 0.6, 9.0]
    assert AutoAugment()._pairs.shape == (25, 2, 3)
    # Posterize keeps 8 - 8 / (9 / 4) = 4.4 bits of the magnitude 8, so 4
    batch = many(2000, (30, 41))
    first, _ = AutoAugment().drawn(batch)
    values = {round(float(m)) for o, m in zip(*first, strict=True) if OPERATIONS[int(o)] == "Posterize"}
    assert values == {4, 5, 6}


def test_nothing_drawn_changes_nothing() -> None:
    batch = pictures()
    assert torch.equal(RandAugment(0)(batch).pixels, batch.pixels)
    assert isinstance(RandAugment()(batch), ImageBatch)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: RandAugment(65), "num_ops is 65, expected 0 to 64"),
        (lambda: RandAugment(magnitude=31), "magnitude is 31, expected 0 to 30"),
        (lambda: RandAugment(num_magnitude_bins=0), "num_magnitude_bins is 0, expected 1 or more"),
        (lambda: TrivialAugmentWide(0), "num_magnitude_bins is 0, expected 1 or more"),
        (lambda: TrivialAugmentWide(2.5), "num_magnitude_bins is 2.5, expected an integer"),  # type: ignore[arg-type]
        (lambda: RandAugment(interpolation="box"), "interpolation is 'box'"),
        (lambda: AutoAugment("mnist"), "policy is 'mnist', expected one of imagenet, cifar10, svhn"),
        (lambda: AugMix(severity=11), "severity is 11, expected 1 to 10"),
        (lambda: AugMix(alpha=0), "alpha 0, expected 1 or more, and above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
