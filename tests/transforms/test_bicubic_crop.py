"""RandomResizedCrop that resizes bicubically, or by a draw for each image."""

from __future__ import annotations

import pytest
import torch
from augmenting import many, pictures, v2

from reader import RaggedBatch, RandomResizedCrop
from reader.transforms import timm_train


def test_bicubic_crops_are_torchvisions_bytes() -> None:
    functional, crop, batch = v2().functional, RandomResizedCrop((17, 30), interpolation="bicubic"), pictures()
    found, bilinear = crop(batch).images, RandomResizedCrop((17, 30))(batch).images
    for image, made, (x0, y0, x1, y1) in zip(batch.images, found, crop.boxes(batch).tolist(), strict=True):
        mode = v2().InterpolationMode.BICUBIC
        theirs = functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, [17, 30], mode, antialias=True)
        assert torch.equal(made, theirs)
    assert not torch.equal(found, bilinear)


def test_a_draw_for_each_image_chooses() -> None:
    batch, crop = pictures(40), RandomResizedCrop(15, interpolation="random")
    is_cubic = crop.is_cubic(batch)
    assert is_cubic is not None
    both = [RandomResizedCrop(15, interpolation=name)(batch).pixels for name in ("bilinear", "bicubic")]
    assert torch.equal(crop(batch).pixels, torch.where(is_cubic.view(-1, 1, 1, 1), both[1], both[0]))
    drawn = crop.is_cubic(many())
    assert drawn is not None
    # 0.05 is 6 standard deviations
    assert abs(float(drawn.double().mean()) - 0.5) < 0.05
    assert timm_train(24).transforms[0].interpolation == "random"


def test_images_of_their_own_sizes_are_resized_so_too() -> None:
    full, crop = pictures(6), RandomResizedCrop(15, interpolation="random")
    size = full.pixels[0].numel()
    shapes = torch.tensor([full.pixels.shape[1:]] * 6, dtype=torch.int32)
    flat = full.pixels.reshape(-1)
    batch = RaggedBatch(flat, full.targets, torch.arange(6) * size, shapes, rows=full.rows, batch_size=[])
    assert torch.equal(crop(batch).pixels, crop(full).pixels)


def test_another_interpolation_is_refused() -> None:
    with pytest.raises(ValueError, match="interpolation is 'nearest', expected"):
        RandomResizedCrop(8, interpolation="nearest")
