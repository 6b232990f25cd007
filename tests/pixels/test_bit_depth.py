"""More than 8 bits: the high byte, or of gray the bits that are asked for."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo
from redecoding import rows_of_other_sources

from packer import PackError, pack
from packer.errors import DecodeError
from packer.operations.verify import verify
from packer.options import PackOptions
from packer.packing.update import update
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry

GEOMETRY = Geometry(44, 60, "squash")
GRAY = np.asarray(photo(60, 44, 4).convert("L")).astype(np.uint16)
COLOR = np.asarray(photo(60, 44, 4)).astype(np.uint16)


def of_bits(values: Any, bits: int) -> Any:
    """Spread values of 8 bits over so many, with something in the bits below."""
    deep = values << (bits - 8) | 1
    deep[0, 0] = (1 << bits) - 1  # so that all bits are used
    return deep


def png(values: Any) -> bytes:
    """Encode uint16[H, W] or [H, W, 3 or 4] as a PNG of 16 bits, which Pillow cannot write in color."""
    height, width, *channels = values.shape
    kind = {(): 0, (2,): 4, (3,): 2, (4,): 6}[tuple(channels)]
    raw = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def tiff(values: Any, *, order: str = "<", compression: int = 1) -> bytes:
    """Encode uint16[H, W] or [H, W, 3] as a TIFF of 16 bits in either byte order, plain or deflated."""
    height, width, *channels = values.shape
    count = channels[0] if channels else 1
    raw = values.astype(f"{order}u2").tobytes()
    raw = zlib.compress(raw) if compression == 8 else raw
    bits_at = 8 + 2 + 10 * 12 + 4
    entries = [
        *((256, 4, 1, width), (257, 4, 1, height), (258, 3, count, bits_at if count > 2 else 16)),
        *((259, 3, 1, compression), (262, 3, 1, 2 if count > 2 else 1), (273, 4, 1, bits_at + 8), (277, 3, 1, count)),
        *((278, 4, 1, height), (279, 4, 1, len(raw)), (284, 3, 1, 1)),
    ]
    data = struct.pack(f"{order}2sHIH", b"II" if order == "<" else b"MM", 42, 8, len(entries))
    for tag, kind, number, value in entries:
        packed = struct.pack(f"{order}HH", value, 0) if kind == 3 and number < 3 else struct.pack(f"{order}I", value)
        data += struct.pack(f"{order}HHI", tag, kind, number) + packed
    return data + bytes(4) + struct.pack(f"{order}4H", 16, 16, 16, 16) + raw


def pgm(values: Any, most: int) -> bytes:
    return b"P5\n%d %d\n%d\n" % (values.shape[1], values.shape[0], most) + values.astype(">u2").tobytes()


def decoded(data: bytes, **options: Any) -> tuple[Any, dict[str, Any]]:
    row = Decoder(GEOMETRY, **options).row(data)
    return np.frombuffer(row.pixels, np.uint8).reshape(44, 60, -1), row.done


def expected(values: Any) -> Any:
    """What rows of these 8 bits are, but for the first pixel."""
    return np.broadcast_to(values.reshape(44, 60, -1), (44, 60, 3))


FILES = {
    "png gray": lambda bits: png(of_bits(GRAY, bits)),
    "png": lambda bits: png(of_bits(COLOR, bits)),
    "tiff gray": lambda bits: tiff(of_bits(GRAY, bits)),
    "tiff gray, big": lambda bits: tiff(of_bits(GRAY, bits), order=">"),
    "tiff": lambda bits: tiff(of_bits(COLOR, bits)),
    "tiff, big": lambda bits: tiff(of_bits(COLOR, bits), order=">"),
    "tiff, deflated": lambda bits: tiff(of_bits(COLOR, bits), compression=8),
    "tiff, big, deflated": lambda bits: tiff(of_bits(COLOR, bits), order=">", compression=8),
    "pgm": lambda bits: pgm(of_bits(GRAY, bits), 65535),
}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("bits", [9, 10, 12, 14])
def test_bits_that_are_asked_for_fill_the_row_of_gray(kind: str, bits: int) -> None:
    data = FILES[kind](bits)
    is_color = kind.partition(",")[0] in ("png", "tiff")
    # by default the high byte
    pixels, done = decoded(data)
    assert np.array_equal(pixels[1:], expected(COLOR if is_color else GRAY)[1:] >> (16 - bits))
    assert set(done) == {"decoder", "format"}
    if is_color:
        with pytest.raises(DecodeError, match="it has 16-bit colors, of which Pillow gives the high bytes"):
            decoded(data, bit_depth=bits)
    else:
        assert np.array_equal(decoded(data, bit_depth=bits)[0][1:], expected(GRAY)[1:])


def test_values_above_the_asked_bits_are_cut() -> None:
    pixels, _ = decoded(png(of_bits(GRAY, 13)), bit_depth=12)
    assert np.array_equal(pixels[1:], np.minimum(expected(GRAY)[1:] << 1, 255))


@pytest.mark.parametrize("bits", [16, 12])
def test_8_bits_are_left_as_they_are(bits: int) -> None:
    for form, options in (("PNG", {}), ("JPEG", {"quality": 100}), ("TIFF", {})):
        stream = io.BytesIO()
        photo(60, 44, 4).save(stream, form, **options)
        pixels, _ = decoded(stream.getvalue(), bit_depth=bits)
        assert np.abs(pixels.astype(int) - COLOR).mean() < 6


# -- what a pack says


@pytest.fixture
def dark(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_bytes(png(of_bits(GRAY, 12)))
    (images / "b.tif").write_bytes(tiff(of_bits(GRAY, 11)))
    (images / "c.png").write_bytes(png(of_bits(GRAY, 16)))
    photo(60, 44, 1).save(images / "d.jpg")
    return images


def test_the_option_is_recorded_compared_and_used_again(dark: Path, tmp_path: Path) -> None:
    pack(dark, tmp_path / "out", size=32, workers=1, bit_depth=12)
    with pytest.raises(PackError, match=r"other options \(with bit_depth=12, now without\)"):
        pack(dark, tmp_path / "out", size=32)
    assert verify(tmp_path / "out").problems == rows_of_other_sources(tmp_path / "out", dark) == []
    (dark / "a.png").write_bytes(png(of_bits(GRAY, 10)))
    assert update(dark, tmp_path / "out", workers=1).kept == 3
    assert PackOptions(bit_depth=12).words() == ["--bit-depth", "12"]
