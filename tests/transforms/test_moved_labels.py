"""Boxes, masks and content move with the pixels: by pictures of them, by hand, and beside torchvision."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from augmenting import by_torch, labelled, pictures, v2
from conftest import torchvision_or_skip
from detecting import boxes_of, detections, sample, with_masks
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from reader import ImageBatch, RaggedBatch, from_torchvision, transforms
from reader.store import replaced
from reader.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    FixedSizeCrop,
    GaussianBlur,
    Grayscale,
    Normalize,
    Pad,
    RandAugment,
    RandomApply,
    RandomCrop,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomRotation,
    RandomShortestSize,
    RandomSolarize,
    RandomVerticalFlip,
    Resize,
    ResizeCenterCrop,
    ScaleJitter,
)
from reader.transforms.view import View

HEIGHT, WIDTH = 40, 56
SPANS = [st.tuples(st.integers(0, n), st.integers(0, n)).filter(lambda v: v[0] < v[1]) for n in (WIDTH, HEIGHT)]


def one_painted(x: tuple[int, int], y: tuple[int, int]) -> ImageBatch:
    """Make 16 rows of one image that is black but for a light box, with that box and its mask."""
    batch = labelled(16, (HEIGHT, WIDTH), (x[0], y[0], x[1], y[1]))
    batch.pixels = (200 * batch.extras["masks"])[..., None].expand(-1, -1, -1, 3).contiguous()
    batch.content = None
    return batch


@pytest.mark.parametrize(
    "transform",
    [
        RandomHorizontalFlip(),
        RandomVerticalFlip(),
        RandomCrop(24),
        RandomCrop((30, 58), 3),
        Compose([RandomCrop(30), RandomHorizontalFlip()]),
    ],
)
@settings(max_examples=25)
@given(x=SPANS[0], y=SPANS[1])
def test_a_box_painted_into_the_pixels_is_where_the_box_went(transform: Any, x: Any, y: Any) -> None:
    moved = transform(one_painted(x, y))
    # beyond the image a mask is no class
    masks = moved.extras["masks"].where(moved.extras["masks"] != 255, 0)
    assert torch.equal(moved.pixels[..., 0], 200 * masks)
    for mask, box, count in zip(masks, moved.extras["boxes"], moved.extras["box_count"], strict=True):
        painted = mask.nonzero()
        assert count == (len(painted) > 0)
        (y0, x0), (y1, x1) = (painted.amin(0), painted.amax(0) + 1) if count else ((0, 0), (0, 0))
        assert box[0].tolist() == [x0, y0, x1, y1]


def test_boxes_without_area_left_are_dropped_and_the_others_close_up() -> None:
    batch = one_painted((0, 10), (0, 10))[:1]
    boxes = torch.tensor([[[0, 0, 9, 9], [20, 20, 50, 39], [12, 12, 13, 13], [0, 0, 16, 10], [20, 20, 30, 30]]]).float()
    count = torch.tensor([4], dtype=torch.int32)
    weights = torch.rand(1, 3)
    batch.extras = TensorDict(
        {"boxes": boxes, "box_count": count, "box_targets": torch.arange(5)[None], "weights": weights}, batch_size=[1]
    )
    batch.content = torch.tensor([[10, 10, 26, 26]], dtype=torch.int32)  # the only place for 16 x 16
    moved = RandomCrop(16)(batch).extras
    assert moved["box_count"].tolist() == [2]
    assert moved["box_count"].dtype == torch.int32
    # the first is outside, the second cut, the fourth only touches the crop's edge, the fifth is not counted
    assert moved["boxes"][0].tolist() == [[10, 10, 16, 16], [2, 2, 3, 3], *[[0, 0, 0, 0]] * 3]
    assert moved["box_targets"].tolist() == [[1, 2, -1, -1, -1]]
    assert torch.equal(moved["weights"], weights)


# transform; where the box 8, 6, 20, 15 of 30 x 41 pixels is, and the content 2, 1, 40, 27: x0, y0, x1, y1
BY_HAND: list[tuple[Any, list[float], list[int] | None]] = [
    (RandomHorizontalFlip(1), [21, 6, 33, 15], [1, 1, 39, 27]),
    (RandomVerticalFlip(1), [8, 15, 20, 24], [2, 3, 40, 29]),
    (Pad((3, 5), 9), [11, 11, 23, 20], [5, 6, 43, 32]),
    (Pad(0), [8, 6, 20, 15], [2, 1, 40, 27]),
    (CenterCrop((20, 31)), [3, 1, 15, 10], [0, 0, 31, 20]),
    (CenterCrop((32, 43)), [9, 7, 21, 16], [3, 2, 41, 28]),
    # the content alone, 38 x 26, halved
    (Resize((13, 19)), [3, 2.5, 9, 7], None),
    (ResizeCenterCrop((13, 13)), [0, 2.5, 6, 7], None),
    (Resize(15), [8 * 20 / 41, 3, 20 * 20 / 41, 7.5], [1, 1, 19, 13]),
]


@pytest.mark.parametrize(("transform", "box", "content"), BY_HAND)
def test_a_box_its_mask_and_the_content_move_by_hand(
    transform: Any, box: list[float], content: list[int] | None
) -> None:
    batch = labelled(3)
    made = transform(batch)
    torch.testing.assert_close(made.extras["boxes"][1, 0], torch.tensor([float(n) for n in box]))
    assert made.extras["boxes"][1, 1].tolist() == [0, 0, 0, 0]
    found = None if made.content is None else made.content[2, [1, 0, 3, 2]].tolist()
    assert found == content
    y, x = (made.extras["masks"][1] == 1).nonzero().T
    corners = torch.tensor([x.min(), y.min(), x.max() + 1, y.max() + 1])
    assert (corners - torch.tensor(box)).abs().max() <= 0.5
    assert torch.equal(labelled(3).pixels, batch.pixels)


def test_boxes_and_masks_move_as_torchvision_moves_them() -> None:
    tv_tensors, functional = torchvision_or_skip().tv_tensors, v2().functional
    batch, crop = labelled(), RandomResizedCrop((30, 20), scale=(0.5, 1))
    plain = replaced(batch, pixels=batch.pixels, content=None, extras=batch.extras)
    cropped = crop(plain).extras
    for n, (x0, y0, x1, y1) in enumerate(crop.boxes(plain).tolist()):
        boxes = tv_tensors.BoundingBoxes(batch.extras["boxes"][n, :1], format="XYXY", canvas_size=(30, 41))
        moved = functional.resized_crop(boxes, y0, x0, y1 - y0, x1 - x0, [30, 20])
        expected = functional.clamp_bounding_boxes(moved).as_subclass(torch.Tensor)
        expected = expected[(expected[:, :2] < expected[:, 2:]).all(1)]
        assert cropped["box_count"][n] == len(expected)
        torch.testing.assert_close(cropped["boxes"][n, : len(expected)], expected, atol=1e-3, rtol=0)
        cut_out = batch.extras["masks"][n][None, None, y0:y1, x0:x1]
        nearest = torch.nn.functional.interpolate(cut_out, (30, 20), mode="nearest-exact")[0, 0]
        assert torch.equal(cropped["masks"][n], nearest)


def test_labels_come_from_the_part_that_an_image_went_through() -> None:
    batch = labelled(40)
    made, flipped = RandomApply([RandomHorizontalFlip(1)])(batch), RandomHorizontalFlip(1)(batch)
    is_flipped = (made.pixels == flipped.pixels).flatten(1).all(1)
    assert 5 < is_flipped[1:].sum() < 35
    for n in range(1, 40):
        source = flipped if is_flipped[n] else batch
        assert torch.equal(made.content[n], source.content[n])
        assert all(torch.equal(made.extras[name][n], source.extras[name][n]) for name in ("boxes", "masks"))


def test_after_a_motion_all_of_a_row_is_content() -> None:
    batch = labelled(40)
    batch.extras = None
    made = RandomApply([RandomRotation((180, 180))])(batch)
    is_moved = (made.pixels != batch.pixels).flatten(1).any(1)
    assert 5 < is_moved.sum() < 35
    assert torch.equal(made.content[~is_moved], batch.content[~is_moved])
    assert {tuple(row) for row in made.content[is_moved].tolist()} == {(0, 0, 30, 41)}
    assert RandomRotation(9)(batch).content is None
    assert RandAugment()(batch).content is None


def fills() -> list[tuple[Any, int]]:
    kinds = torchvision_or_skip().tv_tensors
    return [
        ({kinds.Image: 9, kinds.Mask: 255}, 255),
        ({kinds.Image: 9, kinds.Mask: 7}, 7),
        ({kinds.Mask: 254, "others": 9}, 254),
        ({kinds.Image: 9, "others": 5}, 5),
        ({"Image": 9, "Mask": 3}, 3),
        (9, 255),
    ]


@pytest.mark.parametrize("name", ["RandomCrop", "Pad"])
def test_masks_are_filled_as_given_and_else_have_no_class_beyond_the_image(name: str) -> None:
    given: dict[str, dict[str, Any]] = {
        "RandomCrop": {"size": (36, 45), "padding": 4},
        "Pad": {"padding": 2},
    }
    batch = labelled(3)
    batch.extras["masks"].fill_(1)
    batch.content = None
    for fill, expected in fills():
        for module in (transforms, v2()):
            given_fill = getattr(module, name)(**given[name], fill=fill)
            made = (given_fill if module is transforms else from_torchvision(given_fill))(batch)
            masks = made.extras["masks"]
            assert set(masks.unique().tolist()) == {1, expected}
            assert bool((made.pixels[masks == expected] == 9).all())


# -- content


@pytest.mark.parametrize(
    "content, tops, lefts",
    [
        (None, range(25), range(41)),
        ([0, 0, HEIGHT, WIDTH], range(25), range(41)),
        ([4, 6, 28, 30], range(4, 13), range(6, 15)),
        ([4, 6, 20, 22], range(4, 5), range(6, 7)),
        # smaller than the crop: all of it is inside, wherever it falls
        ([10, 20, 18, 30], range(2, 11), range(14, 21)),
        ([0, 50, 10, 56], range(1), range(40, 41)),
    ],
)
def test_random_crop_draws_every_position_inside_the_content(content: Any, tops: range, lefts: range) -> None:
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    pixels = torch.stack([y, x, torch.ones_like(x)], dim=-1).to(torch.uint8).expand(300, -1, -1, -1).contiguous()
    rows = torch.arange(300)
    of_all = None if content is None else torch.tensor([content] * 300, dtype=torch.int32)
    batch = ImageBatch(pixels=pixels, targets=rows, content=of_all, rows=rows, batch_size=[300])
    moved = RandomCrop(16)(batch)
    # content in the row and in the crop are the same pixels
    for new, (y0, x0, y1, x1) in zip(
        moved.pixels, [] if content is None else moved.content.tolist(), strict=content is not None
    ):
        assert (new[y0, x0, :2] >= torch.tensor(content[:2])).all()
        assert (new[y1 - 1, x1 - 1, :2] < torch.tensor(content[2:])).all()
    corners = moved.pixels[:, 0, 0]
    assert (set(corners[:, 0].tolist()), set(corners[:, 1].tolist())) == (set(tops), set(lefts))


def test_a_crop_pads_what_is_too_small_and_padding_is_no_content() -> None:
    batch = pictures(30, size=(6, 20))
    batch.content = torch.tensor([0, 0, 6, 20], dtype=torch.int32).repeat(30, 1)
    made = RandomCrop(12, pad_if_needed=True, fill=9)(batch)
    y0, _, y1, _ = made.content.unbind(1)
    # as torchvision: by the whole difference on both sides, so that the image is at any height
    assert set(y0.tolist()) == set(range(7))
    assert ((y1 - y0) == 6).all()
    for pixels, top in zip(made.pixels, y0.tolist(), strict=True):
        assert (pixels[:top] == 9).all()
        assert (pixels[top + 6 :] == 9).all()


@pytest.mark.parametrize(
    "make", [lambda: RandomResizedCrop((8, 9), (0.2, 1)), lambda: ResizeCenterCrop(20), lambda: ScaleJitter((50, 60))]
)
def test_the_content_is_the_image_for_what_resizes(make: Any) -> None:
    batch = labelled(12)
    y0, x0, y1, x1 = batch.content[0].tolist()
    cut_out = replaced(batch, pixels=batch.pixels[:, y0:y1, x0:x1].contiguous(), content=None, extras=None)
    made, expected = make()(batch), make()(cut_out)
    assert all(torch.equal(a, b) for a, b in zip(made.images, expected.images, strict=True))
    if isinstance(made, ImageBatch):
        assert made.content is None


# -- images of their own sizes


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(
    "recipe",
    [
        [CenterCrop(40)],
        [Resize(29)],
        [Resize((31, 26), "bicubic"), Resize(20)],
        [CenterCrop((30, 24)), RandomHorizontalFlip(1.0), Resize(20, max_size=26), Resize(9)],
        [ResizeCenterCrop(24, 0.8)],
        [RandomResizedCrop(20), RandomHorizontalFlip()],
        [RandomCrop(30, 5, pad_if_needed=True), RandomVerticalFlip()],
        [Resize(40), RandomCrop(40)],
        [Pad((1, 2, 3, 4), fill={"Image": 5, "Mask": 7})],
        [ScaleJitter((50, 60)), FixedSizeCrop(48)],
        [RandomShortestSize((20, 30)), RandomHorizontalFlip()],
    ],
    ids=lambda recipe: " ".join(type(step).__name__ for step in recipe),
)
def test_images_of_their_own_sizes_move_as_those_of_one_size_do(recipe: list[Any], is_compiled: bool) -> None:
    batch = with_masks(detections(8))
    found = Compose(recipe)(batch)
    # one transform and one image after the other
    for n in range(8):
        rows, extras = batch.rows[n : n + 1], batch.extras[n : n + 1].clone()
        extras["masks"] = batch.mask(n)[None]
        alone: Any = ImageBatch(batch.image(n)[None], rows, extras=extras, rows=rows, batch_size=[1])
        for step in recipe:
            if is_compiled:
                alone = step(alone)
            else:
                with by_torch():
                    alone = step(alone)
        mask = alone.mask(0) if isinstance(alone, RaggedBatch) else alone.extras["masks"][0]
        assert torch.equal(found.mask(n) if isinstance(found, RaggedBatch) else found.extras["masks"][n], mask)
        assert torch.equal(found.images[n], alone.images[0])
        torch.testing.assert_close(found.extras["boxes"][n], alone.extras["boxes"][0])


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize(
    "transform",
    [
        ColorJitter(0.4, 0.4, 0.4, 0.1),
        Grayscale(),
        GaussianBlur(3),
        RandomSolarize(99),
        RandomErasing(1, value="random"),
        RandomApply([RandomInvert(1)]),
        RandomApply([RandomErasing(1)]),
        Normalize([0.4], [0.2]),
        Normalize([0.4], [0.2], torch.bfloat16),
    ],
    ids=repr,
)
def test_boxes_and_masks_of_images_of_their_own_sizes_stay_where_no_pixel_moves(
    transform: Any, is_compiled: bool
) -> None:
    plain = detections(8)
    plain.origin = torch.arange(24).view(8, 3)
    batch = with_masks(plain)
    given = batch.clone()
    with contextlib.nullcontext() if is_compiled else by_torch():
        found, expected = transform(batch), transform(plain)
    for n in range(8):
        assert torch.equal(found.images[n], expected.images[n])
        assert torch.equal(found.mask(n), batch.mask(n))
    assert (found.extras == batch.extras).all()
    assert torch.equal(batch.pixels, given.pixels)
    assert torch.equal(found.shapes, expected.shapes)


def test_a_flip_of_some_images_of_their_own_sizes_moves_their_boxes_and_masks() -> None:
    batch = with_masks(detections(24))
    made, flipped = RandomApply([RandomHorizontalFlip(1)])(batch), RandomHorizontalFlip(1)(batch)
    is_flipped = [not torch.equal(made.mask(n), batch.mask(n)) for n in range(24)]
    assert 5 < sum(is_flipped) < 19
    for n in range(24):
        source = flipped if is_flipped[n] else batch
        assert torch.equal(made.images[n], source.images[n])
        assert torch.equal(made.mask(n), source.mask(n))
        assert torch.equal(made.extras["boxes"][n], source.extras["boxes"][n])


def test_fixed_size_crop_is_that_of_the_references() -> None:
    functional = v2().functional
    batch, crop = detections(24), FixedSizeCrop((45, 60), fill=(9, 8, 7), seed=2)
    made, windows = crop(batch), crop.apply(View.from_batch(crop, batch)).regions.windows
    assert {tuple(shape) for shape in made.shapes.tolist()} == {(45, 60, 3)}
    for n in range(24):
        image, target = sample(batch, n)
        (height, width), (left, top, _, _) = image.shape[-2:], windows[n].tolist()
        assert left == 0 or width > 60
        assert top == 0 or height > 45
        size = min(45, height), min(60, width)
        expected = functional.pad(
            functional.crop(image, top, left, *size), [0, 0, 60 - size[1], 45 - size[0]], fill=[9.0, 8.0, 7.0]
        )
        assert torch.equal(made.images[n], expected.as_subclass(torch.Tensor))
        boxes = functional.clamp_bounding_boxes(functional.crop(target["boxes"], top, left, *size))
        kept = boxes.as_subclass(torch.Tensor)
        kept = kept[(kept[:, :2] < kept[:, 2:]).all(1)]
        assert torch.equal(boxes_of(made, n)[0], kept)
