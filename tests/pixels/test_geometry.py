"""Geometry: `crop` is torchvision's Resize and CenterCrop bit for bit; the other fits keep what they promise."""

from __future__ import annotations

import io

import numpy as np
import pytest
from conftest import photo, torchvision_or_skip
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from packer.errors import DecodeError
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry, pillow_distribution

SIZES = [(500, 375), (375, 500), (224, 224), (333, 250), (257, 256), (31, 900), (640, 7), (225, 224), (100, 80)]
RESAMPLES = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "box": 4}


def reference_crop(image: Image.Image, size: int, fraction: float, resample: int) -> Image.Image:
    """Resize and CenterCrop as torchvision writes them down for PIL images."""
    width, height = image.size
    short = int(size / fraction)
    if width <= height:
        image = image.resize((short, int(short * height / width)), resample)
    else:
        image = image.resize((int(short * width / height), short), resample)
    left, top = round((image.width - size) / 2.0), round((image.height - size) / 2.0)
    return image.crop((left, top, left + size, top + size))


def assert_same(row: Image.Image | np.ndarray, expected: Image.Image | np.ndarray) -> None:
    """See that pixels are those that the live Pillow makes: Pillow-SIMD's bit for bit, plain Pillow's within two levels."""
    levels = np.abs(np.asarray(row, np.int16) - np.asarray(expected, np.int16)).max()
    assert levels <= (0 if pillow_distribution() == "pillow-simd" else 2)


@pytest.mark.parametrize("resample", RESAMPLES)
@pytest.mark.parametrize("fraction", [1.0, 0.875])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_crop_is_resize_then_center_crop(size: tuple[int, int], fraction: float, resample: str) -> None:
    image = photo(*size, seed=1)
    geometry = Geometry(96, 96, "crop", fraction, resample)
    row, content = geometry.to_row(image, geometry.resized(*size))
    assert_same(row, reference_crop(image, 96, fraction, RESAMPLES[resample]))
    assert content == (0, 0, 96, 96)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_crop_is_torchvisions(size: tuple[int, int]) -> None:
    v2 = torchvision_or_skip().transforms.v2
    image = photo(*size, seed=2)
    expected = v2.Compose([v2.Resize(109), v2.CenterCrop(96)])(image)
    geometry = Geometry(96, 96, "crop", 96 / 109)
    row, _ = geometry.to_row(image, geometry.resized(*size))
    assert_same(row, expected)


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from([1.0, 0.875, 0.5]),
)
def test_crop_always_covers(width: int, height: int, row_h: int, row_w: int, fraction: float) -> None:
    resized_w, resized_h = Geometry(row_h, row_w, "crop", fraction).resized(width, height)
    assert resized_w >= row_w
    assert resized_h >= row_h
    # and not more than needed: one side is the covered one
    assert resized_w == int(row_w / fraction) or resized_h == int(row_h / fraction)


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(1, 300),
    st.integers(1, 300),
    st.sampled_from(["pad", "inside"]),
)
def test_pad_and_inside_always_fit_and_touch_two_sides(
    width: int, height: int, row_h: int, row_w: int, fit: str
) -> None:
    resized_w, resized_h = Geometry(row_h, row_w, fit).resized(width, height)
    assert 1 <= resized_w <= row_w
    assert 1 <= resized_h <= row_h
    assert resized_w == row_w or resized_h == row_h


@pytest.mark.parametrize(
    ("fit", "content"), [("pad", (12, 0, 36, 48)), ("inside", (0, 0, 24, 48)), ("squash", (0, 0, 48, 48))]
)
def test_content_is_where_the_image_is(fit: str, content: tuple[int, int, int, int]) -> None:
    image = photo(200, 100, seed=3)
    geometry = Geometry(48, 48, fit)
    row, found = geometry.to_row(image, geometry.resized(200, 100))
    assert found == content
    y0, x0, y1, x1 = content
    pixels = np.asarray(row)
    resized = np.asarray(image.resize((x1 - x0, y1 - y0), 2))
    assert_same(pixels[y0:y1, x0:x1], resized)
    outside = pixels.astype(int).sum() - pixels[y0:y1, x0:x1].astype(int).sum()
    assert outside == 0


@pytest.mark.parametrize(
    ("size", "scale"), [((4000, 3000), 4), ((1000, 750), 1), ((1200, 900), 1), ((1280, 960), 2), ((9000, 9000), 8)]
)
def test_dct_scaling_leaves_twice_the_target(size: tuple[int, int], scale: int) -> None:
    # resized to short side 480 at most, twice of which must remain: 4000 x 3000 / 4 = 1000 x 750 for 298 x 224 ...
    decoder = Decoder(Geometry(224, 224) if scale != 1 or size[0] < 1200 else Geometry(480, 480))
    found = decoder._rules.dct_scale(*size, 1)
    target_w, target_h = decoder._rules.geometry.resized(*size)  # type: ignore[union-attr]
    assert -(-size[0] // found) >= 2 * target_w or found == 1
    assert -(-size[1] // found) >= 2 * target_h or found == 1
    if found < 8:
        assert -(-size[1] // (found * 2)) < 2 * target_h or -(-size[0] // (found * 2)) < 2 * target_w


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_picture_so_narrow_that_its_crop_takes_gigabytes_is_rejected(kind: str) -> None:
    image, data = Image.new("RGB", (1, 65_500)), io.BytesIO()
    image.save(data, kind)
    with pytest.raises(DecodeError, match="too long and narrow: 1 x 65500 pixels, which would become 224 x 14672000"):
        Decoder(Geometry(224, 224)).row(data.getvalue())
    assert len(Decoder(Geometry(224, 224, "pad")).row(data.getvalue()).pixels) == 224 * 224 * 3
