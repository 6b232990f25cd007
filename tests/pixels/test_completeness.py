"""An image that is there in part never becomes a row without a message."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from conftest import photo
from PIL import Image

from packer.errors import DecodeError
from packer.pixels.decode import Decoder
from packer.pixels.geometry import Geometry
from packer.pixels.row import Row

PHOTO = photo(120, 90, seed=2)


def encoded(format: str, mode: str = "RGB", **options: Any) -> bytes:
    stream = io.BytesIO()
    PHOTO.convert(mode).save(stream, format, **options)
    return stream.getvalue()


def decoded(data: bytes) -> Row:
    return Decoder(Geometry(90, 120, "squash")).row(data)


FILES = {
    "PNG": encoded("PNG"),
    "PNG of 1 bit": encoded("PNG", "1"),
    "PNG with a palette": encoded("PNG", "P"),
    "GIF": encoded("GIF", "P"),
    "BMP": encoded("BMP"),
    "TIFF": encoded("TIFF"),
    "TIFF, LZW": encoded("TIFF", compression="tiff_lzw"),
    "TIFF, deflate": encoded("TIFF", compression="tiff_adobe_deflate"),
    "TIFF, JPEG": encoded("TIFF", compression="jpeg"),
    "WebP": encoded("WEBP"),
    "WebP, lossless": encoded("WEBP", lossless=True),
    "JPEG": encoded("JPEG"),
    "JPEG, CMYK": encoded("JPEG", "CMYK"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_rejected_or_complete(name: str) -> None:
    data = FILES[name]
    intact = decoded(data).pixels
    for number in range(1, 20):
        cut = data[: max(12, len(data) * number // 20)]
        try:
            row = decoded(cut)
        except DecodeError as e:
            assert "\n" not in str(e)  # noqa: PT017
        else:
            assert row.pixels == intact


# BMP and the plain TIFF have nothing by which zeros could be told from black
@pytest.mark.parametrize("name", [name for name in FILES if name not in ("BMP", "TIFF", "TIFF, JPEG")])
def test_a_file_that_ends_in_zeros_after_a_crash_is_rejected(name: str) -> None:
    data = FILES[name]
    for number in range(4, 18):
        stop = len(data) * number // 20
        if len(data) - stop < 130:
            continue
        with pytest.raises(DecodeError):
            decoded(data[:stop] + bytes(len(data) - stop))


def test_bytes_behind_the_end_of_a_webp_and_a_png_are_no_damage() -> None:
    for name in ("WebP", "PNG"):
        assert decoded(FILES[name] + bytes(500)).pixels == decoded(FILES[name]).pixels


def test_a_png_s_checksums_are_those_of_its_pixels() -> None:
    data = FILES["PNG"]
    at = data.index(b"IDAT")
    length = struct.unpack(">I", data[at - 4 : at])[0]
    wrong = data[: at + 4 + length] + b"\0\0\0\0" + data[at + 8 + length :]
    Image.open(io.BytesIO(wrong)).load()
    with pytest.raises(DecodeError, match="its pixel data is damaged: a checksum is wrong"):
        decoded(wrong)
    text = b"tEXta\0b"
    chunk = struct.pack(">I", 3) + text + struct.pack(">I", zlib.crc32(text) ^ 1)
    late = data[:-12] + chunk + data[-12:]
    assert decoded(late).pixels == decoded(data).pixels
    with pytest.raises(DecodeError, match="^it is cut short$"):
        decoded(data[:-12])
