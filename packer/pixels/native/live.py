"""Whether the compiled part can be used here, and why not; the one module that imports it."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Protocol

from packer.pixels.formats import jpeg
from packer.pixels.formats.versions import pillow_distribution

Pair = tuple[int, int]


class RowOf(Protocol):
    """Decodes a JPEG at 1/scale, (width, height) = source, resizes it, and cuts out size = (width, height) from origin on.

    Returns uint8[height, width, 3] of RGB, 0 outside the picture; None where the data is anything but a sound JPEG.
    """

    def __call__(
        self, data: bytes, scale: int, source: Pair, resized: Pair, origin: Pair, size: Pair, resample: int
    ) -> bytes | None: ...


@dataclass(frozen=True)
class Native:
    """row: the compiled function; None where it is not used, for the reason. is_missing: it is not built."""

    row: RowOf | None
    reason: str = ""
    is_missing: bool = False


@functools.cache
def native() -> Native:
    """Look whether the compiled part is built, and would make the bytes that the libraries here make without it."""
    try:
        from packer.pixels.native import _native  # type: ignore[attr-defined]
    except ImportError as e:
        return Native(
            None, f"not built, as a C compiler and libjpeg-turbo's headers are needed for ({e})", is_missing=True
        )
    if pillow_distribution() != "pillow-simd":
        return Native(None, "not used: it resizes as Pillow-SIMD does, and plain Pillow is installed")
    own, other = jpeg.library_version("libjpeg."), jpeg.library_version()
    if own != other:
        return Native(
            None, f"not used: it runs with libjpeg-turbo {own or 'unknown'}, and libturbojpeg is {other or 'missing'}"
        )
    return Native(_native.row)
