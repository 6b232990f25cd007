"""Pad, RandomCrop with padding that repeats the image, Resize, RandomVerticalFlip: as their authors do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from augmenting import difference, many, pictures, v2
from conftest import torchvision_or_skip
from tensordict import TensorDict

from packer import pack
from reader import ImageBatch, MemmapDataset
from reader.transforms import Pad, RandomCrop, RandomVerticalFlip, Resize
from reader.transforms.random import CROP, draw


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [3, (2, 5), (1, 2, 3, 4)])
def test_padding_is_torchvisions(mode: str, padding: Any) -> None:
    batch = pictures(6)
    fill = (7, 8, 9) if mode == "constant" else 0
    given = padding if isinstance(padding, int) else list(padding)
    expected = v2().Pad(given, fill=fill, padding_mode=mode)(batch.images)
    made = Pad(padding, fill, mode)(batch)
    assert torch.equal(made.images, expected)
    assert made.content is None


def test_padding_by_hand() -> None:
    pixels, rows = torch.tensor([1, 2, 3, 4], dtype=torch.uint8).view(1, 1, 4, 1), torch.arange(1)
    batch = ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[1])
    for mode, expected in (
        ("constant", [0, 0, 1, 2, 3, 4, 0, 0]),
        ("edge", [1, 1, 1, 2, 3, 4, 4, 4]),
        ("reflect", [3, 2, 1, 2, 3, 4, 3, 2]),
        ("symmetric", [2, 1, 1, 2, 3, 4, 4, 3]),
    ):
        assert Pad((2, 0), padding_mode=mode)(batch).pixels.flatten().tolist() == expected


@pytest.mark.parametrize("mode", ["constant", "reflect"])
def test_a_padded_crop_is_torchvisions(mode: str) -> None:
    batch, functional = pictures(20, size=(32, 32)), v2().functional
    made = RandomCrop(32, 4, padding_mode=mode)(batch)
    top, left = (draw(batch, 0, CROP) * 9).long().tolist()
    padded = functional.pad(batch.images, [4, 4, 4, 4], padding_mode=mode)
    expected = [functional.crop(image, *corner, 32, 32) for image, *corner in zip(padded, top, left, strict=True)]
    assert torch.equal(made.images, torch.stack(expected))
    assert made.content is None


def test_a_crop_pads_what_is_too_small() -> None:
    batch = pictures(30, size=(6, 20))
    batch.content = torch.tensor([0, 0, 6, 20], dtype=torch.int32).repeat(30, 1)
    made = RandomCrop(12, pad_if_needed=True, fill=9)(batch)
    assert made.pixels.shape == (30, 12, 12, 3)
    y0, _, y1, _ = made.content.unbind(1)
    # as torchvision: by the whole difference on both sides, so that the image is at any height
    assert set(y0.tolist()) == set(range(7))
    assert ((y1 - y0) == 6).all()
    with pytest.raises(ValueError, match="cuts 12 x 12 pixels, but the rows have 6 x 20 and 0 of padding"):
        RandomCrop(12)(batch)


def test_boxes_move_with_padding_and_are_refused_where_it_mirrors_them() -> None:
    batch = pictures(2)
    boxes = torch.tensor([[[1.0, 2.0, 4.0, 6.0]]]).repeat(2, 1, 1)
    masks = torch.ones(2, 24, 20, dtype=torch.uint8)
    batch.extras = TensorDict({"boxes": boxes, "box_count": torch.ones(2), "masks": masks}, batch_size=[2])
    batch.content = torch.tensor([0, 0, 24, 20], dtype=torch.int32).repeat(2, 1)
    made = Pad((3, 5), 9)(batch)
    assert made.extras["boxes"][0, 0].tolist() == [4, 7, 7, 11]
    assert (made.extras["masks"] == 1).sum() == masks.sum()
    assert made.content[0].tolist() == [5, 3, 29, 23]
    with pytest.raises(ValueError, match='padding_mode "reflect" repeats what boxes hold'):
        Pad(2, padding_mode="reflect")(batch)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(40, 13), (9, 50), 12, 31])
def test_resized_images_are_torchvisions(interpolation: str, size: Any) -> None:
    batch = pictures(20, size=(24, 30))
    mode = v2().InterpolationMode(interpolation)
    expected = v2().Resize(size, mode)(batch.images)
    made = Resize(size, interpolation)(batch)
    assert difference(made.images, expected) == 0


def test_boxes_masks_and_content_are_resized_too() -> None:
    batch = pictures(1, size=(20, 40))
    boxes, masks = torch.tensor([[[4.0, 2.0, 20.0, 10.0]]]), torch.zeros(1, 20, 40, dtype=torch.uint8)
    masks[:, 2:10, 4:20] = 1
    batch.extras = TensorDict({"boxes": boxes, "box_count": torch.ones(1), "masks": masks}, batch_size=[1])
    made = Resize((40, 20))(batch)
    assert made.extras["boxes"][0, 0].tolist() == [2, 4, 10, 20]
    assert made.extras["masks"][0, 4:20, 2:10].all()
    assert made.extras["masks"].sum() == 128
    batch.content = torch.tensor([[0, 4, 20, 36]], dtype=torch.int32)
    squashed = Resize((10, 16))(batch)
    assert squashed.content is None
    # the content alone, 32 wide, halved
    assert squashed.extras["boxes"][0, 0].tolist() == [0, 1, 8, 5]
    assert Resize(10)(batch).content[0].tolist() == [0, 2, 10, 18]


def test_a_vertical_flip_turns_pixels_boxes_masks_and_content() -> None:
    batch = pictures(3, size=(20, 14))
    boxes, masks = torch.tensor([[[4.0, 2.0, 12.0, 10.0]]]).repeat(3, 1, 1), batch.pixels[..., 0].clone()
    batch.extras = TensorDict({"boxes": boxes, "box_count": torch.ones(3), "masks": masks}, batch_size=[3])
    batch.content = torch.tensor([[0, 1, 17, 13]], dtype=torch.int32).repeat(3, 1)
    made = RandomVerticalFlip(1)(batch)
    assert torch.equal(made.pixels, batch.pixels.flip(1))
    assert torch.equal(made.extras["masks"], masks.flip(1))
    assert made.extras["boxes"][1, 0].tolist() == [4, 10, 12, 18]
    assert made.content[2].tolist() == [3, 1, 20, 13]
    assert torch.equal(RandomVerticalFlip(0)(batch).pixels, batch.pixels)
    lines = many(2000)
    lines.pixels = torch.tensor([0, 9], dtype=torch.uint8).view(1, 2, 1, 1).expand(2000, 2, 1, 1)
    assert 500 < (RandomVerticalFlip(0.3)(lines).pixels[:, 0] == 9).sum() < 700


def test_images_of_many_sizes_become_one(images: Path, tmp_path: Path) -> None:
    pack(images, tmp_path / "out", fit="none", workers=1)
    own = MemmapDataset(tmp_path / "out", as_tuple=False)[:6]
    for interpolation in ("bilinear", "bicubic"):
        made = Resize((20, 28), interpolation)(own)
        mode = torchvision_or_skip().transforms.v2.InterpolationMode(interpolation)
        expected = [v2().functional.resize(image, [20, 28], mode) for image in own.images]
        assert torch.equal(made.images, torch.stack(expected))
        sides = Resize(20, interpolation)(own)
        for image, source in zip(sides.images, own.images, strict=True):
            assert torch.equal(image, v2().functional.resize(source, [20], mode))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Pad(-1), "padding is -1, expected 0 or more pixels"),
        (lambda: Pad(2.0), "padding is 2.0, expected an integer"),  # type: ignore[arg-type]
        (lambda: Pad((1, 2, 3)), "padding is .* one number, two or four"),
        (lambda: Pad(1, padding_mode="wrap"), "padding_mode is 'wrap', expected one of constant"),
        (lambda: Pad(24, padding_mode="reflect")(pictures(1)), "mirror more than the 20 that there are"),
        (lambda: Pad(1, (1, 2))(pictures(1)), "fill is .* one for each of 3 channels"),
        (lambda: Resize(0), "size is 0, expected"),
        (lambda: Resize(3, "nearest"), "interpolation is 'nearest', expected"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
