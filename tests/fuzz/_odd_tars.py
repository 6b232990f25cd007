"""Tars with odd headers, at random, and what tarfile and packer list of them.

Knows the fields of a header and the records of pax; not how the compiled part is built.
"""

from __future__ import annotations

import io
import random
import tarfile
from typing import Any

from packer.sources.tar_headers import listed

# Fields of a header, by (byte, room), and what is put there.
_FIELDS = {
    (0, 100): [b"b.jpg", b"dir/", b"/", b"", b"a\xff/\xe9.jpg", b"x" * 100, b"../../b", b"a//b/./c.jpg"],
    (100, 8): [b"", b"0000644\0", b" 644 \0", b"  9\0", b"\x80\0\0\0\0\0\1\1", b"-17", b"0o17", b"1_0", b"\xff" * 8],
    (124, 12): [b"", b"0", b"1001", b" 17 \0junk", b"8", b"\x80" + b"\0" * 10 + b"\5", b"\xff" * 12, b"7" * 12, b"\t7"],
    (136, 12): [b"nonsense", b"\x80" + b"\0" * 11, b"17"],
    (156, 1): [b"0", b"\0", b"1", b"2", b"5", b"7", b"x", b"g", b"L", b"K", b"S", b"V", b"X", b"\xe9"],
    (257, 8): [b"ustar\0" + b"00", b"ustar  \0", b""],
    (329, 8): [b"z", b"1"],
    (345, 155): [b"", b"p", b"p/q/", b"/", b"\xff"],
}
_RECORDS = [
    "path=b.jpg", "path=d/", "path=", "path=/", "path=a\0b", "path=\u4e2d.jpg", "linkpath=c", "size=3", "size=x", "mtime=1.5",
    "uid=x", "SCHILY.dev=5", "LIBARCHIVE.xattr.com.apple.provenance=AQA", "comment=hdrcharset=BINARY", "hdrcharset=BINARY",
    "GNU.sparse.size=7", "GNU.sparse.name=b", "GNU.sparse.realsize=x", "GNU.sparse.major=1", "a=b=c", "=x", "nothing",
]  # fmt: skip
# what twelve bytes 0xff are
_LEAST_BYTES = -1


def odd_tar(rng: random.Random) -> bytes:
    """Make a tar of a few members, some with odd headers."""
    data = b""
    for _ in range(rng.randint(1, 4)):
        data += (_odd_records(rng) if rng.random() < 0.4 else b"") + _odd_header(rng)
    return data + bytes(rng.choice([0, 512, 1024, 100]))


def _kind_of(info: tarfile.TarInfo) -> tuple[bool, bool]:
    """Return whether a member is a folder, or else one with holes."""
    return info.isdir(), info.issparse() and not info.isdir()


def by_tarfile(data: bytes) -> list[Any] | str:
    """Return what a listing asks of each member of a tar, and where the last one ends; or the error."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            return [
                (
                    info.name,
                    info.offset_data,
                    info.size,
                    info.isreg(),
                    info.isdir(),
                    info.issparse() and not info.isdir(),
                )
                for info in tar
            ] + [tar.offset]
    except (tarfile.TarError, ValueError) as e:
        return f"{type(e).__name__}: {e}"


def by_packer(data: bytes) -> list[Any] | str:
    """Return the same as packer lists it."""
    found: list[Any] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member, odd in listed(tar):
                sparse = odd is not None and odd.issparse()
                found.append((*member, not member[3] and odd is None, sparse))
            return [*found, tar.offset]
    except (tarfile.TarError, ValueError) as e:
        return f"{type(e).__name__}: {e}"


def is_same(ours: list[Any] | str, theirs: list[Any] | str) -> bool:
    """Whether packer lists a tar as tarfile does; it alone refuses a member of less than 0 bytes."""
    return ours == theirs or (isinstance(ours, str) and ours.endswith(f"says {_LEAST_BYTES} bytes"))


def _sealed(header: bytes) -> bytes:
    """Give a header its checksum."""
    total = sum(header[:148]) + sum(header[156:]) + 8 * 32
    return header[:148] + b"%06o\0 " % total + header[156:]


def _odd_header(rng: random.Random) -> bytes:
    """Make a header of which some fields are odd, and what follows it."""
    info = tarfile.TarInfo(rng.choice(["a.jpg", "n/a.jpg", "f/" * 60 + "a.jpg", "folder"]))
    info.size = rng.choice([0, 1, 700])
    header = info.tobuf(tarfile.USTAR_FORMAT)
    for (at, room), values in _FIELDS.items():
        if rng.random() < 0.15:
            value = rng.choice(values)[:room]
            header = header[:at] + value + bytes(room - len(value)) + header[at + room :]
    return (_sealed(header) if rng.random() < 0.97 else header) + bytes(-(-info.size // 512) * 512)


def _odd_records(rng: random.Random) -> bytes:
    """Make a header of pax, or one of a long name, and what it holds."""
    data = b""
    for text in rng.choices(_RECORDS, k=rng.randint(0, 3)):
        record = f" {text}\n".encode()
        size = len(record) + len(str(len(record) + len(str(len(record)))))
        data += b"%d%b" % (size + (rng.choice([-1, 1, 99]) if rng.random() < 0.1 else 0), record)
    kind = rng.choice([b"x", b"x", b"x", b"g", b"L", b"L", b"K"])
    if kind in (b"L", b"K"):
        data = rng.choice([b"long/" * 30 + b"a.jpg", b"folder/", b"", b"\xe9", b"a\0b"]) + b"\0" * rng.randint(0, 2)
    info = tarfile.TarInfo("././@LongLink")
    info.type, info.size = kind, len(data)
    filled = data + (b"9 path=x\n" if rng.random() < 0.05 else b"")
    return info.tobuf(tarfile.USTAR_FORMAT) + filled + bytes(-len(filled) % 512)
