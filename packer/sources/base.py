"""What every source of bytes can do, and the largest file that is read."""

from __future__ import annotations

from typing import Protocol

from packer.errors import DecodeError
from packer.options import MAX_PIXELS

# A file may have so many bytes for each of --max-pixels, as 8 bits of 4 channels have uncompressed, and so many in any case: a
# worker has all of it in memory.
_BYTES_A_PIXEL, _LEAST_LIMIT = 4, 64 << 20
# Size in bytes, mtime and ctime in ns; -1 each of what is not there.
State = tuple[int, int, int]
NO_STATE: State = (-1, -1, -1)


class Readable(Protocol):
    """What the bytes of an input are read from."""

    def state(self) -> State:
        """Return size and times as they are now, by which a change shows."""
        ...

    def read(self, *, max_pixels: int = ..., most_bytes: int | None = None) -> tuple[bytes, State]:
        """Return the bytes, the first most_bytes at most, and the state that they had."""
        ...


def check_size(size_bytes: int, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse what is empty, or has more bytes than an image of max_pixels may have, as a DecodeError."""
    if size_bytes == 0:
        raise DecodeError("the file is empty")
    if size_bytes > most_file_bytes(max_pixels):
        raise DecodeError(
            f"it has {size_bytes} bytes, more than the {most_file_bytes(max_pixels)} of --max-pixels {max_pixels}"
        )


def most_file_bytes(max_pixels: int) -> int:
    """Return how many bytes a file with an image of so many pixels may have."""
    return max(_LEAST_LIMIT, _BYTES_A_PIXEL * max_pixels)
