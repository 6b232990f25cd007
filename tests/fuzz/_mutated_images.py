"""Images of all kinds, drawn, and what damage makes of their files; the same for the same random numbers."""

from __future__ import annotations

import io
import random
import struct
from dataclasses import dataclass
from typing import Any

from PIL import Image

_JPEG_SEGMENTS = b"\xff\xdb", b"\xff\xc0", b"\xff\xc2", b"\xff\xc4", b"\xff\xda", b"\xff\xdd", b"\xff\xe0", b"\xff\xd9"
# What programs leave between two segments, or a fault puts there.
_JUNK = (
    b"\xff\x00",
    b"\xff\xff",
    b"\0\0\0\0",
    b"\xff\xd8",
    b"\xff\xd9",
    b"\xff\xd0",
    b"\xff\xe1\x00\x02",
    b"\xff\x01",
    b"abc",
)
_VALUES = 0, 1, 127, 128, 255, 0xC2, 0xC4, 0xD0, 0xD9


@dataclass(frozen=True)
class Original:
    """A valid image file. kind: its format, and for a JPEG how it is coded."""

    kind: str
    suffix: str
    data: bytes


def draw(rng: random.Random, largest: int) -> Image.Image:
    """Draw a picture with smooth parts, edges and noise, of sides up to `largest`."""
    width, height = (max(8, int(largest * rng.uniform(0.1, 1))) for _ in range(2))
    coarse = max(2, width // rng.randint(6, 24)), max(2, height // rng.randint(6, 24))
    picture = Image.frombytes("RGB", coarse, rng.randbytes(coarse[0] * coarse[1] * 3)).resize((width, height), 3)
    part = Image.frombytes("RGB", (8, 8), rng.randbytes(192)).resize((max(1, width // 3), max(1, height // 3)), 0)
    picture.paste(part, (rng.randrange(width), rng.randrange(height)))
    return picture


def make_jpeg(
    rng: random.Random, largest: int, modes: tuple[str, ...] = ("RGB", "RGB", "RGB", "L", "CMYK")
) -> Original:
    """Encode a JPEG: baseline or progressive, with or without restart markers, of any sampling."""
    mode = rng.choice(modes)
    coding: dict[str, Any] = {"quality": rng.choice([10, 50, 75, 90, 97]), "progressive": rng.random() < 0.25}
    names = [mode]
    if mode != "L":
        coding["subsampling"] = rng.choice([0, 1, 2, "4:1:1"])
        names.append(f"sampling {coding['subsampling']}")
    if rng.random() < 0.25:
        coding["restart_marker_blocks"] = rng.randint(1, 30)
        names.append("restart")
    names.append("progressive" if coding["progressive"] else "baseline")
    if rng.random() < 0.1:
        coding["icc_profile"] = rng.randbytes(rng.randint(10, 300))
    return Original("JPEG " + ", ".join(names), "jpg", _encoded(draw(rng, largest).convert(mode), "JPEG", coding))


def make_other(rng: random.Random, largest: int) -> Original:
    """Encode a PNG, WebP, TIFF, GIF or BMP, in one of the ways of each."""
    format, mode, options = rng.choice(
        [
            *(("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "P", "1", "I;16")),
            *(("WEBP", mode, {"lossless": lossless}) for mode in ("RGB", "RGBA") for lossless in (True, False)),
            *(
                ("TIFF", "RGB", {"compression": name})
                for name in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
            ),
            ("TIFF", "1", {"compression": "group4"}),
            *(("GIF", mode, {}) for mode in ("P", "L")),
            *(("BMP", mode, {}) for mode in ("RGB", "P", "L", "1")),
        ]
    )
    picture = draw(rng, largest)
    picture = picture.convert("L").convert("I;16") if mode == "I;16" else picture.convert(mode)
    detail = "".join(f", {value}" for value in options.values())
    return Original(f"{format} {mode}{detail}", format.lower(), _encoded(picture, format, options))


def mutate(rng: random.Random, original: Original) -> bytes:
    """Damage a file in one to four places."""
    data = bytearray(original.data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if len(data) < 20:
            break
        _damage(rng, data, original)
    return bytes(data)


def _damage(rng: random.Random, data: bytearray, original: Original) -> None:
    at = rng.randrange(2, len(data))
    match rng.randrange(9 if original.suffix == "jpg" else 7):
        case 0 | 1:
            data[at] ^= 1 << rng.randrange(8)
        case 2:
            data[at] = rng.choice(_VALUES)
        case 3:
            del data[at : at + rng.choice([1, 2, 9, 300])]
        case 4:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        case 5:
            other, count = rng.randrange(2, len(data)), rng.choice([1, 2, 8, 64, 4096])
            data[at : at + count], data[other : other + count] = data[other : other + count], data[at : at + count]
        case 6:
            _cut(rng, data, at)
        case _:
            _junk(rng, data)


def _cut(rng: random.Random, data: bytearray, at: int) -> None:
    """End a file early: bare, closed by its end marker, or with its length made up by NUL bytes, as after a crash."""
    length = len(data)
    end = bytes(data[-2:])
    del data[at:]
    match rng.randrange(3):
        case 0:
            data += end
        case 1:
            data += bytes(length - at)


def _junk(rng: random.Random, data: bytearray) -> None:
    """Put something before a segment of a JPEG, or change the length that it states."""
    found = [at for mark in _JPEG_SEGMENTS if (at := data.find(mark, 2)) >= 0]
    if not found:
        return
    at = rng.choice(found)
    if rng.random() < 0.8:
        data[at:at] = rng.choice(_JUNK)
    else:
        data[at + 2 : at + 4] = struct.pack(">H", rng.choice([0, 1, 2, 3, 8, 64, 0xFFFF]))


def _encoded(picture: Image.Image, format: str, options: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format, **options)
    return stream.getvalue()
