"""More than 8 bits: the high byte, the bits that the file states, or those that are asked for; what is dark is reported."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import photo
from PIL import Image

from packer import OptionsError, PackError, pack
from packer.errors import DecodeError
from packer.operations.verify import verify
from packer.options import PackOptions
from packer.packing.update import update
from packer.pixels.decode import Decoder
from packer.pixels.formats import plugins
from packer.pixels.geometry import Geometry
from reader.format.samples import read_json_lines

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


def tiff12(values: Any) -> bytes:
    """Encode uint16[H, W] below 4096 as a TIFF of 12 bits a sample, which it states."""
    bits = "".join(f"{value:012b}" for value in values.ravel())
    raw = int(bits, 2).to_bytes(len(bits) // 8, "big")
    data = tiff(values)
    entry = struct.pack("<HHI", 258, 3, 1)
    at = data.index(entry) + len(entry)
    length = data.index(struct.pack("<HHI", 279, 4, 1)) + 8
    data = data[:at] + struct.pack("<I", 12) + data[at + 4 : length] + struct.pack("<I", len(raw)) + data[length + 4 :]
    return data[: 8 + 2 + 10 * 12 + 4 + 8] + raw


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
def test_bits_that_are_asked_for_fill_the_row(kind: str, bits: int) -> None:
    data = FILES[kind](bits)
    values = COLOR if kind.partition(",")[0] in ("png", "tiff") else GRAY
    pixels, done = decoded(data, bit_depth=bits)
    assert np.array_equal(pixels[1:], expected(values)[1:])
    assert (done["bit_depth"], "warnings" in done, "bits_used" in done) == (bits, False, False)
    # and by default the high byte, with word of it
    pixels, done = decoded(data)
    assert np.array_equal(pixels[1:], expected(values)[1:] >> (16 - bits))
    assert ("bit_depth" in done, done["bits_used"]) == (False, bits)


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("bits", [15, 16])
def test_sixteen_bits_keep_their_high_byte_and_nothing_is_reported(kind: str, bits: int) -> None:
    pixels, done = decoded(FILES[kind](bits))
    assert set(done) == {"decoder", "format"}
    assert np.array_equal(pixels, decoded(FILES[kind](bits), bit_depth=16)[0])
    values = COLOR if kind.partition(",")[0] in ("png", "tiff") else GRAY
    assert np.array_equal(pixels[1:], expected(values)[1:] >> (16 - bits))


def test_alpha_is_spread_alike() -> None:
    rgba = np.concatenate([COLOR, np.full((44, 60, 1), 77, np.uint16)], axis=2)
    pixels = np.frombuffer(Decoder(GEOMETRY, channels="rgba", bit_depth=12).row(png(rgba << 4)).pixels, np.uint8)
    assert np.array_equal(pixels.reshape(44, 60, 4), rgba)
    two = np.stack([GRAY, np.full_like(GRAY, 77)], axis=2)
    assert np.array_equal(decoded(png(two << 8))[0], expected(GRAY))
    with pytest.raises(DecodeError, match="cannot be read for --bit-depth; convert it to RGB or gray"):
        decoded(png(two << 4), bit_depth=12)


@pytest.mark.parametrize("asked", [None, 10, 16])
def test_a_depth_that_the_file_states_is_used_whatever_is_asked(asked: int | None) -> None:
    twelve = of_bits(GRAY, 12)
    pixels, done = decoded(pgm(twelve, 4095), bit_depth=asked)
    assert np.abs(pixels.astype(int) - expected(twelve >> 4)).max() <= 1
    assert set(done) == {"decoder", "format"}
    pixels, done = decoded(tiff12(twelve), bit_depth=asked)
    assert np.array_equal(pixels, expected(twelve >> 4))
    assert done["bit_depth"] == 12


def test_values_above_the_asked_bits_are_cut_with_a_warning() -> None:
    data = png(of_bits(GRAY, 13))
    pixels, done = decoded(data, bit_depth=12)
    assert np.array_equal(pixels[1:], np.minimum(expected(GRAY)[1:] << 1 | 0, 255))
    assert done["warnings"] == ["it has values up to 8191, which are cut at the 4095 of 12 bits"]
    with pytest.raises(DecodeError, match=r"only with warnings \(--strict\): it has values up to 8191"):
        decoded(data, bit_depth=12, strict=True)


def test_a_jpeg_2000_of_16_bits_is_spread_as_it_says() -> None:
    if lacks := plugins.library(plugins.JPEG_2000).lacks:
        pytest.skip(f"JPEG 2000 needs {lacks}")
    stream = io.BytesIO()
    Image.fromarray(GRAY << 8 | 3).save(stream, "JPEG2000")
    for asked in (None, 12):
        pixels, done = decoded(stream.getvalue(), bit_depth=asked)
        assert np.array_equal(pixels, expected(GRAY))
        assert set(done) == {"decoder", "format"}


@pytest.mark.parametrize("asked", [None, 12])
def test_8_bits_are_left_as_they_are(asked: int | None) -> None:
    for form, options in (("PNG", {}), ("JPEG", {"quality": 100}), ("TIFF", {})):
        stream = io.BytesIO()
        photo(60, 44, 4).save(stream, form, **options)
        pixels, done = decoded(stream.getvalue(), bit_depth=asked)
        assert not {"bit_depth", "bits_used"} & set(done)
        assert np.abs(pixels.astype(int) - COLOR).mean() < 6


# -- what a pack says


@pytest.fixture
def dark(tmp_path: Path) -> Path:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a.png").write_bytes(png(of_bits(GRAY, 12)))
    (images / "b.tif").write_bytes(tiff(of_bits(COLOR, 11)))
    (images / "c.png").write_bytes(png(of_bits(COLOR, 16)))
    photo(60, 44, 1).save(images / "d.jpg")
    return images


def test_the_option_is_recorded_compared_and_used_again(dark: Path, tmp_path: Path) -> None:
    pack(dark, tmp_path / "out", size=32, workers=1, bit_depth=12)
    with pytest.raises(PackError, match=r"other options \(with bit_depth=12, now without\)"):
        pack(dark, tmp_path / "out", size=32, resume=True)
    assert verify(tmp_path / "out", redecode=4, images=dark).problems == []
    (dark / "a.png").write_bytes(png(of_bits(GRAY, 10)))
    assert update(dark, tmp_path / "out", workers=1).kept == 3
    lines = {line["path"]: line for line in read_json_lines(tmp_path / "out/samples.jsonl")}
    assert [lines[name].get("bit_depth") for name in sorted(lines)] == [12, 12, 12, None]
    assert PackOptions(bit_depth=12).words() == ["--bit-depth", "12"]


@pytest.mark.parametrize("wrong", [7, 17, "12", 12.5])
def test_bits_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionsError, match=r"bit_depth is .*, expected (8 to 16 bits|an integer or None)\."):
        PackOptions(bit_depth=wrong)
