"""How pictures are resized: as Pillow-SIMD does, wherever that is possible, so that rows do not depend on the Pillow in use.

Pillow-SIMD itself does it where it is live, else the compiled part, else plain Pillow, by a rule of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from packer.pixels.compiled import ResizeOf, native
from packer.pixels.formats.versions import pillow_distribution

if TYPE_CHECKING:
    from PIL import Image

# Mode -> how Pillow writes and reads it as one or four bytes a pixel.
_RAW = {"L": "L", "RGB": "RGBX", "RGBX": "RGBX", "CMYK": "CMYK", "RGBa": "RGBa"}


def live_rule() -> dict[str, dict[str, str]]:
    """Return what a manifest says of the rule: nothing where it is that of the Pillow which it names."""
    return {"resize": {"rule": "pillow-simd"}} if _compiled() is not None else {}


def resize(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """Resize a whole picture to (width, height); resample is a number of PIL.Image.Resampling."""
    from PIL import Image

    compiled = _compiled()
    if compiled is None or resample == Image.Resampling.NEAREST:
        return image.resize(size, resample)
    if image.mode == "RGBA":  # as Pillow does: colors that nobody sees do not bleed into others
        return resize(image.convert("RGBa"), size, resample).convert("RGBA")
    raw = _RAW.get(image.mode)
    pixels = compiled(image.tobytes("raw", raw), image.size, size, resample) if raw else None
    return image.resize(size, resample) if pixels is None else Image.frombytes(image.mode, size, pixels, "raw", raw)


@functools.cache
def _compiled() -> ResizeOf | None:
    return None if pillow_distribution() == "pillow-simd" else native().resize
