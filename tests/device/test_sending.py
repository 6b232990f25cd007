"""Masks of any type on a device."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from reader import ImageBatch, RandomCrop, RandomHorizontalFlip


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.int32])
def test_masks_of_other_types_are_moved_on_a_device_as_on_the_host(dtype: torch.dtype) -> None:
    masks = (torch.arange(2 * 8 * 6).view(2, 8, 6) * 7).to(dtype)
    pixels, rows = torch.zeros(2, 8, 6, 3, dtype=torch.uint8), torch.arange(2)
    here = ImageBatch(pixels, rows, extras=TensorDict({"masks": masks}, batch_size=[2]), rows=rows, batch_size=[2])
    for transform in (RandomHorizontalFlip(1.0), RandomCrop(5)):
        made, expected = transform(here.to("cuda")).extras["masks"], transform(here).extras["masks"]
        assert made.dtype == dtype
        assert torch.equal(made.cpu(), expected)
