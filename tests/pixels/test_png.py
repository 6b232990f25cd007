"""Plain PNGs that become rows without Pillow: the same row, or the same reason, as with it."""

from __future__ import annotations

import io
import random
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer.errors import DecodeError
from packer.pixels.compiled import native
from packer.pixels.decode import Decoder
from packer.pixels.formats import png
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row

unfilter = native().unfilter
pytestmark = pytest.mark.skipif(unfilter is None, reason="the compiled part is not built here")
SIGNATURE = b"\x89PNG\r\n\x1a\n"
KINDS = {"L": 0, "RGB": 2}


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def made(rng: random.Random, width: int, height: int, mode: str = "RGB", between: bytes = b"") -> bytes:
    """A PNG of random bytes, whose lines have filters of all kinds."""
    channels = len(mode)
    lines = b"".join(bytes([rng.randrange(5)]) + rng.randbytes(width * channels) for _ in range(height))
    packed = zlib.compress(lines, 1)
    cut = rng.randrange(len(packed))
    header = struct.pack(">IIBBBBB", width, height, 8, KINDS[mode], 0, 0, 0)
    parts = chunk(b"IDAT", packed[:cut]) + chunk(b"IDAT", packed[cut:])
    return SIGNATURE + chunk(b"IHDR", header) + between + parts + chunk(b"IEND", b"")


def both(data: bytes, geometry: Geometry, **options: Any) -> tuple[Row | str, Row | str, bool]:
    """What the two ways make of it, and whether the one without Pillow did."""
    found: list[Row | str] = []
    is_served = False
    for is_plain in (True, False):
        decoder = Decoder(geometry, **options)
        if not is_plain:
            decoder._unfilter = None
        is_served = is_served or decoder._plain_png_row(data) is not None
        try:
            found.append(decoder.row(data))
        except DecodeError as e:
            found.append(str(e))
    return found[0], found[1], is_served


@pytest.mark.parametrize("size", [(1, 1), (1, 9), (9, 1), (2, 3), (32, 32), (28, 28), (100, 3)])
@pytest.mark.parametrize(
    ("mode", "channels"), [("RGB", "rgb"), ("L", "gray"), ("L", "rgb"), ("RGB", "gray"), ("L", "rgba")]
)
def test_rows_are_pillow_s(size: tuple[int, int], mode: str, channels: str) -> None:
    width, height = size
    rng = random.Random(width)
    for _ in range(4):
        data = made(rng, width, height, mode, chunk(b"gAMA", bytes(4)) + chunk(b"pHYs", bytes(9)))
        with_ours, with_pillow, is_served = both(data, Geometry(height, width), channels=channels)
        assert is_served == ((mode, channels) != ("RGB", "gray") and channels != "rgba")
        assert with_ours == with_pillow
        assert not isinstance(with_ours, str)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pngs_of_pillow_s_own_writer_are_served(mode: str) -> None:
    image = Image.linear_gradient("L").resize((32, 32)).convert(mode)
    for options in ({}, {"optimize": True}, {"compress_level": 0}, {"dpi": (72, 72)}):
        file = io.BytesIO()
        image.save(file, "PNG", **options)
        ours, pillow, is_served = both(file.getvalue(), Geometry(32, 32))
        assert is_served
        assert ours == pillow


@pytest.mark.parametrize("fit", ["crop", "pad", "inside", "none", "squash"])
def test_only_pictures_of_the_row_s_size_are_served(fit: str) -> None:
    data = made(random.Random(1), 20, 16)
    for sides in ((16, 20), (20, 20), (8, 8), (40, 40)):
        geometry = Geometry(*((0, 0) if fit == "none" else sides), fit)
        ours, pillow, is_served = both(data, geometry)
        assert ours == pillow
        assert is_served == (sides == (16, 20) or fit == "none")


def test_damaged_and_odd_pngs_become_the_same_row_or_the_same_reason() -> None:
    rng, served, rejected = random.Random(3), 0, 0
    chunks = [
        chunk(b"gAMA", bytes(3)),
        chunk(b"tRNS", bytes(6)),
        chunk(b"sRGB", b""),
        chunk(b"PLTE", bytes(6)),
        b"\0" * 5,
    ]
    for _ in range(400):
        data = bytearray(made(rng, rng.randint(1, 12), 8, rng.choice(["RGB", "L"])))
        for _ in range(rng.randrange(3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.2:
            at = rng.choice([33, data.find(b"IDAT", 45) - 4, len(data) - 12, len(data)])
            data[at:at] = rng.choice(chunks)
        elif rng.random() < 0.1:
            del data[rng.randrange(len(data)) :]
        ours, pillow, is_served = both(bytes(data), Geometry(8, 8, "none"))
        assert ours == pillow
        served, rejected = served + is_served, rejected + isinstance(ours, str)
    assert served > 50
    assert rejected > 80


def test_a_picture_with_too_many_pixels_is_refused_before_it_is_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png.PlainPng, "filtered", lambda self: pytest.fail("inflated"))
    with pytest.raises(DecodeError, match="more than --max-pixels 99"):
        Decoder(Geometry(10, 10), max_pixels=99).row(made(random.Random(0), 10, 10))


def test_more_or_less_data_than_the_picture_s_is_left_to_pillow() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 2, 0, 0, 0))
    for lines in (bytes(51), bytes(53), bytes(52)):
        data = SIGNATURE + header + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
        plain = png.read_plain(data)
        assert plain is not None
        assert (plain.filtered() is None) == (len(lines) != 52)


def test_incomplete_lines_are_refused() -> None:
    assert unfilter is not None
    for lines, height, channels in (
        (b"", 1, 1),
        (b"12", 0, 1),
        (b"123", 2, 1),
        (b"123", 1, 3),
        (b"12", 1, 0),
        (b"12", -1, 1),
    ):
        with pytest.raises(ValueError, match="complete lines"):
            unfilter(lines, height, channels)
    assert unfilter(b"\x05" + bytes(3), 1, 3) is None


def test_every_filter_is_the_standard_s() -> None:
    """Against the definition, PNG 9.2, in numbers of Python."""
    assert unfilter is not None
    rng = np.random.default_rng(0)
    lines = rng.integers(0, 256, (5, 1 + 12), dtype=np.uint8)
    lines[:, 0] = [4, 3, 2, 1, 0]
    wanted = np.zeros((6, 3 + 12), int)
    for y, (kind, *values) in enumerate(lines.tolist(), start=1):
        for x, value in enumerate(values, start=3):
            a, b, c = int(wanted[y, x - 3]), int(wanted[y - 1, x]), int(wanted[y - 1, x - 3])
            nearest = min((a, b, c), key=lambda known: abs(a + b - c - known))
            wanted[y, x] = (value + [0, a, b, (a + b) // 2, nearest][kind]) % 256
    assert unfilter(lines.tobytes(), 5, 3) == wanted[1:, 3:].astype(np.uint8).tobytes()
