"""Archives as they were listed, and where in one an input is."""

from __future__ import annotations

from typing import NamedTuple


class Archive(NamedTuple):
    """A tar or zip as it was when it was listed; path is relative to the inputs' root."""

    path: str
    size_bytes: int
    mtime_ns: int
    ctime_ns: int


class Member(NamedTuple):
    """Where in an archive an input's bytes are.

    method is RAW (offset is that of the bytes), or a zip's number for how they are compressed (offset is that of the local
    header, in front of them); crc32 is a zip's, of the size_bytes that come out.
    """

    archive: int
    offset: int
    stored_bytes: int
    size_bytes: int
    method: int
    crc32: int


RAW, STORED, DEFLATED = -1, 0, 8
