"""The protocol of sources of bytes, a member's place in its archive, and the largest file that is read."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from packer.errors import DecodeError
from packer.options import MAX_PIXELS

# The uncompressed size of the largest image, at 8 bits and 4 channels: a worker holds all of a file in memory.
MOST_FILE_BYTES = 4 * MAX_PIXELS
# Size in bytes, mtime and ctime in ns; -1 each for a missing file.
State = tuple[int, int, int]
NO_STATE: State = (-1, -1, -1)
# Compression of an archive's member: none, without a header before its bytes; and the numbers of zip.
RAW, STORED, DEFLATED = -1, 0, 8


class Archive(NamedTuple):
    """A tar or zip as it was when it was listed; path is relative to the inputs' root."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class Member(NamedTuple):
    """The place of an input's bytes in an archive.

    offset: of the bytes if method is RAW, else of the zip's local header before them. crc32: a zip's, of the size_bytes
        uncompressed bytes.
    """

    archive: int
    offset: int
    stored_bytes: int
    size_bytes: int
    method: int
    crc32: int


class Readable(Protocol):
    """A source of an input's bytes."""

    def state(self) -> State:
        """Return the current size and times, which show a change."""
        ...

    def read(self, *, most_bytes: int | None = None) -> tuple[bytes, State]:
        """Return the bytes, the first most_bytes at most, and the state that they had."""
        ...


def check_size(size_bytes: int) -> None:
    """Raise DecodeError for an empty file, or one of more bytes than an image may have."""
    if size_bytes == 0:
        raise DecodeError("the file is empty")
    if size_bytes > MOST_FILE_BYTES:
        raise DecodeError(f"it has {size_bytes} bytes, more than the {MOST_FILE_BYTES} that one image may have")
