"""The bytes of one input: a file, or a member of a tar or zip, read without unpacking. Chooses between these and objects.

Opens a file once, and reads one version of it. An input that cannot be read, or changes meanwhile, raises DecodeError with
the reason; a fault of the disk or network raises SourceError.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import struct
import zlib
from dataclasses import dataclass

from packer.errors import DecodeError, SourceError
from packer.sources.base import NO_STATE, RAW, STORED, Archive, Member, Readable, State, check_size
from packer.sources.roots import check_system
from packer.system import NO_DESCRIPTOR
from reader.format.urls import is_url

_PIECE_BYTES = 1 << 22
# PKWARE APPNOTE 6.3.10, 4.3.7: 26 bytes that the central directory repeats, then the lengths of name and extra field
_ZIP_HEADER = struct.Struct("<4s22xHH")

NO_FILE, _IRREGULAR = "there is no such file", "it is no regular file"


def locate(
    root: str,
    path: str,
    archives: tuple[Archive, ...] = (),
    member: list[int] | None = None,
    roots: tuple[str, ...] = (),
) -> Readable:
    """Locate an input of a pack: by its path below root, which may be a URL, or by its numbers in `Inputs.members`."""
    if is_url(root):
        from packer.sources.remote import RemoteSource

        return RemoteSource(root, path)
    if member is None:
        return LocalSource(os.path.join(root, path), roots=roots)
    where = Member(*member)
    archive = archives[where.archive]
    return LocalSource(os.path.join(root, archive.path), where, archive, roots)


@dataclass(frozen=True)
class LocalSource:
    """A file, or a member of an archive, as a source of bytes; the archive must still be the listed one.

    roots: folders that must exist: if one is missing, the disk is gone, not only the file.
    """

    path: str
    member: Member | None = None
    archive: Archive | None = None
    roots: tuple[str, ...] = ()

    def state(self) -> State:
        """Return size, mtime and ctime of the file; -1 each if it is missing.

        Raises:
            SourceError: its disk or network cannot be read now.
        """
        try:
            status = os.stat(self.path)
        except OSError as e:
            check_system(self.path, e, self.roots)
            return NO_STATE
        return _state(status)

    def read(self, *, most_bytes: int | None = None) -> tuple[bytes, State]:
        """Return the input's bytes, or the first most_bytes of them, in one version, and the state of the file.

        A file larger than an image may be is refused, unread.

        Renaming and deleting do not change an open file.

        Raises:
            DecodeError: they cannot be read, are not in a regular file, are empty, or change meanwhile.
            SourceError: their disk or network cannot be read now, or their archive has changed since it was listed.
            OSError: no file can be opened now.
        """
        # NONBLOCK: opening a FIFO without a writer would wait forever
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as e:
            if e.errno in NO_DESCRIPTOR:
                raise
            check_system(self.path, e, self.roots)
            raise DecodeError(_unreadable(e)) from e
        try:
            status = os.fstat(descriptor)
            data = self._read_once(descriptor, status, most_bytes)
            if _state(os.fstat(descriptor)) != _state(status):
                raise DecodeError("it was changed while it was read; pack it when its writer is done")
        except OSError as e:
            check_system(self.path, e, self.roots)
            raise DecodeError(_unreadable(e)) from e
        finally:
            os.close(descriptor)
        return data, _state(status)

    def _read_once(self, descriptor: int, status: os.stat_result, most_bytes: int | None) -> bytes:
        """Read the bytes from an open file."""
        if not stat.S_ISREG(status.st_mode):
            raise DecodeError(_IRREGULAR)
        if self.archive is not None and _state(status) != self.archive[1:]:
            raise SourceError(f"{self.path} was changed since it was listed")
        size_bytes = status.st_size if self.member is None else self.member.size_bytes
        check_size(size_bytes)
        wanted = size_bytes if most_bytes is None else min(size_bytes, most_bytes)
        if self.member is not None:
            check_size(max(size_bytes, self.member.stored_bytes))
            return _read_member(descriptor, self.member, wanted)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return _read_exactly(descriptor, wanted)


def _state(status: os.stat_result) -> State:
    """Return size, mtime and ctime: no program can set ctime back."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read_member(descriptor: int, member: Member, wanted: int) -> bytes:
    """Return the first wanted bytes of an archive's member."""
    offset = member.offset
    if member.method != RAW:
        os.lseek(descriptor, offset, os.SEEK_SET)
        header = _read_exactly(descriptor, _ZIP_HEADER.size)
        if len(header) < _ZIP_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise DecodeError("the zip archive is damaged: the member is not where its directory says")
        _, name_bytes, extra_bytes = _ZIP_HEADER.unpack(header)
        offset += _ZIP_HEADER.size + name_bytes + extra_bytes
    os.lseek(descriptor, offset, os.SEEK_SET)
    if member.method in (RAW, STORED):
        data = _read_exactly(descriptor, wanted)
    else:
        data = _inflated(descriptor, member.stored_bytes, wanted)
    if len(data) < wanted:
        raise DecodeError("its archive is cut short")
    if member.method != RAW and len(data) == member.size_bytes and zlib.crc32(data) != member.crc32:
        raise DecodeError("the zip archive is damaged: the member's checksum is wrong")
    return data


def _inflated(descriptor: int, stored_bytes: int, wanted: int) -> bytes:
    """Read and decompress a zip's member, up to wanted bytes and no more."""
    inflate, data, packed = zlib.decompressobj(-zlib.MAX_WBITS), io.BytesIO(), _read_exactly(descriptor, stored_bytes)
    try:
        # a piece at a time: zlib would hold all bytes twice
        while data.tell() < wanted and (piece := inflate.decompress(packed, min(_PIECE_BYTES, wanted - data.tell()))):
            data.write(piece)
            packed = inflate.unconsumed_tail
    except zlib.error as e:
        raise DecodeError(f"the zip archive is damaged ({e})") from e
    return data.getvalue()


def _read_exactly(descriptor: int, wanted: int) -> bytes:
    """Read wanted bytes, fewer only at the end of the file."""
    parts = list[bytes]()
    while wanted and (data := os.read(descriptor, wanted)):
        parts.append(data)
        wanted -= len(data)
    return b"".join(parts)


def _unreadable(error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NO_FILE
    # opening a socket, or a FIFO without a writer, has this number
    return _IRREGULAR if error.errno == errno.ENXIO else f"it cannot be read: {error.strerror}"
