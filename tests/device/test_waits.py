"""Transforms on a CUDA device launch their work and do not wait for it, but for those that group the images of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from conftest import devices

from reader import ImageBatch, transforms
from reader.device.transfer import send_batch
from reader.epoch import with_origin
from reader.transforms.kernels.pixel_ops import tensor_on

LAUNCHING: dict[str, Callable[[], Any]] = {
    "ResizeCenterCrop": lambda: transforms.ResizeCenterCrop(48),
    "ColorJitter": lambda: transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "CutMix": lambda: transforms.CutMix(num_classes=10),
    "GaussianBlur": lambda: transforms.GaussianBlur(5),
    "MixUp": lambda: transforms.MixUp(num_classes=10),
    "RandomAdjustSharpness": lambda: transforms.RandomAdjustSharpness(2),
    "RandomAffine": lambda: transforms.RandomAffine(30, (0.1, 0.1), (0.8, 1.2), 10, fill=(1, 2, 3)),
    "RandomAutocontrast": transforms.RandomAutocontrast,
    "RandomCrop": lambda: transforms.RandomCrop(48),
    "RandomCrop with padding": lambda: transforms.RandomCrop(64, 4),
    "RandomEqualize": transforms.RandomEqualize,
    "RandomErasing": lambda: transforms.RandomErasing(1.0, value=(1, 2, 3)),
    "RandomGrayscale": lambda: transforms.RandomGrayscale(0.5),
    "RandomHorizontalFlip": transforms.RandomHorizontalFlip,
    "RandomInvert": transforms.RandomInvert,
    "RandomPosterize": lambda: transforms.RandomPosterize(4),
    "RandomResizedCrop": lambda: transforms.RandomResizedCrop(48),
    "RandomRotation": lambda: transforms.RandomRotation(30),
    "RandomSolarize": lambda: transforms.RandomSolarize(128),
    "Resize": lambda: transforms.Resize((48, 48)),
}
WAITING: dict[str, Callable[[], Any]] = {
    "RandAugment": transforms.RandAugment,
    "RandomApply": lambda: transforms.RandomApply([transforms.RandomGrayscale(1.0)]),
    "TrivialAugmentWide": transforms.TrivialAugmentWide,
}


@pytest.fixture
def batch() -> ImageBatch:
    pixels = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(8)
    made = ImageBatch(pixels=pixels, targets=rows, rows=rows.clone(), batch_size=[8])
    return with_origin(send_batch(made, torch.device("cuda", 0)), epoch=1, position=16, seed=3)


@pytest.fixture
def no_waits() -> Iterator[None]:
    """Torch raises an error where it waits for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.cuda
@pytest.mark.parametrize("name", LAUNCHING)
def test_a_transform_does_not_wait_for_the_device(name: str, batch: ImageBatch, no_waits: None) -> None:
    transform = LAUNCHING[name]()
    transform(batch)  # what is made once may wait
    torch.cuda.set_sync_debug_mode("error")
    transform(batch)


@pytest.mark.cuda
@pytest.mark.parametrize("name", WAITING)
def test_what_groups_images_waits_to_learn_which_they_are(name: str, batch: ImageBatch, no_waits: None) -> None:
    transform = WAITING[name]()
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
        transform(batch)


@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float64])
@pytest.mark.parametrize("values", [[1, 2, 3], [0.5, 0.25], [[1, 2], [3, 4]]], ids=str)
@pytest.mark.parametrize("device", devices())
def test_a_small_tensor_is_what_torch_makes_of_the_numbers(
    device: str, values: list[Any], dtype: torch.dtype | None
) -> None:
    made, expected = tensor_on(torch.device(device), values, dtype), torch.tensor(values, dtype=dtype)
    assert (made.dtype, made.device.type) == (expected.dtype, device)
    assert torch.equal(made.cpu(), expected)
