"""RandomErasing, MixUp and CutMix: which pixels and targets, beside torchvision and by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from augmenting import pictures, v2
from conftest import Tune, devices

from reader.transforms import CutMix, MixUp, RandomErasing


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("value", [0, 77, (1, 2, 3)])
def test_rectangles_are_overwritten_and_nothing_else(value: Any, device: str) -> None:
    batch, erasing = pictures(40, size=(30, 41), device=device), RandomErasing(0.7, value=value)
    expected = batch.pixels.clone()
    for image, (x0, y0, x1, y1) in zip(expected, erasing.boxes(batch).tolist(), strict=True):
        image[y0:y1, x0:x1] = torch.tensor(value, dtype=torch.uint8, device=device)
    assert torch.equal(erasing(batch).pixels, expected)
    # no such rectangle fits: the image stays
    assert torch.equal(RandomErasing(1.0, (0.9, 1.0), (3, 3.3))(batch).pixels, batch.pixels)


def test_noise_is_that_of_photographs_and_of_each_row_alone(tune: Tune) -> None:
    batch, erasing = pictures(30, size=(30, 40)), RandomErasing(1, (0.5, 0.5), (1, 1), "random")
    made = erasing(batch).pixels
    boxes = erasing.boxes(batch)
    levels = torch.cat([m[y0:y1, x0:x1].flatten() for m, (x0, y0, x1, y1) in zip(made, boxes, strict=True)]).float()
    assert abs(float(levels.mean()) - 0.449 * 255) < 1
    # a few are cut at 0 and 255
    assert abs(float(levels.std()) - 0.226 * 255) < 2
    tune(cpu_pass_bytes=1)
    assert torch.equal(erasing(batch[4:9]).pixels, made[4:9])


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("kind", [MixUp, CutMix])
def test_mixed_images_and_targets_are_torchvisions(kind: Any, device: str) -> None:
    batch, ours, theirs = pictures(8, device=device), kind(num_classes=9), getattr(v2(), kind.__name__)(num_classes=9)
    made, params = ours(batch), {"labels": None, "batch_size": 8}
    if kind is MixUp:
        params |= {"lam": float(ours.share(batch))}
        assert (made.images.float() - theirs.transform(batch.images.float(), params)).abs().max() <= 0.51
    else:
        x0, y0, x1, y1 = ours.box(batch).tolist()
        params |= {"box": (x0, y0, x1, y1), "lam": 1 - (x1 - x0) * (y1 - y0) / (24 * 20)}
        assert torch.equal(made.images, theirs.transform(batch.images, params))
    torch.testing.assert_close(made.targets, theirs._mixup_label(batch.targets, lam=params["lam"]))
    assert made.targets.dtype == torch.float32


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
    for mix in (MixUp(num_classes=3), CutMix(num_classes=3)):
        made, mine = mix(batch), torch.eye(3)
        kept = float(made.targets[0, 0])
        torch.testing.assert_close(made.targets, mine * kept + mine[[2, 0, 1]] * (1 - kept))
