"""RandomAffine and RandomRotation: pixels and boxes as torchvision moves them, drawn as torchvision draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, difference, many, pictures, v2
from conftest import devices, torchvision_or_skip
from tensordict import TensorDict

from reader import ImageBatch
from reader.transforms import RandomAffine, RandomRotation
from reader.transforms.affine import inverse_matrices, warped

AFFINE = {"degrees": 40, "translate": (0.2, 0.3), "scale": (0.7, 1.4), "shear": (-20, 20, -10, 15)}


def parameters(transform: RandomAffine, batch: ImageBatch) -> list[dict[str, Any]]:
    """Return for each image what torchvision's functional takes."""
    names = ("angle", "translate", "scale", "shear")
    return [
        dict(zip(names, each, strict=True))
        for each in zip(*(drawn.tolist() for drawn in transform.drawn(batch)), strict=True)
    ]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("fill", [None, 0, 128, (10, 200, 30)])
@pytest.mark.parametrize("center", [None, (3, 17)])
def test_affine_pixels_are_torchvisions(interpolation: str, fill: Any, center: Any, device: str) -> None:
    functional = v2().functional
    batch = pictures(24, size=(30, 41), device=device)
    transform = RandomAffine(**AFFINE, interpolation=interpolation, fill=fill, center=center)
    given = {"interpolation": v2().InterpolationMode(interpolation), "fill": fill, "center": center}
    expected = [
        functional.affine(image, **each, **given)
        for image, each in zip(batch.images, parameters(transform, batch), strict=True)
    ]
    made, expected = transform(batch).images, torch.stack(expected)
    if interpolation == "bilinear":
        assert difference(made, expected) <= 1
    # a place between two pixels may be rounded to either, in float32
    assert (made != expected).float().mean() < 2e-3


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("center", [None, (3, 17)])
def test_rotated_pixels_are_torchvisions(interpolation: str, center: Any) -> None:
    functional = v2().functional
    batch = pictures(24, size=(30, 41))
    transform = RandomRotation(180, interpolation, center=center)
    expected = [
        functional.rotate(image, angle, v2().InterpolationMode(interpolation), center=center, fill=0)
        for image, angle in zip(batch.images, transform.angles(batch).tolist(), strict=True)
    ]
    assert (transform(batch).images != torch.stack(expected)).float().mean() < 2e-3


def test_a_rotation_that_would_change_sizes_is_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=r"expand=True would give every image of a batch another size\. .*DataLoader"):
        RandomRotation(30, "bilinear", True)
    assert RandomRotation(30, "bilinear", False, (1, 2), 7).fill == 7


def test_a_quarter_of_a_turn_counterclockwise_is_rot90() -> None:
    batch = pictures(size=(20, 20))
    for interpolation in ("nearest", "bilinear"):
        made = RandomRotation((90, 90), interpolation)(batch).images
        assert torch.equal(made, batch.images.rot90(1, (-2, -1)))
    # another half of one, of a size that is no square
    batch = pictures()
    assert torch.equal(RandomRotation((180, 180))(batch).images, batch.images.flip(-1, -2))


def test_nothing_drawn_changes_nothing() -> None:
    batch = pictures()
    assert torch.equal(RandomAffine(0)(batch).pixels, batch.pixels)
    assert torch.equal(RandomAffine(0, interpolation="bilinear")(batch).pixels, batch.pixels)


def test_a_shift_by_an_integer_of_pixels_is_exact() -> None:
    batch = pictures(2)
    zeros, ones = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    shift = torch.tensor([[3.0, 0.0], [-2.0, 5.0]], dtype=torch.float64)
    matrices = inverse_matrices(batch, zeros, shift, ones, torch.zeros(2, 2, dtype=torch.float64))
    for interpolation in ("nearest", "bilinear"):
        made = warped(batch.pixels, matrices, interpolation, 9)
        assert torch.equal(made[0, :, 3:], batch.pixels[0, :, :-3])
        assert (made[0, :, :3] == 9).all()
        assert torch.equal(made[1, 5:, :-2], batch.pixels[1, :-5, 2:])


def labelled(count: int = 16, size: tuple[int, int] = (30, 41)) -> ImageBatch:
    """Give each picture the same two boxes, the mask of the first, and a content."""
    batch = pictures(count, size=size)
    boxes = torch.tensor([[8.0, 6.0, 20.0, 15.0], [30.0, 2.0, 40.0, 29.0]]).expand(count, 2, 4).clone()
    masks = torch.zeros(count, *size, dtype=torch.uint8)
    masks[:, 6:15, 8:20] = 1
    batch.content = torch.tensor([5, 4, 25, 36], dtype=torch.int32).expand(count, 4).clone()
    extras = {"boxes": boxes, "box_count": torch.full((count,), 2, dtype=torch.int32), "masks": masks}
    batch.extras = TensorDict(extras, batch_size=[count])
    return batch


def test_boxes_and_masks_move_as_torchvision_moves_them() -> None:
    batch, transform = labelled(), RandomAffine(**AFFINE)
    tv_tensors, functional = torchvision_or_skip().tv_tensors, v2().functional
    made = transform(batch)
    for n, given in enumerate(parameters(transform, batch)):
        boxes = tv_tensors.BoundingBoxes(batch.extras["boxes"][n], format="XYXY", canvas_size=(30, 41))
        expected = functional.affine(boxes, **given).as_subclass(torch.Tensor)
        expected = expected[(expected[:, :2] < expected[:, 2:]).all(1)]
        count = int(made.extras["box_count"][n])
        torch.testing.assert_close(made.extras["boxes"][n, :count], expected, atol=1e-3, rtol=0)
        mask = functional.affine(tv_tensors.Mask(batch.extras["masks"][n]), **given | {"fill": 255})
        assert (made.extras["masks"][n] != mask.as_subclass(torch.Tensor)).float().mean() < 2e-3


def test_a_mask_is_within_its_box_and_the_image_within_the_content() -> None:
    batch = labelled()
    for transform in (RandomAffine(**AFFINE, seed=3), RandomRotation(90)):
        made = transform(batch)
        for mask, boxes in zip(made.extras["masks"], made.extras["boxes"], strict=True):
            y, x = (positions.float() + 0.5 for positions in (mask == 1).nonzero().unbind(1))
            x0, y0, x1, y1 = boxes[0].tolist()
            assert ((x > x0 - 1) & (x < x1 + 1) & (y > y0 - 1) & (y < y1 + 1)).all()
        assert made.content.dtype == torch.int32
        assert ((made.content[:, :2] >= 0) & (made.content[:, 2:] <= torch.tensor([30, 41]))).all()


def test_a_quarter_of_a_turn_moves_a_box_by_hand() -> None:
    batch = labelled(1, (20, 20))
    batch.extras["boxes"][:, 0] = torch.tensor([2.0, 3.0, 8.0, 5.0])
    batch.content = torch.tensor([[1, 2, 10, 20]], dtype=torch.int32)
    made = RandomRotation((90, 90))(batch)
    # x, y -> y, 20 - x
    torch.testing.assert_close(made.extras["boxes"][0, 0], torch.tensor([3.0, 12.0, 5.0, 18.0]))


def test_parameters_are_drawn_as_torchvision_draws_them() -> None:
    theirs, batch = v2().RandomAffine(**AFFINE), many(size=(30, 41))
    image = torch.zeros(3, 30, 41)
    drawn = [theirs.make_params([image]) for _ in range(4000)]
    angle, shift, scale, shear = RandomAffine(**AFFINE).drawn(batch)
    assert_same_distribution(angle, [each["angle"] for each in drawn])
    assert_same_distribution(scale, [each["scale"] for each in drawn])
    for axis in (0, 1):
        assert_same_distribution(shift[:, axis], [each["translate"][axis] for each in drawn])
        assert_same_distribution(shear[:, axis], [each["shear"][axis] for each in drawn])
    rotation = v2().RandomRotation((-10, 70))
    angles = [rotation.make_params([])["angle"] for _ in range(4000)]
    assert_same_distribution(RandomRotation((-10, 70)).angles(batch), angles)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"degrees": -1}, "degrees is -1, expected 0 or more degrees"),
        ({"degrees": (1, 2, 3)}, "degrees is .* expected degrees"),
        ({"degrees": 0, "translate": (0, 2)}, "translate is .* expected two shares"),
        ({"degrees": 0, "scale": (0, 1)}, "scale is .* expected two factors"),
        ({"degrees": 0, "shear": (1, 2, 3)}, "shear is"),
        ({"degrees": 0, "interpolation": "bicubic"}, 'interpolation is .bicubic., expected "nearest"'),
        ({"degrees": 0, "center": (1,)}, "center is .* expected x and y"),
        ({"degrees": "30"}, "degrees is '30', expected a number"),
        ({"degrees": 0, "translate": 0.1}, "translate is 0.1, expected two shares"),
        ({"degrees": 0, "scale": 0.5}, "scale is 0.5, expected two factors"),
        ({"degrees": 0, "center": 5}, "center is 5, expected x and y"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        RandomAffine(**given)


def test_a_fill_of_other_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="fill is .* expected one level, or one for each of 3"):
        RandomAffine(3, fill=(1, 2))(pictures())
