"""RandomErasing: which rectangles, how often, and what is put there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, many, pictures, v2
from conftest import devices

from reader.transforms import RandomErasing, pixel_ops


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


def test_noise_is_that_of_photographs_and_of_each_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, erasing = pictures(30, size=(30, 40)), RandomErasing(1, (0.5, 0.5), (1, 1), "random")
    made = erasing(batch).pixels
    levels = torch.cat(
        [m[y0:y1, x0:x1].flatten() for m, (x0, y0, x1, y1) in zip(made, erasing.boxes(batch), strict=True)]
    )
    assert abs(float(levels.float().mean()) - 0.449 * 255) < 1
    # a few are cut at 0 and 255
    assert abs(float(levels.float().std()) - 0.226 * 255) < 2
    assert torch.equal(erasing(batch[4:9]).pixels, made[4:9])
    monkeypatch.setattr(pixel_ops, "_CPU_BYTES", 1)
    assert torch.equal(erasing(batch).pixels, made)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"p": 2}, "p is 2"),
        ({"scale": (0.5, 0.2)}, "scale is .* two shares"),
        ({"ratio": (0, 1)}, "ratio is .* two numbers above 0"),
        ({"value": "white"}, "value is 'white', expected a level"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RandomErasing(**given)
    with pytest.raises(ValueError, match="expected one level, or one for each of 3 channels"):
        RandomErasing(value=(1, 2))(pictures())
