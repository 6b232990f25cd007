"""Flip and crops: where each sample's pixels, boxes and masks go, by whose definition, and on what that depends."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, NamedTuple

import pytest
import torch
from augmenting import pictures, resized
from conftest import devices, torchvision_or_skip
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict, TensorDictParams, lazy_stack
from torch.nn.utils.rnn import pack_sequence
from torch.utils import _pytree as pytree

from reader import (
    ColorJitter,
    GaussianBlur,
    ImageBatch,
    Normalize,
    RandAugment,
    RandomAffine,
    RandomApply,
    RandomCrop,
    RandomEqualize,
    RandomErasing,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    RandomRotation,
    RandomSolarize,
    ResizeCenterCrop,
    to_device,
)
from reader.epoch import in_epoch
from reader.store import replaced
from reader.transforms.random import CROP, RESIZED_CROP, draw

HEIGHT, WIDTH = 40, 56


def make_batch(
    rows: list[int],
    *,
    content: bool = True,
    labels: bool = True,
    channels: int = 3,
    size: tuple[int, int] = (HEIGHT, WIDTH),
) -> ImageBatch:
    """Make a batch each of whose samples is a function of its row."""
    samples = []
    for row in rows:
        generator = torch.Generator().manual_seed(row)
        pixels = torch.randint(0, 256, (*size, channels), dtype=torch.uint8, generator=generator)
        corner = torch.randint(0, 12, (2,), generator=generator)
        box = torch.cat([corner, corner + torch.randint(12, 28, (2,), generator=generator)]).int()
        start = torch.rand(5, 2, generator=generator) * 30
        boxes = torch.cat([start, start + 1 + torch.rand(5, 2, generator=generator) * 9], dim=-1)
        count = torch.randint(0, 6, (), generator=generator, dtype=torch.int32)
        masks = torch.randint(0, 4, size, dtype=torch.uint8, generator=generator)
        samples.append((pixels, box, boxes, count, torch.arange(5) + row, masks, torch.rand(3, generator=generator)))
    pixels, box, boxes, count, targets, masks, weights = map(torch.stack, zip(*samples, strict=True))
    extras = {"boxes": boxes, "box_count": count, "box_targets": targets, "masks": masks, "weights": weights}
    return ImageBatch(
        pixels=pixels,
        targets=torch.tensor(rows),
        content=box if content else None,
        extras=TensorDict(extras, batch_size=[len(rows)]) if labels else None,
        rows=torch.tensor(rows),
        batch_size=[len(rows)],
    )


def one_painted(box: list[int]) -> ImageBatch:
    """Make 16 rows of one image that is black but for a light box, with that box and its mask."""
    x0, y0, x1, y1 = box
    masks = torch.zeros(16, HEIGHT, WIDTH, dtype=torch.uint8)
    masks[:, y0:y1, x0:x1] = 200
    count, boxes = torch.ones(16, dtype=torch.int32), torch.tensor(box).float().expand(16, 1, 4)
    extras = TensorDict({"boxes": boxes, "box_count": count, "masks": masks}, batch_size=[16])
    pixels, rows = masks[..., None].expand(-1, -1, -1, 3).contiguous(), torch.arange(16)
    return ImageBatch(pixels=pixels, targets=rows, extras=extras, rows=rows, batch_size=[16])


def are_equal(a: ImageBatch, b: ImageBatch) -> bool:
    if (a.content is None) != (b.content is None) or (a.extras is None) != (b.extras is None):
        return False
    pairs = [(a.pixels, b.pixels), (a.targets, b.targets), (a.rows, b.rows)]
    if a.content is not None:
        pairs.append((a.content, b.content))
    if a.extras is not None:
        pairs += [(value, b.extras[name]) for name, value in a.extras.items()]
    return all(torch.equal(one, other) for one, other in pairs)


ALL = [
    RandomHorizontalFlip(seed=3),
    RandomCrop((24, 30), padding=2, seed=3),
    RandomCrop(16),
    RandomResizedCrop((20, 24), seed=3),
    RandomRotation(30, seed=3),
    RandomAffine(30, (0.1, 0.2), (0.8, 1.2), 10, "bilinear", seed=3),
    ColorJitter(0.4, 0.4, 0.4, 0.1, seed=3),
    GaussianBlur(3, seed=3),
    RandomSolarize(100, seed=3),
    RandomEqualize(seed=3),
    RandomErasing(1, value="random", seed=3),
    RandAugment(3, 20, seed=3),
    RandomApply([RandomInvert()], seed=3),
]
MOVING = ALL[:6]


def name_of(transform: Any) -> str:
    return type(transform).__name__


# -- randomness


@pytest.mark.parametrize("transform", ALL, ids=name_of)
@settings(max_examples=15)
@given(rows=st.lists(st.integers(0, 1 << 40), min_size=1, max_size=6, unique=True), epoch=st.integers(0, 1 << 40))
def test_what_a_row_becomes_depends_on_seed_epoch_and_row_alone(transform: Any, rows: list[int], epoch: int) -> None:
    torch.manual_seed(len(rows))
    with in_epoch(epoch):
        full, parts = transform(make_batch(rows)), [transform(make_batch([row])) for row in reversed(rows)]
    for n, part in enumerate(reversed(parts)):
        assert are_equal(full[n : n + 1], part)


@pytest.mark.parametrize("make", [RandomHorizontalFlip, lambda seed: RandomCrop(8, seed=seed)])
def test_another_seed_or_epoch_gives_other_parameters(make: Any) -> None:
    batch = make_batch(list(range(32)))
    results = [make(seed=0)(batch), make(seed=1)(batch), make(seed=-5)(batch)]
    with in_epoch(1):
        results.append(make(seed=0)(batch))
    assert not any(are_equal(a, b) for n, a in enumerate(results) for b in results[:n])


def test_the_random_numbers_stay_what_they_were() -> None:
    """A checkpoint of an older version continues with the augmentation that it began with."""
    with in_epoch(3):
        drawn = draw(make_batch([0, 1, 1 << 33]), 7, range(1, 3))
    assert drawn.tolist() == [
        [0.4367661717428839, 0.8509054773853965, 0.9157201111085453],
        [0.3019706071869446, 0.9804942022819285, 0.8034306195636919],
    ]


def test_drawn_numbers_are_uniform_and_independent() -> None:
    rows = torch.arange(20_000)
    batch = ImageBatch(pixels=torch.zeros(20_000, 1, 1, 1), targets=rows, rows=rows, batch_size=[20_000])
    drawn = draw(batch, 0, range(28))
    assert ((drawn >= 0) & (drawn < 1)).all()
    # of 28 streams and 378 pairs of them, by five standard deviations
    assert (drawn.mean(1) - 0.5).abs().max() < 5 / math.sqrt(12 * 20_000)
    assert (torch.corrcoef(drawn) - torch.eye(28)).abs().max() < 5 / math.sqrt(20_000)


@pytest.mark.parametrize("transform", ALL, ids=name_of)
def test_the_given_batch_is_not_changed(transform: Any) -> None:
    batch, same = make_batch([1, 2, 3]), make_batch([1, 2, 3])
    transform(batch)
    assert are_equal(batch, same)


# -- pixels, boxes and masks together


@pytest.mark.parametrize(
    "transform", [RandomHorizontalFlip(), RandomCrop(24), RandomCrop((30, 58), padding=3)], ids=name_of
)
@settings(max_examples=25)
@given(
    x=st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH)).filter(lambda v: v[0] < v[1]),
    y=st.tuples(st.integers(0, HEIGHT), st.integers(0, HEIGHT)).filter(lambda v: v[0] < v[1]),
)
def test_a_box_painted_into_the_pixels_is_where_the_box_went(transform: Any, x: Any, y: Any) -> None:
    moved = transform(one_painted([x[0], y[0], x[1], y[1]]))
    # beyond the image a mask is no class
    masks = moved.extras["masks"].where(moved.extras["masks"] != 255, 0)
    assert torch.equal(moved.pixels[..., 0], masks)
    for mask, box, count in zip(masks, moved.extras["boxes"], moved.extras["box_count"], strict=True):
        painted = mask.nonzero()
        assert count == (len(painted) > 0)
        (y0, x0), (y1, x1) = (painted.amin(0), painted.amax(0) + 1) if count else ((0, 0), (0, 0))
        assert box[0].tolist() == [x0, y0, x1, y1]


@settings(max_examples=25)
@given(
    x=st.tuples(st.integers(0, WIDTH), st.integers(0, WIDTH)).filter(lambda v: v[0] < v[1]),
    y=st.tuples(st.integers(0, HEIGHT), st.integers(0, HEIGHT)).filter(lambda v: v[0] < v[1]),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
)
def test_a_resized_box_holds_the_centers_of_its_mask(x: Any, y: Any, size: tuple[int, int]) -> None:
    moved = RandomResizedCrop(size)(one_painted([x[0], y[0], x[1], y[1]]))
    y, x = torch.arange(size[0])[:, None] + 0.5, torch.arange(size[1]) + 0.5
    for mask, image, boxes in zip(moved.extras["masks"], moved.pixels, moved.extras["boxes"], strict=True):
        x0, y0, x1, y1 = boxes[0]
        inside = torch.minimum(torch.minimum(x - x0, x1 - x), torch.minimum(y - y0, y1 - y))
        # float32 boxes: a centre on the very edge may fall on either side
        assert (mask[inside > 1e-3] == 200).all()
        assert (mask[inside < -1e-3] == 0).all()
        assert (image[..., 0][inside > 1] > 100).all()


def test_boxes_without_area_left_are_dropped_and_the_others_close_up() -> None:
    batch = one_painted([0, 0, 10, 10])[:1]
    boxes = torch.tensor([[[0, 0, 9, 9], [20, 20, 50, 39], [12, 12, 13, 13], [0, 0, 16, 10], [20, 20, 30, 30]]]).float()
    batch.extras = TensorDict(
        {"boxes": boxes, "box_count": torch.tensor([4], dtype=torch.int32), "box_targets": torch.arange(5)[None]},
        batch_size=[1],
    )
    batch.content = torch.tensor([[10, 10, 26, 26]], dtype=torch.int32)  # the only place for 16 x 16
    moved = RandomCrop(16)(batch)
    assert moved.extras["box_count"].tolist() == [2]
    assert moved.extras["box_count"].dtype == torch.int32
    # the first is outside, the second cut, the fourth only touches the crop's edge, the fifth is not counted
    assert moved.extras["boxes"][0].tolist() == [
        [10, 10, 16, 16],
        [2, 2, 3, 3],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
        [0, 0, 0, 0],
    ]
    assert moved.extras["box_targets"].tolist() == [[1, 2, -1, -1, -1]]


@pytest.mark.parametrize("transform", MOVING, ids=name_of)
def test_other_extras_pass_through(transform: Any) -> None:
    batch = make_batch([5, 6])
    assert torch.equal(transform(batch).extras["weights"], batch.extras["weights"])
    assert transform(make_batch([5, 6], labels=False)).extras is None


def test_flipping_twice_gives_the_batch_back() -> None:
    batch = make_batch(list(range(8)))
    moved, flip = batch, RandomHorizontalFlip(1)
    for _ in range(2):
        moved = flip(moved)
    assert torch.equal(moved.pixels, batch.pixels)
    assert torch.equal(moved.content, batch.content)
    assert torch.equal(moved.extras["masks"], batch.extras["masks"])
    kept = torch.arange(5) < batch.extras["box_count"][:, None]
    torch.testing.assert_close(moved.extras["boxes"][kept], batch.extras["boxes"][kept])


# -- content


def origins(crop: RandomCrop, content: list[int], count: int = 300) -> tuple[set[int], set[int]]:
    """Crop rows whose pixels say where they are: the tops and lefts that are drawn."""
    y, x = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
    pixels = torch.stack([y, x, torch.ones_like(x)], dim=-1).to(torch.uint8).expand(count, -1, -1, -1).contiguous()
    batch = ImageBatch(
        pixels=pixels,
        targets=torch.arange(count),
        content=torch.tensor([content] * count, dtype=torch.int32),
        rows=torch.arange(count),
        batch_size=[count],
    )
    moved = crop(batch)
    inside = moved.content.tolist()
    # content in the row and in the crop are the same pixels
    for new, (y0, x0, y1, x1) in zip(moved.pixels, inside, strict=True):
        assert (new[y0, x0, :2] >= torch.tensor(content[:2])).all()
        assert (new[y1 - 1, x1 - 1, :2] < torch.tensor(content[2:])).all()
    corners = moved.pixels[:, 0, 0]
    return set(corners[:, 0].tolist()), set(corners[:, 1].tolist())


@pytest.mark.parametrize(
    "content, tops, lefts",
    [
        ([0, 0, HEIGHT, WIDTH], range(25), range(41)),
        ([4, 6, 28, 30], range(4, 13), range(6, 15)),
        ([4, 6, 20, 22], range(4, 5), range(6, 7)),
        # smaller than the crop: all of it is inside, wherever it falls
        ([10, 20, 18, 30], range(2, 11), range(14, 21)),
        ([0, 50, 10, 56], range(1), range(40, 41)),
    ],
)
def test_random_crop_draws_every_position_inside_the_content(content: list[int], tops: range, lefts: range) -> None:
    assert origins(RandomCrop(16), content) == (set(tops), set(lefts))


def test_padding_is_no_image_where_rows_have_content() -> None:
    batch = make_batch(list(range(50)), content=False)
    batch.pixels[:] = 255
    assert RandomCrop((HEIGHT, WIDTH), padding=4)(batch).content is None
    batch.content = torch.tensor([0, 0, HEIGHT, WIDTH], dtype=torch.int32).repeat(50, 1)
    moved = RandomCrop((HEIGHT, WIDTH), padding=4)(batch)
    for pixels, (y0, x0, y1, x1) in zip(moved.pixels, moved.content.tolist(), strict=True):
        assert pixels.sum() == pixels[y0:y1, x0:x1].sum()
        assert (pixels[y0:y1, x0:x1] == 255).all()


def test_random_resized_crop_takes_the_content_for_the_image() -> None:
    batch, crop = make_batch(list(range(200))), RandomResizedCrop(8, scale=(0.2, 1))
    x0, y0, x1, y1 = crop.boxes(batch).unbind(-1)
    assert (torch.stack([y0, x0], -1) >= batch.content[:, :2]).all()
    assert (torch.stack([y1, x1], -1) <= batch.content[:, 2:]).all()
    cut_out = [p[c[0] : c[2], c[1] : c[3]] for p, c in zip(batch.pixels, batch.content.tolist(), strict=True)]
    alone = [
        ImageBatch(p[None], torch.zeros(1), rows=batch.rows[n, None], batch_size=[1]) for n, p in enumerate(cut_out)
    ]
    assert torch.equal(torch.cat([crop(one).pixels for one in alone]), crop(batch).pixels)
    assert crop(batch).content is None


# -- torchvision's definitions


def torchvisions_box(height: int, width: int, drawn: list[float], scale: Any, ratio: Any) -> list[int]:
    """Do as torchvision's RandomResizedCrop.make_params, with numbers drawn before."""
    for area, aspect in zip(drawn[:10], drawn[10:20], strict=True):
        target_area = height * width * (scale[0] + area * (scale[1] - scale[0]))
        log_ratio = math.log(ratio[0]), math.log(ratio[1])
        aspect_ratio = math.exp(log_ratio[0] + aspect * (log_ratio[1] - log_ratio[0]))
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            y, x = int(drawn[20] * (height - h + 1)), int(drawn[21] * (width - w + 1))
            return [x, y, x + w, y + h]
    v2 = torchvision_or_skip().transforms.v2
    never = v2.RandomResizedCrop(8, scale=(9.0, 9.0), ratio=ratio)
    found = never.make_params([torch.zeros(3, height, width)])
    return [found["left"], found["top"], found["left"] + found["width"], found["top"] + found["height"]]


@pytest.mark.parametrize(
    "size, scale, ratio",
    [
        ((HEIGHT, WIDTH), (0.08, 1), (3 / 4, 4 / 3)),
        ((HEIGHT, WIDTH), (0.9, 1), (3 / 4, 4 / 3)),
        ((HEIGHT, WIDTH), (0.5, 1), (0.2, 0.5)),
        ((9, 56), (0.9, 1), (3 / 4, 4 / 3)),
        ((40, 9), (0.9, 1), (3 / 4, 4 / 3)),
        ((40, 40), (0.01, 0.02), (1, 1)),
    ],
)
def test_boxes_are_drawn_by_torchvisions_definition(size: tuple[int, int], scale: Any, ratio: Any) -> None:
    torchvision_or_skip()
    batch = make_batch(list(range(60)), content=False, size=size)
    drawn = draw(batch, 5, RESIZED_CROP).T.tolist()
    expected = [torchvisions_box(*size, numbers, scale, ratio) for numbers in drawn]
    assert RandomResizedCrop(8, scale, ratio, seed=5).boxes(batch).tolist() == expected


def test_the_ratio_of_a_box_is_its_width_by_its_height() -> None:
    x0, y0, x1, y1 = (
        RandomResizedCrop(8, scale=(0.1, 0.1), ratio=(2.9, 3.1)).boxes(pictures(50, size=(40, 60))).float().unbind(1)
    )
    assert float(((x1 - x0) / (y1 - y0)).min()) > 2


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("new_size", [(24, 24), (7, 64), (40, 12), (100, 90)])
def test_resized_pixels_are_torchvisions(channels: int, new_size: tuple[int, int]) -> None:
    functional = torchvision_or_skip().transforms.v2.functional
    batch = make_batch(list(range(24)), channels=channels)
    boxes = RandomResizedCrop(1).boxes(batch)
    boxes[0] = torch.tensor([0, 0, 1, 1])
    boxes[1] = torch.tensor([0, 0, WIDTH, HEIGHT])
    expected = torch.stack(
        [
            functional.resized_crop(image, y0, x0, y1 - y0, x1 - x0, list(new_size), antialias=True)
            for image, (x0, y0, x1, y1) in zip(batch.images, boxes.tolist(), strict=True)
        ]
    ).movedim(1, -1)
    assert torch.equal(resized(batch.pixels, boxes, *new_size), expected)


@pytest.mark.parametrize("padding", [0, 3])
def test_a_row_without_content_is_cropped_as_one_that_is_all_image(padding: int) -> None:
    plain = make_batch(list(range(40)), content=False)
    full = torch.tensor([0, 0, HEIGHT, WIDTH], dtype=torch.int32).expand(40, 4)
    crop = RandomCrop((HEIGHT - 4, WIDTH - 2), padding=padding, seed=3)
    one, other = crop(plain), crop(replaced(plain, pixels=plain.pixels, content=full, extras=plain.extras))
    assert torch.equal(one.pixels, other.pixels)
    assert one.content is None


@pytest.mark.parametrize("device", devices())
def test_other_devices_resize_as_torchs_float_kernel_does(device: str) -> None:
    batch = make_batch(list(range(24)))
    boxes = RandomResizedCrop(1).boxes(batch)
    got = resized(batch.pixels.to(device), boxes, 33, 21).cpu().float()
    # torch's uint8 kernel rounds between the axes too
    most = 1.01 if device == "cpu" else 0.501
    for image, (x0, y0, x1, y1), made in zip(batch.images.float(), boxes.tolist(), got, strict=True):
        cut_out = image[None, :, y0:y1, x0:x1]
        expected = torch.nn.functional.interpolate(cut_out, (33, 21), mode="bilinear", antialias=True)
        torch.testing.assert_close(made.movedim(-1, 0), expected[0], atol=most, rtol=0)


@pytest.mark.parametrize("device", devices())
def test_an_autocast_around_the_loop_leaves_pixels_as_they_are(device: str) -> None:
    batch = make_batch(list(range(24)))
    pixels, boxes = batch.pixels.to(device), RandomResizedCrop(1).boxes(batch)
    expected = resized(pixels, boxes, 33, 21)
    with torch.autocast(device, torch.bfloat16):
        assert torch.equal(resized(pixels, boxes, 33, 21), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torchs_default_dtype_changes_nothing(dtype: torch.dtype) -> None:
    batch = make_batch(list(range(8)))

    def made() -> list[Any]:
        crops = [transform(batch) for transform in (RandomResizedCrop((33, 21)), ResizeCenterCrop(28, 0.875))]
        found = [value for crop in crops for value in (crop.pixels, *crop.extras.values())]
        return [*found, Normalize([0.1], [0.3])(batch.images)]

    expected = made()
    torch.set_default_dtype(dtype)
    try:
        found = made()
    finally:
        torch.set_default_dtype(torch.float32)
    assert [value.dtype for value in found] == [value.dtype for value in expected]
    assert all(map(torch.equal, found, expected))


def test_masks_take_the_nearest_pixel_as_torch_does_exactly() -> None:
    batch, crop = make_batch(list(range(24))), RandomResizedCrop((24, 16))
    masks, found = batch.extras["masks"], crop(batch).extras["masks"]
    for mask, (x0, y0, x1, y1), made in zip(masks, crop.boxes(batch).tolist(), found, strict=True):
        cut_out = mask[None, None, y0:y1, x0:x1]
        assert torch.equal(made, torch.nn.functional.interpolate(cut_out, (24, 16), mode="nearest-exact")[0, 0])


def test_moved_boxes_are_torchvisions() -> None:
    torchvision = torchvision_or_skip()
    functional, boxes_type = torchvision.transforms.v2.functional, torchvision.tv_tensors.BoundingBoxes
    batch, crop = make_batch(list(range(40)), content=False), RandomResizedCrop((30, 20), scale=(0.5, 1))
    moved = crop(batch).extras
    for n, (x0, y0, x1, y1) in enumerate(crop.boxes(batch).tolist()):
        given_boxes = batch.extras["boxes"][n, : batch.extras["box_count"][n]]
        wrapped = boxes_type(given_boxes, format="XYXY", canvas_size=(HEIGHT, WIDTH))
        expected = functional.resized_crop(wrapped, y0, x0, y1 - y0, x1 - x0, [30, 20])
        expected = functional.clamp_bounding_boxes(expected).as_subclass(torch.Tensor)
        expected = expected[(expected[:, :2] < expected[:, 2:]).all(1)]
        assert moved["box_count"][n] == len(expected)
        torch.testing.assert_close(moved["boxes"][n, : len(expected)], expected, atol=1e-4, rtol=1e-5)


def test_flip_and_crop_are_torchvisions() -> None:
    functional = torchvision_or_skip().transforms.v2.functional
    batch = make_batch(list(range(20)), content=False)
    flipped, cropped = RandomHorizontalFlip()(batch), RandomCrop((30, 50), padding=3)(batch)
    down, across = draw(batch, 0, CROP).tolist()
    assert {torch.equal(a, b) for a, b in zip(flipped.images, batch.images, strict=True)} == {True, False}
    for n, image in enumerate(batch.images):
        assert any(torch.equal(flipped.images[n], other) for other in (image, functional.horizontal_flip(image)))
        top, left = int(down[n] * (HEIGHT + 6 - 30 + 1)), int(across[n] * (WIDTH + 6 - 50 + 1))
        expected = functional.crop(functional.pad(image, [3]), top, left, 30, 50)
        assert torch.equal(cropped.images[n], expected)


# -- torch.compile


# -- nests


class Pair(NamedTuple):
    images: torch.Tensor
    name: str = "given"


class Marked(torch.Tensor):
    """A kind of tensor of its own."""


@dataclasses.dataclass(frozen=True)
class Known:
    images: torch.Tensor
    count: int


torch.export.register_dataclass(Known, serialized_type_name="pixpack.tests.Known")


# meta stands in for another device: a move to it makes other tensors
@pytest.mark.parametrize("device", ["cpu", "meta", *devices()[1:]])
def test_to_device_moves_every_tensor_of_a_nest(device: str) -> None:
    images, module = torch.zeros(2, 3), torch.nn.Linear(2, 2)
    tensordict = TensorDict({"a": images, "b": TensorDict({"c": images}, batch_size=[2])}, batch_size=[2])
    nest = {
        "list": [images, (images, "text", None)],
        "named": Pair(images, "name"),
        "known": Known(images, 3),
        "tensordict": tensordict,
        "batch": make_batch([1, 2]),
        "module": module,
    }
    moved = to_device(nest, device)
    found = [moved["list"][0], moved["list"][1][0], moved["named"].images, moved["known"].images]
    found += [moved["tensordict"]["a"], moved["tensordict"]["b", "c"], moved["batch"].pixels, moved["batch"].rows]
    found += [moved["batch"].content, *moved["batch"].extras.values()]
    assert {tensor.device.type for tensor in found} == {device}
    assert [type(moved[name]) for name in nest] == [type(value) for value in nest.values()]
    assert moved["list"][1][1:] == ("text", None)
    assert (moved["named"].name, moved["known"].count) == ("name", 3)
    # the tensors' own, its index included
    devices_of_nodes = {moved["tensordict"].device, moved["batch"].device, moved["tensordict"]["b"].device}
    assert devices_of_nodes == {moved["tensordict"]["a"].device}
    # not a tensor: moving it would change the caller's own
    assert moved["module"] is module
    assert module.weight.device.type == "cpu"
    assert nest["batch"].pixels.device.type == "cpu"


def test_to_device_copies_nothing_that_is_there_already() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    images, batch, there = torch.zeros(3), make_batch([1]), TensorDict({"a": torch.zeros(1)}, device="cpu")
    moved = to_device([images, batch, there, parameter], "cpu")
    assert moved[0] is images
    assert moved[1].pixels.data_ptr() == batch.pixels.data_ptr()
    assert moved[2] is there
    assert moved[3] is parameter


@pytest.mark.parametrize("device", ["meta", *devices()[1:]])
def test_to_device_gives_what_the_own_to_of_each_gives(device: str) -> None:
    def made(**more: Any) -> TensorDict:
        return TensorDict({"a": torch.ones(2), **more}, batch_size=[2])

    def leaves(nodes: Any) -> list[Any]:
        return [(key, type(value), value.device) for key, value in nodes.items(True, True)]

    collections = [
        made(n=made()).lock_(),
        made(n=made().lock_()),
        TensorDictParams(made(n=made())),
        lazy_stack([made(), made()]).lock_(),
        make_batch([1, 2]).lock_(),
    ]
    for sent, moved in zip(collections, to_device(collections, device), strict=True):
        own = sent.to(device)
        assert (type(moved), moved.is_locked, moved.device) == (type(own), own.is_locked, own.device)
        assert leaves(moved) == leaves(own)


@pytest.mark.parametrize("device", ["cpu", "meta", *devices()[1:]])
@pytest.mark.parametrize("enforce_sorted", [True, False])
def test_to_device_leaves_a_packed_sequences_batch_sizes_on_the_host(device: str, enforce_sorted: bool) -> None:
    packed = pack_sequence([torch.ones(3, 2), torch.ones(2, 2)], enforce_sorted=enforce_sorted)
    moved = to_device({"words": packed}, device)["words"]
    assert type(moved) is type(packed)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == (device, "cpu")
    assert moved.batch_sizes.tolist() == [2, 2, 1]
    assert {index.device.type for index in moved[2:] if index is not None} == (set() if enforce_sorted else {device})
    assert (moved is packed) is (device == "cpu")


@pytest.mark.parametrize("device", ["meta", *devices()[1:]])
def test_to_device_keeps_kinds_of_tensors_and_of_containers(device: str) -> None:
    one = torch.ones(2)
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    tensors = [torch.eye(3).to_sparse(), jagged, one.as_subclass(Marked)]
    tensors += [torch.nn.Parameter(one), torch.nn.Buffer(one), one.clone().requires_grad_()]
    for sent, moved in zip(tensors, to_device(tensors, device), strict=True):
        own = sent.to(device)
        assert (type(moved), moved.layout, moved.device) == (type(own), own.layout, own.device)
        assert (moved.requires_grad, moved.is_leaf) == (own.requires_grad, own.is_leaf)
    containers = [OrderedDict(b=one, a=one), defaultdict(list, a=one), deque([one], maxlen=3), Pair(one), one.max(0)]
    for sent, moved in zip(containers, to_device(containers, device), strict=True):
        assert type(moved) is type(sent)
        assert {leaf.device.type for leaf in pytree.tree_leaves(moved) if isinstance(leaf, torch.Tensor)} == {device}
    others = [Counter(a=1), torch.Size([2]), None, {1, 2}, "text", 3]
    assert to_device(others, device) == others
    assert [type(value) for value in to_device(others, device)] == [type(value) for value in others]


def test_to_device_moves_what_is_twice_in_a_nest_twice_as_pytree_does() -> None:
    one = torch.ones(2)
    first, second = to_device([one, one], "meta")
    assert first is not second


@pytest.mark.cuda
def test_to_device_takes_what_torch_cannot_pin() -> None:
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    assert torch.equal(to_device(quantized, "cuda").cpu().int_repr(), quantized.int_repr())
    assert [part.tolist() for part in to_device(nested, "cuda").unbind()] == [[1, 1], [1, 1, 1]]


@pytest.mark.cuda
def test_to_device_takes_tensors_of_any_strides() -> None:
    tensors = [torch.arange(3).expand(4, 3), torch.arange(6).view(2, 3).t(), torch.arange(8)[::2], torch.empty(3, 0)]
    for tensor, moved in zip(tensors, to_device(tensors, "cuda"), strict=True):
        assert torch.equal(moved.cpu(), tensor)


@pytest.mark.cuda
def test_to_device_leaves_no_context_on_another_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one CUDA device")
    code = (
        "import torch, reader; reader.to_device([torch.ones(3)], 'cuda:1'); print(torch._C._cuda_hasPrimaryContext(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- bad input


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: RandomHorizontalFlip(1.5), "p is 1.5, expected a probability"),
        (lambda: RandomCrop(0), "size is 0, expected pixels"),
        (lambda: RandomCrop(8, padding=-1), "padding is -1"),
        (lambda: RandomResizedCrop("224"), "size is '224', expected pixels"),  # type: ignore[arg-type]
        (lambda: RandomResizedCrop((8, 2.5)), "size is (8, 2.5), expected pixels"),
        (lambda: RandomResizedCrop(8, scale=(1, 0.5)), "scale is (1, 0.5), expected two numbers above 0"),
        (lambda: RandomResizedCrop(8, ratio=(0, 1)), "ratio is (0, 1), expected two numbers above 0"),
        *(
            (lambda scale=scale: RandomResizedCrop(8, scale=scale), f"scale is {scale!r}, expected two numbers above 0")
            for scale in ((0.08, math.inf), (math.nan, 1), (-1, 1), (1,), 2, ("a", "b"))
        ),
        (lambda: RandomResizedCrop(8, ratio=(math.inf, math.inf)), "ratio is (inf, inf), expected two numbers above 0"),
        (lambda: ColorJitter(math.inf), "brightness is inf, expected 0 or more"),
        (
            lambda: Normalize([0.5], [math.inf]),
            "mean [0.5] and std [inf]: expected one finite number of each a channel",
        ),
        (lambda: Normalize("mean", [1]), "mean is 'mean', expected a number"),  # type: ignore[arg-type]
        (lambda: Normalize([math.nan], [1]), "mean [nan] and std [1]: expected one finite number of each a channel"),
        (lambda: ColorJitter(-0.1), "brightness is -0.1, expected 0 or more"),
        (lambda: ColorJitter(contrast=(2, 1)), "contrast is (2, 1), expected 0 or more"),
        (lambda: RandomCrop(41)(make_batch([1])), "cuts 41 x 41 pixels, but the rows have 40 x 56 and 0 of padding"),
        (lambda: RandomCrop(8)(make_batch([1])[0]), "expected [B, H, W, C]: give a batch, not a row"),
        (lambda: RandomResizedCrop(8)(without_rows()), "the batch has no rows"),
        (
            lambda: RandomHorizontalFlip()(without_count()),
            "[1, 5, 4], expected [B, K, 4] and box_count [B] beside them",
        ),
        (lambda: RandomCrop(8)(with_flat_masks()), "masks have the shape [1, 2240], expected [B, H, W]"),
        (lambda: ColorJitter(0.1)(make_batch([1], channels=4)), "takes 1 or 3 channels, the rows have 4"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(make: Any, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        make()
    assert message in str(raised.value)
    assert str(raised.value).endswith(".")


def without_rows() -> ImageBatch:
    batch = make_batch([1])
    batch.rows = None
    return batch


def without_count() -> ImageBatch:
    batch = make_batch([1])
    del batch.extras["box_count"]
    return batch


def with_flat_masks() -> ImageBatch:
    batch = make_batch([1])
    batch.extras["masks"] = batch.extras["masks"].flatten(1)
    return batch
