"""Bytes of all kinds: upright, in the right colors, or rejected with a reason that a person understands."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from conftest import photo
from PIL import Image

from packer.errors import DecodeError
from packer.pixels import compiled, jpeg
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry

SIZE = (60, 44)


def encoded(image: Image.Image, format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def decoded(data: bytes, size: tuple[int, int] = SIZE, **options: Any) -> np.ndarray[Any, Any]:
    """Decode at full size: uint8[H, W, C]."""
    width, height = size
    row = Decoder(Geometry(height, width, "squash"), exact=True, **options).row(data)
    return np.frombuffer(row.pixels, np.uint8).reshape(height, width, -1)


def pillow(data: bytes, mode: str = "RGB") -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode)).reshape(SIZE[1], SIZE[0], -1)


PHOTO = photo(*SIZE, seed=4)


@pytest.mark.parametrize("options", [{"quality": 90}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}])
def test_jpeg_is_pillows_bit_for_bit(options: dict[str, Any]) -> None:
    data = encoded(PHOTO, "JPEG", **options)
    assert np.array_equal(decoded(data), pillow(data))


@pytest.mark.parametrize("format", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_other_formats_are_pillows(format: str) -> None:
    data = encoded(PHOTO, format)
    assert np.array_equal(decoded(data), pillow(data))


@pytest.mark.parametrize("mode", ["L", "1", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb_as_people_expect(mode: str) -> None:
    if mode == "I;16":
        deep = (np.asarray(PHOTO.convert("L")).astype(np.uint16) << 8) + 99
        data = encoded(Image.fromarray(deep), "PNG")
        # the high byte, not saturated as a plain convert would
        expected = np.repeat(np.asarray(PHOTO.convert("L"))[:, :, None], 3, axis=2)
    else:
        data = encoded(PHOTO.convert(mode), "JPEG" if mode == "CMYK" else "PNG")
        expected = pillow(data)
    assert np.array_equal(decoded(data), expected)


def test_gray_jpeg_becomes_rgb_and_channels_are_chosen() -> None:
    gray = encoded(PHOTO.convert("L"), "JPEG")
    assert np.array_equal(decoded(gray), pillow(gray))
    assert np.array_equal(decoded(gray, channels="gray"), pillow(gray, "L"))
    color = encoded(PHOTO, "JPEG")
    assert np.array_equal(decoded(color, channels="gray"), pillow(color, "L"))
    assert np.array_equal(decoded(color, channels="rgba"), pillow(color, "RGBA"))
    half = PHOTO.convert("RGBA")
    half.putalpha(77)
    assert np.array_equal(decoded(encoded(half, "PNG"), channels="rgba")[..., 3], np.full(SIZE[::-1], 77))


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Store an upright image as a camera with this EXIF orientation does: the inverse of making it upright."""
    inverse = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    return image.transpose(inverse[orientation]) if orientation > 1 else image


def test_dct_scaling_is_recorded_and_close() -> None:
    data = encoded(photo(2000, 1500, seed=5), "JPEG", quality=95)
    geometry = Geometry(96, 96)
    fast, exact = Decoder(geometry).row(data), Decoder(geometry, exact=True).row(data)
    assert fast.done["dct_scale"] == 4
    assert "dct_scale" not in exact.done
    a, b = (np.frombuffer(row.pixels, np.uint8).astype(int) for row in (fast, exact))
    assert np.abs(a - b).mean() < 1.5
    assert (fast.width, fast.height) == (2000, 1500)


def test_without_libturbojpeg_pillow_gives_the_same_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(photo(1000, 750, seed=6), "JPEG", quality=92)
    geometry = Geometry(64, 64)
    fast = Decoder(geometry).row(data)
    monkeypatch.setattr(jpeg, "is_installed", lambda: False)
    monkeypatch.setattr("packer.pixels.decode.native", compiled.Native)
    slow = Decoder(geometry).row(data)
    assert slow.done["decoder"] == "Pillow"
    assert slow.done["dct_scale"] == fast.done["dct_scale"] == 4
    assert slow.pixels == fast.pixels


# -- what is rejected

JPEG = encoded(photo(200, 150, seed=7), "JPEG", quality=90)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "^Pillow refuses it: cannot identify image file$"),
        (JPEG[: len(JPEG) * 4 // 10], r"^Pillow refuses it: image file is truncated \(\d+ bytes not processed\)$"),
        (JPEG[:-2], "^Pillow refuses it: image file is truncated"),
        (encoded(photo(200, 150, seed=7), "JPEG", progressive=True)[:4000], "truncated"),
        (JPEG[:300], "cannot identify image file|[Tt]runcated"),
        (encoded(photo(200, 150, seed=8), "PNG")[:4000], "truncated"),
        (encoded(photo(200, 150, seed=8), "WEBP")[:400], "could not create decoder object"),
        (b"<!DOCTYPE html><html><body>404", "^Pillow refuses it: cannot identify image file$"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 50, "PNG|identify"),
        (JPEG.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc1\x00\x11\x0c"), "cannot identify image file"),
        (JPEG.replace(b"\xff\xc0\x00\x11\x08", b"\xff\xc3\x00\x11\x08"), "Pillow refuses it: "),
        (
            JPEG.replace(b"\xff\xc0\x00\x11\x08\x00\x96\x00\xc8", b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff"),
            "4294836225 pixels",
        ),
    ],
)
def test_what_is_no_image_says_what_it_is(data: bytes, text: str) -> None:
    with pytest.raises(DecodeError, match=text) as caught:
        Decoder(Geometry(32, 32)).row(data)
    assert "BytesIO" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_warnings_are_recorded() -> None:
    data = JPEG.replace(b"\xff\xc4", b"abc\xff\xc4", 1)
    row = Decoder(Geometry(32, 32)).row(data)
    assert row.done["decoder"] == "Pillow"
    assert "extraneous bytes" in row.done["warnings"][0]


def test_a_jpeg_that_was_cut_and_closed_is_rejected() -> None:
    """Pillow takes it without a word and leaves the rest gray."""
    data = encoded(PHOTO, "JPEG")
    cut = data[: len(data) * 6 // 10] + b"\xff\xd9"
    Image.open(io.BytesIO(cut)).load()
    with pytest.raises(DecodeError, match="it is cut short .*premature end of data"):
        decoded(cut)
    assert decoded(data).shape == (44, 60, 3)


def test_the_callers_settings_of_pillow_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import ImageFile

    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(DecodeError, match="truncated"):
        Decoder(Geometry(32, 32)).row(encoded(PHOTO, "PNG")[:3000])
