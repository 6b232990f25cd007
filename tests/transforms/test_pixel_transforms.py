"""Transforms that leave pixels where they are: by torchvision's definitions, golden values, and how often they are applied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from augmenting import assert_same_distribution, difference, many, pictures, v2
from conftest import Tune, devices

from reader import ColorJitter, ImageBatch, RandomApply, RandomChoice, compiled
from reader.transforms import (
    GaussianBlur,
    Grayscale,
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomGrayscale,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)
from reader.transforms.kernels import pixel_ops

# ours with p=1, and the same of torchvision's functional
SURE: list[tuple[Any, Callable[[Any, torch.Tensor], torch.Tensor]]] = [
    (RandomGrayscale(1), lambda f, image: f.rgb_to_grayscale(image, num_output_channels=image.shape[-3])),
    (Grayscale(), lambda f, image: f.rgb_to_grayscale(image)),
    (Grayscale(3), lambda f, image: f.rgb_to_grayscale(image, num_output_channels=3)),
    (RandomInvert(1), lambda f, image: f.invert(image)),
    (RandomSolarize(100, 1), lambda f, image: f.solarize(image, 100)),
    (RandomPosterize(3, 1), lambda f, image: f.posterize(image, 3)),
    (RandomPosterize(8, 1), lambda f, image: f.posterize(image, 8)),
    (RandomPosterize(0, 1), lambda f, image: f.posterize(image, 0)),
    (RandomEqualize(1), lambda f, image: f.equalize(image)),
    (RandomAutocontrast(1), lambda f, image: f.autocontrast(image)),
    (RandomAdjustSharpness(2.5, 1), lambda f, image: f.adjust_sharpness(image, 2.5)),
    (RandomAdjustSharpness(0, 1), lambda f, image: f.adjust_sharpness(image, 0)),
    (GaussianBlur(5, 1.3), lambda f, image: f.gaussian_blur(image, [5, 5], [1.3, 1.3])),
    (GaussianBlur((3, 7), 0.8), lambda f, image: f.gaussian_blur(image, [3, 7], [0.8, 0.8])),
]
RANDOM = [
    RandomGrayscale(),
    RandomInvert(),
    RandomSolarize(100),
    RandomPosterize(3),
    RandomEqualize(),
    RandomAutocontrast(),
    RandomAdjustSharpness(2),
]


def name_of(value: Any) -> str:
    return type(value[0] if isinstance(value, tuple) else value).__name__


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pair", SURE, ids=name_of)
def test_pixels_are_torchvisions(pair: Any, channels: int, device: str) -> None:
    ours, theirs = pair
    functional = v2().functional
    batch = pictures(channels=channels, device=device)
    expected = torch.stack([theirs(functional, image) for image in batch.images])
    assert difference(ours(batch).images, expected) <= 1
    assert (ours(batch).images != expected).float().mean() < 2e-3


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "sharpness", "hue", "solarize", "posterize"])
def test_each_image_has_a_parameter_of_its_own(name: str, device: str) -> None:
    functional = v2().functional
    batch = pictures(device=device)
    parameters = {
        "hue": torch.linspace(-0.5, 0.5, 12),
        "solarize": torch.linspace(0, 255, 12),
        "posterize": torch.arange(12) % 9,
    }.get(name, torch.linspace(0, 2.4, 12))
    theirs = getattr(functional, name, None) or getattr(functional, f"adjust_{name}")
    expected = [theirs(image, value) for image, value in zip(batch.images, parameters.tolist(), strict=True)]
    for images in (batch.images, pixel_ops.planes(batch.pixels)):
        made = pixel_ops.in_parts(getattr(pixel_ops, name), images, parameters.to(device))
        assert difference(made, torch.stack(expected)) <= 1
        assert (made != torch.stack(expected)).float().mean() < 1e-2


def test_parts_are_what_the_batch_is(tune: Tune) -> None:
    batch, factor = pictures(), torch.linspace(0, 2.4, 12)
    full = pixel_ops.sharpness(batch.images, factor)
    seen: list[int] = []

    def kernel(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        seen.append(len(images))
        return pixel_ops.sharpness(images, factor)

    tune(cpu_pass_bytes=5 * 24 * 20 * 3)
    assert torch.equal(pixel_ops.in_parts(kernel, batch.images, factor), full)
    assert seen == [5, 5, 2]


@pytest.mark.parametrize("at_once", [1, 5, 100])
@pytest.mark.parametrize("kernel", [pixel_ops.sharpness, pixel_ops.brightness])
def test_some_images_are_changed_in_place(kernel: Any, at_once: int, tune: Tune) -> None:
    batch, factor, positions = pictures(), torch.linspace(0, 2.4, 12), [1, 2, 5, 6, 7, 9, 11]
    tune(cpu_pass_bytes=at_once * 24 * 20 * 3)
    expected = batch.images.clone()
    expected[positions] = kernel(batch.images, factor)[positions]
    interleaved = batch.pixels.clone()
    for images in (interleaved.movedim(-1, 1), pixel_ops.planes(batch.pixels)):
        pixel_ops.change(kernel, images, positions, factor)
        assert torch.equal(images, expected)


def one_row(levels: list[int]) -> ImageBatch:
    pixels, rows = torch.tensor(levels, dtype=torch.uint8).view(1, 1, -1, 1), torch.arange(1)
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[1])


# by hand
GOLDEN = [
    (RandomInvert(1), [0, 1, 200], [255, 254, 55]),
    (RandomSolarize(128, 1), [0, 127, 128, 255], [0, 127, 127, 0]),
    (RandomPosterize(2, 1), [0, 63, 64, 255], [0, 0, 64, 192]),
    # 17 / 85 * 255
    (RandomAutocontrast(1), [0, 17, 85], [0, 51, 255]),
    (RandomAutocontrast(1), [9, 9, 9], [9, 9, 9]),
    # 510 pixels without the lightest give a step of 2: (255 + 1) // 2 and (510 + 1) // 2 of the number below
    (RandomEqualize(1), [0] * 255 + [10] * 255 + [20] * 5, [0] * 255 + [128] * 255 + [255] * 5),
    # 3 pixels give a step of 0: nothing is changed
    (RandomEqualize(1), [3, 5, 7], [3, 5, 7]),
    (RandomGrayscale(1), [3, 5, 7], [3, 5, 7]),
]


@pytest.mark.parametrize("case", GOLDEN, ids=name_of)
def test_golden_levels(case: Any) -> None:
    transform, levels, expected = case
    assert transform(one_row(levels)).pixels.flatten().tolist() == expected


def colors(*levels: tuple[int, int, int]) -> ImageBatch:
    pixels, rows = torch.tensor([levels], dtype=torch.uint8)[:, None], torch.arange(1)
    return ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[1])


def test_a_third_of_a_turn_makes_red_green() -> None:
    batch = colors((200, 0, 0), (0, 100, 0), (10, 10, 10), (90, 60, 30))
    made = pixel_ops.hue(batch.images, torch.tensor([1 / 3]))
    assert made[0, :, 0].T.tolist() == [[0, 200, 0], [0, 0, 100], [10, 10, 10], [30, 90, 60]]
    assert torch.equal(pixel_ops.hue(batch.images, torch.zeros(1)), batch.images)


def test_gray_is_the_weighted_sum() -> None:
    # 0.2989 * 100 + 0.587 * 50 + 0.114 * 10 = 60.38
    assert Grayscale()(colors((100, 50, 10))).pixels.flatten().tolist() == [60]
    assert Grayscale(3)(colors((100, 50, 10))).pixels.flatten().tolist() == [60, 60, 60]


def test_a_sharpened_spot_stands_out_and_the_edge_stays() -> None:
    images = torch.full((1, 1, 3, 3), 100, dtype=torch.uint8)
    images[0, 0, 1, 1] = 113
    # the smoothed spot is (8 * 100 + 5 * 113) / 13 = 105
    assert pixel_ops.sharpness(images, torch.tensor([0.0]))[0, 0, 1, 1] == 105
    sharp = pixel_ops.sharpness(images, torch.tensor([2.0]))
    assert sharp[0, 0, 1, 1] == 121
    assert sharp.sum() == 921


def test_blurring_keeps_the_sum_of_a_spot_and_spreads_it_evenly() -> None:
    pixels, rows = torch.zeros(1, 9, 9, 1, dtype=torch.uint8), torch.arange(1)
    pixels[0, 4, 4] = 240
    batch = ImageBatch(pixels=pixels, targets=rows, rows=rows, batch_size=[1])
    # so wide that all 3 x 3 weights are 1 / 9
    made = GaussianBlur(3, 1000.0)(batch).pixels[0, ..., 0]
    assert made[3:6, 3:6].unique().tolist() == [27]
    assert made.sum() == 9 * 27


def test_a_kernel_that_is_too_large_is_an_error_where_an_image_is_blurred_alone() -> None:
    batch = pictures(40, size=(20, 18))
    for never in (RandomApply([GaussianBlur(99)], p=0), RandomChoice([GaussianBlur(99), RandomInvert(0)], p=[0, 1])):
        assert torch.equal(never(batch).pixels, batch.pixels)
    for sometimes in (GaussianBlur(99), RandomApply([GaussianBlur(99)], p=0.5)):
        with pytest.raises(ValueError, match="too many to reflect images of 18 x 20"):
            sometimes(batch)


@pytest.mark.parametrize("transform", RANDOM, ids=name_of)
def test_as_many_are_changed_as_p_says_each_by_itself(transform: Any) -> None:
    batch = pictures(800, size=(20, 18))
    sure = type(transform)(*[v for k, v in vars(transform).items() if k not in ("p", "seed")], p=1)(batch).pixels
    made = transform(batch).pixels
    is_made, is_left = ((made == other).flatten(1).all(1) for other in (sure, batch.pixels))
    assert (is_made | is_left).all()
    is_changed = is_made & ~is_left
    can_change = ~(sure == batch.pixels).flatten(1).all(1)
    assert abs(float(is_changed.sum() / can_change.sum()) - transform.p) < 5 * (0.25 / 800) ** 0.5
    assert torch.equal(transform(batch[700:705]).pixels, made[700:705])


def test_blur_and_gray_of_one_seed_are_drawn_apart() -> None:
    batch = pictures(600)
    sigmas, gray = GaussianBlur(3).sigmas(batch), RandomGrayscale(0.5)(batch).pixels
    is_gray = (gray[..., 0] == gray[..., 1]).flatten(1).all(1)
    assert 200 < is_gray.sum() < 400
    # of 0.1 to 2 each mean is off by some 0.03
    assert abs(float(sigmas[is_gray].mean() - sigmas[~is_gray].mean())) < 0.3


def test_blurs_are_drawn_as_torchvision_draws_them() -> None:
    theirs = v2().GaussianBlur(5, (0.3, 1.9))
    sigmas = [theirs.make_params([])["sigma"][0] for _ in range(4000)]
    assert_same_distribution(GaussianBlur(5, (0.3, 1.9)).sigmas(many()), sigmas)


def test_jitter_is_drawn_as_torchvision_draws_it() -> None:
    theirs = v2().ColorJitter(0.4, (0.2, 1.5), 0.9, (-0.1, 0.3))
    drawn = [theirs.make_params([]) for _ in range(4000)]
    factors, orders = ColorJitter(0.4, (0.2, 1.5), 0.9, (-0.1, 0.3)).drawn(many())
    for ours, name in zip(factors, ("brightness", "contrast", "saturation", "hue"), strict=True):
        assert_same_distribution(ours, [each[f"{name}_factor"] for each in drawn])
    numbers = [torch.stack([each["fn_idx"] for each in drawn]), orders]
    ours_of, theirs_of = ((order * torch.tensor([64, 16, 4, 1])).sum(1) for order in numbers)
    assert len(ours_of.unique()) == 24
    assert_same_distribution(ours_of, theirs_of)


def test_hue_alone_in_a_jitter_is_torchvisions() -> None:
    batch, jitter = pictures(), ColorJitter(hue=0.4, seed=5)
    factors, _ = jitter.drawn(batch)
    expected = [
        v2().functional.adjust_hue(image, float(factor)) for image, factor in zip(batch.images, factors[3], strict=True)
    ]
    assert difference(jitter(batch).images, torch.stack(expected)) <= 1


@pytest.mark.parametrize("given", [(0.4, 0.4, 0.4, 0.1), (0, 0, 0, 0.2), (0, 0.5, 0, 0)])
def test_jitter_of_a_device_is_that_of_the_cpu(given: Any) -> None:
    """Elsewhere torch's kernels make the steps of all images that have one kind at once."""
    batch, jitter = pictures(40), ColorJitter(*given)
    made = jitter(batch)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_function", lambda: None)
        assert difference(jitter(batch).images, made.images) <= 1


@pytest.mark.parametrize("given", [0.6, -0.1, (0.2, 0.1), (-0.6, 0)])
def test_hues_that_are_none_are_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"hue is .* expected 0 to 0.5, or two numbers"):
        ColorJitter(hue=given)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Grayscale(2), "num_output_channels is 2, expected 1 or 3"),
        (lambda: RandomPosterize(9), "bits is 9, expected 0 to 8"),
        (lambda: RandomSolarize(256), "threshold is 256, expected a level"),
        (lambda: RandomAdjustSharpness(-1), "sharpness_factor is -1, expected 0 or more"),
        (lambda: RandomInvert(1.5), "p is 1.5, expected a probability"),
        (lambda: GaussianBlur(4), "kernel_size is 4, expected an odd number"),
        (lambda: GaussianBlur(3, 0), "sigma is 0, expected a number above 0"),
        (lambda: GaussianBlur(49)(pictures()), "too many to reflect images of 20 x 24"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()
