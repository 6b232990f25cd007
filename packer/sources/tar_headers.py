"""Headers of a tar's members: of plain ones only what a listing asks for, without tarfile's steps; others are tarfile's."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Iterator
from typing import Any

_SIZE, _CHECKSUM, _TYPE = slice(124, 136), slice(148, 156), slice(156, 157)
# files, folders and the headers of pax: of the rest tarfile reads more
_PLAIN = frozenset({tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.XHDTYPE})
# Records of pax that change neither name nor size nor type (POSIX.1-2017, pax, "pax Extended Header").
_WITHOUT_EFFECT = frozenset({b"atime", b"comment", b"ctime", b"gid", b"gname", b"mtime", b"uid", b"uname"})
# A record's length, a space, a name of one letter, "=", and the line's end.
_LEAST_RECORD_BYTES = 5
# What is read at once: a header and its records of pax; where members are small, the headers of many.
_FEW_BYTES, _MANY_BYTES = 16 << 10, 256 << 10
# Of more tarfile decides.
_MOST_RECORD_BYTES = 64 << 10
# zlib's adler32: its lower half is 1 and the sum of all bytes, modulo this. A checksum that is off by just this passes
_ADLER = 65521


class ListedMember(tarfile.TarInfo):
    """A member of which name, type, size and offset are known, as tarfile's own has them; its times and owner are not."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> ListedMember:
        """Read a header; raises what tarfile raises."""
        buf, kind = bytes(buf), bytes(buf[_TYPE])
        try:
            size, checksum = _octal(buf[_SIZE]), _octal(buf[_CHECKSUM])
        except ValueError:  # of base 256, or none
            return super().frombuf(buf, encoding, errors)
        if len(buf) != tarfile.BLOCKSIZE or kind not in _PLAIN or not _is_sum(buf, checksum):
            return super().frombuf(buf, encoding, errors)
        info = cls(_text(buf[:100], encoding, errors))
        info.type, info.size, info.chksum = kind, size, checksum
        if kind == tarfile.DIRTYPE:
            info.name = info.name.rstrip("/")
        if buf[345]:
            info.name = f"{_text(buf[345:500], encoding, errors)}/{info.name}"
        return info


def listed(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of a tar that was opened with ListedMember, as iterating over it does; raises what that raises.

    Raises:
        ReadError: a member has less than 0 bytes: the next one would be that again, forever.
    """
    while True:
        yield from _plain_members(tar)
        info = _next(tar)
        if info is None:
            return
        _check_size(info)
        # it would keep all of them
        tar.members = []  # type: ignore[attr-defined]
        yield info


def _check_size(info: tarfile.TarInfo) -> None:
    if info.size < 0:
        raise tarfile.ReadError(f"the header of {info.name} says {info.size} bytes")


def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    first: Any = tar
    offset = tar.offset
    if tar.fileobj is not None and offset and first.firstmember is None:
        # from anywhere else tarfile looks whether the member before is all there
        tar.fileobj.seek(offset - 1)
    return tar.next()


def _plain_members(tar: tarfile.TarFile) -> Iterator[ListedMember]:
    """Yield the next members up to the first whose header is not plain, with or without times and owners of pax before it."""
    first: Any = tar
    if first.firstmember is not None or tar.pax_headers or tar.fileobj is None:
        return
    encoding, errors, room = tar.encoding or "utf-8", tar.errors or "strict", _FEW_BYTES
    while True:
        start, at, count = first.offset, 0, 0
        tar.fileobj.seek(start)
        data = tar.fileobj.read(room)
        while (info := _member_at(data, at, encoding, errors)) is not None:
            _check_size(info)
            info.offset, info.offset_data = start + at, start + info.offset_data
            at = info.offset_data - start + (_padded(info.size) if info.type == tarfile.REGTYPE else 0)
            first.offset = start + at
            count += 1
            yield info
        if not count:
            return
        room = _MANY_BYTES if count > 1 else _FEW_BYTES


def _member_at(data: bytes, at: int, encoding: str, errors: str) -> ListedMember | None:
    """Read the header at a byte of data; its offset_data is a byte of data, too. None where it is not plain, or not all there."""
    try:
        begin = at + tarfile.BLOCKSIZE
        header = data[at:begin]
        if header[_TYPE] == tarfile.XHDTYPE:
            size = _octal(header[_SIZE])
            if not _is_sum(header, _octal(header[_CHECKSUM])) or not 0 <= size <= min(
                _MOST_RECORD_BYTES, len(data) - begin
            ):
                return None
            if not _are_without_effect(data[begin : begin + size]):
                return None
            begin += _padded(size) + tarfile.BLOCKSIZE
            header = data[begin - tarfile.BLOCKSIZE : begin]
        info = ListedMember.frombuf(header, encoding, errors)
    except (tarfile.TarError, ValueError):
        return None
    info.offset_data = begin
    return info if info.type in (tarfile.REGTYPE, tarfile.DIRTYPE) else None


def _are_without_effect(records: bytes) -> bool:
    """Whether records of pax, b"30 mtime=1700000000.123456789\n", say nothing that a listing asks for; raises ValueError."""
    start = 0
    while start < len(records):
        space = records.index(b" ", start)
        stop = start + int(records[start:space])
        if stop - start < _LEAST_RECORD_BYTES or records[stop - 1 : stop] != b"\n":
            return False
        if records[space + 1 : stop].partition(b"=")[0] not in _WITHOUT_EFFECT:
            return False
        start = stop
    return True


def _padded(size: int) -> int:
    return -(-size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE


def _octal(field: bytes) -> int:
    return int(field.partition(b"\0")[0], 8)


def _text(field: bytes, encoding: str, errors: str) -> str:
    return field.partition(b"\0")[0].decode(encoding, errors)


def _is_sum(buf: bytes, checksum: int) -> bool:
    """Whether the bytes have this sum, the checksum's own counted as spaces (POSIX.1-2017, pax, "ustar Interchange Format")."""
    found = zlib.adler32(b"%b        %b" % (buf[: _CHECKSUM.start], buf[_TYPE.start :]))
    return found & 0xFFFF == (1 + checksum) % _ADLER
