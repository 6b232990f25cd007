"""libjpeg-turbo through jpeg4py: the only module that knows either.

jpeg4py treats libjpeg's warnings as errors and refuses some samplings; whoever calls must let Pillow decide about what it
refuses. What it accepts decodes to the same bytes as Pillow's.
"""

from __future__ import annotations

import functools
from types import ModuleType

import numpy as np
import numpy.typing as npt

from packer.errors import JpegError


def decode(data: bytes, width: int, height: int) -> npt.NDArray[np.uint8]:
    """Decode to uint8[height, width, 4] (RGBX).

    With a handle of its own: one that is used again decodes a JPEG that lacks its tables with those of the one before,
    and after some errors it refuses every good one. jpeg4py keeps its own.

    Args:
        width, height: as in the header, or exactly ceil(w / s) x ceil(h / s) of it for s = 2, 4, 8: libjpeg's DCT
            scaling. Anything else would leave rows of the array untouched.

    Raises:
        JpegError: libjpeg-turbo refused or warned.
    """
    cffi = _cffi()
    pixels = np.empty((height, width, 4), np.uint8)
    source = cffi.ffi.from_buffer("unsigned char[]", data)
    target = cffi.ffi.from_buffer("unsigned char[]", pixels, require_writable=True)
    handle = cffi.lib.tjInitDecompress()
    if handle == cffi.ffi.NULL:
        raise MemoryError
    try:
        if cffi.lib.tjDecompress2(handle, source, len(data), target, width, width * 4, height, cffi.TJPF_RGBX, 0):
            raise JpegError(cffi.ffi.string(cffi.lib.tjGetErrorStr()).decode("utf-8", "replace"))
    finally:
        cffi.lib.tjDestroy(handle)
    return pixels


@functools.cache
def _cffi() -> ModuleType:
    """Import jpeg4py and let it find libturbojpeg; raises ImportError where either cannot be loaded."""
    import jpeg4py

    try:
        jpeg4py._cffi.initialize()
    except OSError as e:
        raise ImportError(f"jpeg4py cannot load libturbojpeg: {e}") from e
    found: ModuleType = jpeg4py._cffi
    return found
