"""ICC profiles: which are not sRGB, by what name, and pixels converted from them to sRGB by littleCMS, which Pillow has.

Profiles are parsed here, as ICC.1:2022 lays them out; littleCMS is imported when the first conversion is asked for.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from PIL import Image, ImageCms

# What a profile is called that cannot be read.
DAMAGED = "damaged"

# sRGB's red, green and blue as XYZ under D50 (ICC's sRGB2014), and how far those of its variants are from them: cameras'
# and Windows' are within 0.001. SMPTE C, the nearest other space in use, is 0.02 away.
_SRGB = ((0.4361, 0.2225, 0.0139), (0.3851, 0.7169, 0.0971), (0.1431, 0.0606, 0.7141))
_NEAR = 0.01
# Of curves, in linear light from 0 to 1. A gamma of 2.2 is within 0.009 of sRGB's, one of 1.8 is 0.08 away.
_NEAR_CURVE = 0.012
_CURVE_STEPS = 32
_CURVES = (b"rTRC", b"gTRC", b"bTRC")
_HEADER_BYTES, _TAG_BYTES, _MOST_TAGS = 128, 12, 100
_MOST_NAME = 60

_Curve = Callable[[float], float]


@functools.lru_cache(maxsize=256)
def foreign_name(profile: bytes) -> str:
    """Name a profile whose colors are not sRGB's; "" for sRGB, its variants, and gray with a curve like sRGB's.

    Example:
        >>> foreign_name(b"no profile")
        'damaged'
    """
    try:
        tags = _tags(profile)
        space = profile[16:20]
        if space == b"RGB " and b"rXYZ" in tags:
            is_srgb = _has_srgb_primaries(tags) and all(_is_srgb_curve(tags[name]) for name in _CURVES)
        elif space == b"GRAY":
            is_srgb = _is_srgb_curve(tags[b"kTRC"])
        else:  # a table is known by its name alone
            is_srgb = space == b"RGB " and _description(tags).lower().startswith("srgb")
        return "" if is_srgb else _description(tags) or f"unnamed {space.decode('ascii', 'replace').strip()} profile"
    except (ValueError, KeyError, IndexError, struct.error, OverflowError, ZeroDivisionError):
        return DAMAGED


def as_profiled(image: Image.Image, profile: bytes) -> Image.Image | None:
    """Return an image of 8 bits in the colors that a profile describes: RGB, RGBA, L or CMYK; None where they do not fit."""
    space, has_alpha = profile[16:20], "A" in image.getbands() or "transparency" in image.info
    if space == b"CMYK":
        return image if image.mode == "CMYK" else None
    if space == b"GRAY":
        return image.convert("L") if image.mode in ("L", "LA", "1") else None
    if space != b"RGB " or image.mode in ("CMYK", "LAB", "HSV"):
        return None
    mode = "RGBA" if has_alpha else "RGB"
    return image if image.mode == mode else image.convert(mode)


@functools.lru_cache(maxsize=32)
def transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """Return what converts to sRGB: relative colorimetric, with black point compensation; None where the profile is damaged."""
    import io

    from PIL import ImageCms

    try:
        return ImageCms.buildTransform(
            ImageCms.ImageCmsProfile(io.BytesIO(profile)),
            ImageCms.createProfile("sRGB"),
            {b"GRAY": "L", b"CMYK": "CMYK"}.get(profile[16:20], "RGB"),
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
            ImageCms.Flags.BLACKPOINTCOMPENSATION,
        )
    except Exception:  # littleCMS refuses a profile as PyCMSError, OSError or ValueError
        return None


def to_srgb(image: Image.Image, profile: bytes, content: tuple[int, int, int, int]) -> Image.Image:
    """Convert a row from its profile to sRGB: RGB, with alpha RGBA. Padding around content (y0, x0, y1, x1) stays 0."""
    y0, x0, y1, x1 = content
    is_padded = (x0, y0, x1, y1) != (0, 0, *image.size)
    part = image.crop((x0, y0, x1, y1)) if is_padded else image
    alpha = part.getchannel("A") if part.mode == "RGBA" else None
    converted = cast("ImageCms.ImageCmsTransform", transform(profile)).apply(part.convert("RGB") if alpha else part)
    if alpha is not None:
        converted.putalpha(alpha)
    if not is_padded:
        return converted
    # Pillow fills with 0 what a crop takes from outside the picture
    return converted.crop((-x0, -y0, image.width - x0, image.height - y0))


def _tags(profile: bytes) -> dict[bytes, bytes]:
    """Return the content of each tag; raises ValueError where the profile is none."""
    (size,) = struct.unpack_from(">I", profile)
    if profile[36:40] != b"acsp" or size > len(profile):
        raise ValueError("no ICC profile")
    (count,) = struct.unpack_from(">I", profile, _HEADER_BYTES)
    tags = {}
    for number in range(min(count, _MOST_TAGS)):
        name, at, length = struct.unpack_from(">4sII", profile, _HEADER_BYTES + 4 + number * _TAG_BYTES)
        tags[name] = profile[at : at + length]
    return tags


def _description(tags: dict[bytes, bytes]) -> str:
    """Return the name that a profile gives itself, on one line; "" where it gives none."""
    tag = tags.get(b"desc", b"")
    if tag.startswith(b"mluc"):  # the first of its languages
        length, at = struct.unpack_from(">II", tag, 20)
        text = tag[at : at + length].decode("utf-16-be", "replace")
    else:
        (length,) = struct.unpack_from(">I", tag, 8) if len(tag) >= 12 else (0,)
        text = tag[12 : 12 + length].decode("latin-1")
    name = " ".join("".join(c if c.isprintable() else " " for c in text.partition("\0")[0]).split())
    return name[:_MOST_NAME]


def _has_srgb_primaries(tags: dict[bytes, bytes]) -> bool:
    for name, expected in zip((b"rXYZ", b"gXYZ", b"bXYZ"), _SRGB, strict=True):
        found = (value / 65536 for value in struct.unpack_from(">3i", tags[name], 8))
        if any(abs(a - b) > _NEAR for a, b in zip(found, expected, strict=True)):
            return False
    return True


def _is_srgb_curve(tag: bytes) -> bool:
    curve = _curve(tag)
    steps = (step / _CURVE_STEPS for step in range(_CURVE_STEPS + 1))
    return all(abs(curve(x) - _srgb_curve(x)) <= _NEAR_CURVE for x in steps)


def _srgb_curve(x: float) -> float:
    """IEC 61966-2-1: from the stored value to linear light."""
    return x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4


def _curve(tag: bytes) -> _Curve:
    """Return a curve of a profile as a function from 0..1 to linear light."""
    if tag.startswith(b"para"):
        return _parametric(tag)
    if not tag.startswith(b"curv"):
        raise ValueError("no curve")
    (count,) = struct.unpack_from(">I", tag, 8)
    if count == 0:
        return lambda x: x
    values = struct.unpack_from(f">{count}H", tag, 12)
    if count == 1:
        return lambda x: x ** (values[0] / 256)

    def looked_up(x: float) -> float:
        position = x * (count - 1)
        low = min(int(position), count - 2)
        return (values[low] + (position - low) * (values[low + 1] - values[low])) / 65535

    return looked_up


def _parametric(tag: bytes) -> _Curve:
    """ICC.1:2022, table 68: functions of up to seven parameters g, a, b, c, d, e, f."""
    (kind,) = struct.unpack_from(">H", tag, 8)
    count = (1, 3, 4, 5, 7)[kind]
    given = [value / 65536 for value in struct.unpack_from(f">{count}i", tag, 12)]
    g, a, b, c, d, e, f = given + [0.0] * (7 - count)
    if kind == 0:
        return lambda x: x**g
    if kind in (1, 2):  # kind 2 adds c everywhere
        return lambda x: (a * x + b) ** g + c if a * x + b >= 0 else c
    return lambda x: (a * x + b) ** g + e if x >= d else c * x + f
