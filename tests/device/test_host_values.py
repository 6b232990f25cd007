"""Values of small tensors on a device that the host knows, and random numbers that are drawn from them; "meta" is the device."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from reader import (
    ImageBatch,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    ResizeCenterCrop,
    transforms,
)
from reader.device.transfer import send_batch
from reader.epoch import with_origin
from reader.host_values import on_host, remember, sent

META = torch.device("meta")


def test_the_host_knows_what_it_has_sent_until_it_is_changed_there() -> None:
    here = torch.arange(4)
    there = sent(here, META)
    assert there.device == META
    assert on_host(there) is here
    assert on_host(there[1:]) is on_host(there + 0) is on_host(there.clone()) is None
    there.add_(1)
    assert on_host(there) is None


def test_a_copy_of_a_tensor_is_another_one() -> None:
    there = sent(torch.arange(4), META)
    assert on_host(copy.copy(there)) is None


def test_large_tensors_of_a_batch_are_not_held_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    pixels, rows = torch.zeros(4, 300, 300, 3, dtype=torch.uint8), torch.arange(4)
    there = send_batch(ImageBatch(pixels, rows, rows=rows, batch_size=[4]), META)
    assert on_host(there.pixels) is None
    assert on_host(there.rows) is rows


def test_what_is_on_the_host_is_known_and_not_copied() -> None:
    here = torch.arange(4)
    assert sent(here, torch.device("cpu")) is on_host(here) is here


def test_what_is_on_a_device_stays_there_and_is_known_if_somebody_says_so() -> None:
    there = torch.empty(4, device=META)
    assert sent(there, META) is there
    assert on_host(there) is None
    assert on_host(remember(there, torch.ones(4))) is not None


def test_changes_in_inference_mode_are_not_counted_so_nothing_is_known_there() -> None:
    with torch.inference_mode():
        assert on_host(sent(torch.arange(4), META)) is None


def batches(monkeypatch: pytest.MonkeyPatch, content: bool) -> tuple[ImageBatch, ImageBatch]:
    """Make a batch on the host, and the same on a device."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    rows, area = torch.arange(20) * 7 % 31, torch.tensor([[3, 2, 30, 25]], dtype=torch.int32).expand(20, 4)
    pixels = torch.zeros(20, 32, 28, 3, dtype=torch.uint8)
    here = ImageBatch(pixels, rows, area.clone() if content else None, rows=rows, batch_size=[20])
    both = (here, send_batch(here, META))
    for batch in both:
        with_origin(batch, epoch=2, position=40, seed=5)
    return both


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize(
    "numbers",
    [
        lambda batch: RandomResizedCrop(16).boxes(batch),
        lambda batch: RandomHorizontalFlip().chosen(batch),
        lambda batch: transforms.random.draw(batch, 3, range(5)),
    ],
    ids=["boxes", "flip", "draw"],
)
def test_a_device_gets_the_numbers_that_the_host_draws(
    numbers: Any, content: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = batches(monkeypatch, content)
    drawn = on_host(numbers(there))
    assert drawn is not None
    assert torch.equal(drawn, numbers(here))


@pytest.mark.parametrize("content", [False, True])
@pytest.mark.parametrize("transform", [RandomCrop(20), ResizeCenterCrop(20)], ids=["RandomCrop", "ResizeCenterCrop"])
def test_crops_of_batches_on_a_device_have_its_shapes(
    transform: Any, content: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, there = batches(monkeypatch, content)
    assert transform(there).pixels.shape == (20, 20, 20, 3)
