"""RandomErasing, MixUp and CutMix: which rectangles and shares, how often, and what becomes of pixels and targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, many, pictures, v2
from conftest import Tune, devices
from tensordict import TensorDict

from reader.transforms import CutMix, MixUp, RandomChoice, RandomErasing


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("value", [0, 77, (1, 2, 3)])
def test_rectangles_are_overwritten_and_nothing_else(value: Any, device: str) -> None:
    batch, erasing = pictures(40, size=(30, 41), device=device), RandomErasing(0.7, value=value)
    made, expected = erasing(batch).pixels, batch.pixels.clone()
    for image, (x0, y0, x1, y1) in zip(expected, erasing.boxes(batch).tolist(), strict=True):
        image[y0:y1, x0:x1] = torch.tensor(value, dtype=torch.uint8, device=device)
    assert torch.equal(made, expected)
    assert torch.equal(erasing(batch[9:12]).pixels, made[9:12])


def test_rectangles_are_torchvisions() -> None:
    theirs, image = v2().RandomErasing(1.0), torch.zeros(3, 30, 41)
    drawn = [theirs.make_params([image]) for _ in range(4000)]
    drawn = [each for each in drawn if each["v"] is not None]
    x0, y0, x1, y1 = RandomErasing(1.0).boxes(many(size=(30, 41))).unbind(1)
    is_there = x1 > x0
    for ours, name in ((y0, "i"), (x0, "j"), (y1 - y0, "h"), (x1 - x0, "w")):
        assert_same_distribution(ours[is_there], [each[name] for each in drawn])
    tall = RandomErasing(1.0, scale=(0.9, 1.0), ratio=(3, 3.3))
    # no such rectangle fits: the image stays
    assert torch.equal(tall(pictures(5)).pixels, pictures(5).pixels)


def test_as_many_are_erased_as_p_says() -> None:
    x0, _, x1, _ = RandomErasing(0.25, ratio=(1, 1)).boxes(many(size=(30, 30))).unbind(1)
    assert abs(float((x1 > x0).float().mean()) - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_noise_is_that_of_photographs_and_of_each_row_alone(tune: Tune) -> None:
    batch, erasing = pictures(30, size=(30, 40)), RandomErasing(1, (0.5, 0.5), (1, 1), "random")
    made = erasing(batch).pixels
    levels = torch.cat(
        [m[y0:y1, x0:x1].flatten() for m, (x0, y0, x1, y1) in zip(made, erasing.boxes(batch), strict=True)]
    )
    assert abs(float(levels.float().mean()) - 0.449 * 255) < 1
    # a few are cut at 0 and 255
    assert abs(float(levels.float().std()) - 0.226 * 255) < 2
    assert torch.equal(erasing(batch[4:9]).pixels, made[4:9])
    tune(cpu_pass_bytes=1)
    assert torch.equal(erasing(batch).pixels, made)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"p": 2}, "p is 2"),
        ({"scale": (0.5, 0.2)}, "scale is .* two shares"),
        ({"scale": 0.5}, "scale is 0.5, expected two shares"),
        ({"ratio": 2}, "ratio is 2, expected two numbers"),
        ({"value": None}, "value is None, expected a number"),
        ({"ratio": (0, 1)}, "ratio is .* two numbers above 0"),
        ({"value": "white"}, "value is 'white', expected a level"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RandomErasing(**given)
    with pytest.raises(ValueError, match="expected one level, or one for each of 3 channels"):
        RandomErasing(value=(1, 2))(pictures())


# -- MixUp and CutMix


@pytest.mark.parametrize("device", devices())
def test_mixed_images_and_targets_are_torchvisions(device: str) -> None:
    batch = pictures(8, device=device)
    for ours, theirs in (
        (MixUp(num_classes=9), v2().MixUp(num_classes=9)),
        (CutMix(num_classes=9), v2().CutMix(num_classes=9)),
    ):
        made = ours(batch)
        if isinstance(ours, MixUp):
            params: dict[str, Any] = {"lam": float(ours.share(batch))}
            expected = theirs.transform(batch.images.float(), {**params, "labels": None, "batch_size": 8})
            assert (made.images.float() - expected).abs().max() <= 0.51
        else:
            box = ours.box(batch).tolist()
            params = {"box": box, "lam": 1 - (box[2] - box[0]) * (box[3] - box[1]) / (24 * 20)}
            expected = theirs.transform(batch.images, {**params, "labels": None, "batch_size": 8})
            assert torch.equal(made.images, expected)
        labels = theirs._mixup_label(batch.targets, lam=params["lam"])
        torch.testing.assert_close(made.targets, labels)
        assert made.targets.dtype == torch.float32


@pytest.mark.parametrize("alpha", [0.2, 1.0, 2.0])
def test_shares_are_drawn_as_torchvision_draws_them(alpha: float) -> None:
    rows = pictures(1, size=(2, 2))
    torch.manual_seed(0)
    theirs = [v2().MixUp(alpha=alpha, num_classes=2).make_params([])["lam"] for _ in range(1500)]
    ours = []
    for row in range(1500):
        rows.rows = torch.tensor([row])
        ours.append(float(MixUp(alpha=alpha, num_classes=2).share(rows)))
    assert_same_distribution(ours, theirs)


def test_rectangles_of_cutmix_are_drawn_as_torchvision_draws_them() -> None:
    theirs, batch, image = v2().CutMix(num_classes=2), many(1, (30, 41)), torch.zeros(1, 3, 30, 41)
    drawn = torch.tensor([theirs.make_params([image])["box"] for _ in range(1500)])
    ours = []
    for row in range(1500):
        batch.rows = torch.tensor([row])
        ours.append(CutMix(num_classes=2).box(batch))
    for a, b in zip(torch.stack(ours).T, drawn.T, strict=True):
        assert_same_distribution(a, b)


def test_targets_by_hand() -> None:
    batch = pictures(2)
    batch.targets = torch.tensor([0, -1])
    mixed = MixUp(num_classes=4, label_smoothing=0.2)
    share = float(mixed.share(batch))
    # 0.8 + 0.2 / 4 and 0.2 / 4; what has no label adds nothing
    expected = torch.tensor([[0.85, 0.05, 0.05, 0.05]]) * torch.tensor([[share], [1 - share]])
    torch.testing.assert_close(mixed(batch).targets, expected)
    batch.targets = torch.tensor([[1, 0], [1, 1]], dtype=torch.uint8)
    torch.testing.assert_close(MixUp()(batch).targets[:, 0], torch.ones(2))
    # each with the one before it, the first with the last
    batch = pictures(3)
    batch.targets = torch.arange(3)
    for mix in (MixUp(num_classes=3), CutMix(num_classes=3)):
        made, mine = mix(batch), torch.eye(3)
        kept = float(made.targets[0, 0])
        torch.testing.assert_close(made.targets, mine * kept + mine[[2, 0, 1]] * (1 - kept))


def test_one_of_two_mixes_is_chosen_for_all_of_a_batch() -> None:
    choice = RandomChoice([MixUp(num_classes=12), CutMix(num_classes=12)])
    kinds = set()
    for first in range(12):
        batch = pictures(12)
        batch.rows = batch.rows + first
        made, either = choice(batch), [transform(batch) for transform in choice.transforms]
        kinds |= {n for n in (0, 1) if torch.equal(made.pixels, either[n].pixels)}
        assert any(torch.equal(made.pixels, one.pixels) for one in either)
    assert kinds == {0, 1}


def test_mixing_is_refused_where_it_has_no_meaning() -> None:
    batch = pictures(4)
    with pytest.raises(ValueError, match="MixUp needs num_classes=, since targets are numbers of classes"):
        MixUp()(batch)
    with pytest.raises(ValueError, match="alpha is 0, expected"):
        CutMix(alpha=0)
    with pytest.raises(ValueError, match="alpha is inf, expected"):
        MixUp(alpha=float("inf"))
    batch.targets = torch.tensor([0, -1, 5, 2])
    for mix in (MixUp, CutMix):
        with pytest.raises(ValueError, match=f"^{mix.__name__} has num_classes=5, and a target is 5, expected less"):
            mix(num_classes=5)(batch)
        assert mix(num_classes=6)(batch).targets.shape == (4, 6)
    with pytest.raises(ValueError, match="label_smoothing is 2, expected"):
        MixUp(label_smoothing=2)
    batch.extras = TensorDict({"masks": torch.zeros(4, 24, 20, dtype=torch.uint8)}, batch_size=[4])
    with pytest.raises(ValueError, match="CutMix mixes images and classes: it takes no rows with boxes or masks"):
        CutMix(num_classes=4)(batch)
