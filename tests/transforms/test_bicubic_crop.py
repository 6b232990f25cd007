"""RandomResizedCrop that resizes bicubically."""

from __future__ import annotations

import pytest
import torch
from augmenting import pictures, v2

from reader import RaggedBatch, RandomResizedCrop


def test_bicubic_crops_are_torchvisions_bytes() -> None:
    functional, crop, batch = v2().functional, RandomResizedCrop((17, 30), interpolation="bicubic"), pictures()
    found, bilinear = crop(batch).images, RandomResizedCrop((17, 30))(batch).images
    for image, made, (x0, y0, x1, y1) in zip(batch.images, found, crop.boxes(batch).tolist(), strict=True):
        mode = v2().InterpolationMode.BICUBIC
        theirs = functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, [17, 30], mode, antialias=True)
        assert torch.equal(made, theirs)
    assert not torch.equal(found, bilinear)


def test_images_of_their_own_sizes_are_resized_so_too() -> None:
    full, crop = pictures(6), RandomResizedCrop(15, interpolation="bicubic")
    size = full.pixels[0].numel()
    shapes = torch.tensor([full.pixels.shape[1:]] * 6, dtype=torch.int32)
    flat = full.pixels.reshape(-1)
    batch = RaggedBatch(flat, full.targets, torch.arange(6) * size, shapes, rows=full.rows, batch_size=[])
    assert torch.equal(crop(batch).pixels, crop(full).pixels)


def test_another_interpolation_is_refused() -> None:
    with pytest.raises(ValueError, match="interpolation is 'nearest', expected"):
        RandomResizedCrop(8, interpolation="nearest")
