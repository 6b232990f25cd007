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
from packer.pixels.formats import jpeg

# A scratch buffer above this is given back: one 50-megapixel image must not hold 200 MB for the rest of a pack.
_KEEP_BYTES = 32 << 20


class JpegDecoder:
    """Decodes into one reused buffer; one a process, not thread-safe."""

    def __init__(self) -> None:
        self._scratch: npt.NDArray[np.uint8] = np.empty(0, np.uint8)

    @property
    def is_available(self) -> bool:
        """Whether jpeg4py and the system's libturbojpeg were found."""
        return jpeg.is_installed()

    def decode(self, data: bytes, width: int, height: int) -> npt.NDArray[np.uint8]:
        """Decode to uint8[height, width, 4] (RGBX), valid until the next call.

        Args:
            width, height: as in the header, or exactly ceil(w / s) x ceil(h / s) of it for s = 2, 4, 8: libjpeg's DCT
                scaling. Anything else would leave rows of the buffer untouched.

        Raises:
            JpegError: libjpeg-turbo refused or warned.
        """
        pixels = self._buffer(width * height * 4).reshape(height, width, 4)
        if message := self._decompress(data, pixels):
            raise JpegError(message)
        return pixels

    def _decompress(self, data: bytes, pixels: npt.NDArray[np.uint8]) -> str:
        """Decode into pixels; returns libjpeg's complaint, "" for none.

        With a handle of its own: one that is used again decodes a JPEG that lacks its tables with those of the one before,
        and after some errors it refuses every good one. jpeg4py keeps its own.
        """
        cffi: ModuleType = _load()._cffi
        source = cffi.ffi.from_buffer("unsigned char[]", data)
        target = cffi.ffi.from_buffer("unsigned char[]", pixels, require_writable=True)
        height, width, _ = pixels.shape
        handle = cffi.lib.tjInitDecompress()
        if handle == cffi.ffi.NULL:
            raise MemoryError
        try:
            failed = cffi.lib.tjDecompress2(
                handle, source, len(data), target, width, width * 4, height, cffi.TJPF_RGBX, 0
            )
            return cffi.ffi.string(cffi.lib.tjGetErrorStr()).decode("utf-8", "replace") if failed else ""
        finally:
            cffi.lib.tjDestroy(handle)

    def _buffer(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        if size_bytes > _KEEP_BYTES:
            self._scratch = np.empty(0, np.uint8)
            return np.empty(size_bytes, np.uint8)
        if len(self._scratch) < size_bytes:
            self._scratch = np.empty(size_bytes, np.uint8)
        return self._scratch[:size_bytes]


@functools.cache
def _load() -> ModuleType:
    """Import jpeg4py and let it find libturbojpeg; raises ImportError where either cannot be loaded."""
    import jpeg4py

    try:
        jpeg4py._cffi.initialize()
    except OSError as e:
        raise ImportError(f"jpeg4py cannot load libturbojpeg: {e}") from e
    return jpeg4py
