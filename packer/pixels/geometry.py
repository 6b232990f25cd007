"""The geometry from picture to row: crop, pad, squash, inside, none. First sizes, as plain arithmetic; then Pillow's part.

`crop` is torchvision's Resize + CenterCrop on PIL images (0.28, `transforms/functional.py`), rounding included. Pictures are
resized as by Pillow-SIMD if possible, so that rows do not depend on the installed Pillow. It is used if installed, else the
compiled part; else plain Pillow, by its own rule.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import PIL

from packer.options import RowOptions
from packer.pixels.compiled import ResizeOf, native
from packer.system import installed_version
from packer.values import side_limit

if TYPE_CHECKING:
    from PIL import Image

    from reader.format.manifest import Manifest

# PIL.Image.Resampling by value, so that no image library is imported where only sizes are computed; nearest is for masks
_RESAMPLE = {"bilinear": 2, "bicubic": 3, "lanczos": 1, "box": 4, "nearest": 0}
# Mode -> how Pillow writes and reads it as one or four bytes a pixel.
_RAW = {"L": "L", "RGB": "RGBX", "RGBX": "RGBX", "CMYK": "CMYK", "RGBa": "RGBa"}


@dataclass(frozen=True)
class Geometry:
    """The shape of a row, and the way from any picture to it.

    With fit none, height and width limit the longer side, or with limits_short the shorter side; 0: no limit.
    """

    height: int
    width: int
    fit: str = RowOptions.fit
    crop_fraction: float = RowOptions.crop_fraction
    resample: str = RowOptions.resample
    limits_short: bool = False

    @classmethod
    def from_size(cls, size: tuple[int, int], options: RowOptions) -> Geometry:
        """Take size = (height, width) and the rest from the options."""
        side, is_short = side_limit(options.max_size)
        sides = (side, side) if options.has_own_sizes else size
        return cls(*sides, options.fit, options.crop_fraction, options.resample, is_short)

    @classmethod
    def recorded(cls, manifest: Manifest) -> Geometry:
        """Return the geometry of a store, from its recorded options; others have their defaults."""
        options = manifest.options
        side, is_short = side_limit(options.get("max_size"))
        chosen = {name: options[name] for name in ("fit", "crop_fraction", "resample") if name in options}
        return cls(*(manifest.common_sides or (side, side)), **chosen, limits_short=is_short)

    @property
    def has_own_sizes(self) -> bool:
        """Whether each row keeps its picture's size, scaled down if a side is too long."""
        return self.fit == "none"

    @property
    def common_sides(self) -> tuple[int, int] | None:
        """Height and width of every row, or None if they differ."""
        return None if self.has_own_sizes else (self.height, self.width)

    @property
    def has_content(self) -> bool:
        """Whether rows can hold padding; the store then records the box of the image."""
        return self.fit in ("pad", "inside")

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """Return (width, height) to which an upright picture of this size is resized.

        Example:
            >>> Geometry(224, 224, crop_fraction=0.875).resized(500, 375)  # short side 256
            (341, 256)
        """
        if self.fit == "squash":
            return self.width, self.height
        if self.has_own_sizes:
            limited = min(width, height) if self.limits_short else max(width, height)
            if 0 < self.height < limited:
                # torchvision's Resize(max_size=), and for the shorter side Resize(size): the other side is rounded down
                width, height = max(1, width * self.height // limited), max(1, height * self.height // limited)
            return width, height
        if self.fit == "crop":
            cover_w, cover_h = math.floor(self.width / self.crop_fraction), math.floor(self.height / self.crop_fraction)
            # the side that is shorter against the row decides; for a square row that is the short side
            if cover_w * height >= cover_h * width:
                return cover_w, max(cover_h, int(cover_w * height / width))
            return max(cover_w, int(cover_h * width / height)), cover_h
        if self.width * height <= self.height * width:
            return self.width, min(self.height, max(1, round(self.width * height / width)))
        return min(self.width, max(1, round(self.height * width / height))), self.height

    def row_size(self, resized: tuple[int, int]) -> tuple[int, int]:
        """Return (width, height) of the row of a picture resized to this."""
        # called several times per image
        return resized if self.has_own_sizes else (self.width, self.height)

    def to_row(self, image: Image.Image, resized: tuple[int, int]) -> tuple[Image.Image, tuple[int, int, int, int]]:
        """Resize a picture to `resized`, then crop or pad it to the row's size.

        Returns: the row as an image of (width, height), and its content as y0, x0, y1, x1, half-open.
        """
        if image.size != resized:
            # resize the whole picture, then crop: resize(box=) differs by 1 or 2 levels in nine of ten photographs
            image = resize(image, resized, self.filter)
        if resized == self.row_size(resized):
            return image, self.content(resized)
        left, top = self.origin(resized)
        # Pillow fills parts of a crop outside the picture with 0
        return image.crop((left, top, left + self.width, top + self.height)), self.content(resized)

    @property
    def filter(self) -> int:
        """The filter, as a number of PIL.Image.Resampling."""
        return _RESAMPLE[self.resample]

    def origin(self, resized: tuple[int, int]) -> tuple[int, int]:
        """Return x, y of a row's upper left corner in the picture resized to (width, height); negative: padding."""
        if self.has_content:
            top, left, _, _ = self.content(resized)
            return -left, -top
        width, height = self.row_size(resized)
        return round((resized[0] - width) / 2.0), round((resized[1] - height) / 2.0)

    def content(self, resized: tuple[int, int]) -> tuple[int, int, int, int]:
        """Return the place in the row of a picture resized to (width, height): y0, x0, y1, x1, half-open.

        `pad` centers the picture, `inside` leaves it in the upper left corner, the others fill the row.
        """
        width, height = resized if self.has_content else self.row_size(resized)
        top, left = 0, 0
        if self.fit == "pad":
            top, left = (self.height - height) // 2, (self.width - width) // 2
        return top, left, top + height, left + width


def live_rule() -> dict[str, dict[str, str]]:
    """Return the manifest's entry for the resizing rule; {} for the rule of the Pillow that it names."""
    return {"resize": {"rule": "pillow-simd"}} if compiled_resize() is not None else {}


def resize(image: Image.Image, size: tuple[int, int], resample: int) -> Image.Image:
    """Resize a whole picture to (width, height); resample is a number of PIL.Image.Resampling."""
    from PIL import Image

    compiled = compiled_resize()
    if compiled is None or resample == Image.Resampling.NEAREST:
        return image.resize(size, resample)
    if image.mode == "RGBA":  # as Pillow does: colors of transparent pixels do not bleed into others
        return resize(image.convert("RGBa"), size, resample).convert("RGBA")
    raw = _RAW.get(image.mode)
    pixels = compiled(image.tobytes("raw", raw), image.size, size, resample) if raw else None
    return image.resize(size, resample) if pixels is None else Image.frombytes(image.mode, size, pixels, "raw", raw)


def pillow_distribution() -> str:
    """Name the live Pillow: both distributions are the same import, and Pillow-SIMD numbers itself "x.y.z.postN"."""
    is_simd = ".post" in PIL.__version__ and installed_version("pillow-simd") == PIL.__version__
    return "pillow-simd" if is_simd else "pillow"


@functools.cache
def compiled_resize() -> ResizeOf | None:
    """Return the resize that replaces plain Pillow's; None with Pillow-SIMD, or without the compiled part."""
    return None if pillow_distribution() == "pillow-simd" else native().resize
