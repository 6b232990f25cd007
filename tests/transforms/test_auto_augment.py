"""RandAugment and TrivialAugmentWide: torchvision's operations, magnitudes and frequencies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, many, pictures, v2
from conftest import devices
from tensordict import TensorDict

from reader import ImageBatch
from reader.transforms import RandAugment, TrivialAugmentWide
from reader.transforms.policies import OPERATIONS

POLICIES = [
    ("RandAugment", RandAugment(3, 12)),
    ("RandAugment", RandAugment(1, 29, interpolation="bilinear", fill=128)),
    ("TrivialAugmentWide", TrivialAugmentWide()),
    ("TrivialAugmentWide", TrivialAugmentWide(interpolation="bilinear", fill=(1, 200, 30))),
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
    mode = v2().InterpolationMode(ours.interpolation)
    return getattr(v2(), name)(interpolation=mode, fill=ours.fill)


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


@pytest.mark.parametrize("pair", [*POLICIES[:1], POLICIES[2]], ids=lambda pair: pair[0])
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
        y, x = (positions.float() + 0.5 for positions in (made.extras["masks"][n] == 1).nonzero().unbind(1))
        x0, y0, x1, y1 = made.extras["boxes"][n, 0].tolist()
        assert ((x > x0 - 1) & (x < x1 + 1) & (y > y0 - 1) & (y < y1 + 1)).all()


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
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
