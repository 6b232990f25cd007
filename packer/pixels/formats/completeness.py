"""What the libraries behind the formats take for whole, and is not: checksums that they pass over, and zeros after a crash.

Called once a picture was decoded; JPEGs are judged in `damage.py`.
"""

from __future__ import annotations

import zlib

from packer.errors import DecodeError

# A write that a crash tore leaves NUL bytes to the end. No coder of WebP writes so many: they would be a repetition.
_MOST_NULS = 128
_PNG_HEAD_BYTES = 8


def check_complete(data: bytes, format: str | None) -> None:
    """Reject an image whose decoder read what its file does not vouch for.

    Args:
        format: Pillow's name of it.

    Raises:
        DecodeError: a PNG's checksum is wrong or its end is missing; a WebP ends in NUL bytes.
    """
    if format == "PNG":
        _check_png(data)
    elif format == "WEBP" and data[: 8 + int.from_bytes(data[4:8], "little")].endswith(bytes(_MOST_NULS)):
        raise DecodeError("it ends in NUL bytes, as a file does whose content was lost in a crash")


def _check_png(data: bytes) -> None:
    """Check the chunks that are pixels or say how these are coded: Pillow reads IDAT without its checksum."""
    view, at = memoryview(data), _PNG_HEAD_BYTES
    while at + 12 <= len(data):
        length, kind = int.from_bytes(view[at : at + 4], "big"), data[at + 4 : at + 8]
        stop = at + 12 + length
        # the fifth bit of the first letter: an ancillary chunk (PNG, 5.4)
        if not kind[0] & 32 and zlib.crc32(view[at + 4 : stop - 4]) != int.from_bytes(view[stop - 4 : stop], "big"):
            raise DecodeError("its pixel data is damaged: a checksum is wrong")
        if kind == b"IEND":
            return
        at = stop
    raise DecodeError("it is cut short")
