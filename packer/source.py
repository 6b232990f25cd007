"""The bytes of one input, wherever they are: a file, or a member of a tar or zip, read at its place without unpacking.

One open, one version, one close; what cannot be read, or changes again and again, is a DecodeError with a human reason.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
import zlib
from dataclasses import dataclass
from typing import Protocol

from packer.decode import DecodeError
from packer.inputs import RAW, STORED, Archive, Place

# Windows opens files as text unless told otherwise.
BINARY = getattr(os, "O_BINARY", 0)

_READ_BYTES = 1 << 20
# 16 bits of 4 channels of 100 megapixels have 0.8 GB; one read brings at most 2.1 GB on Linux.
_MOST_BYTES = 1 << 30
# A file that changes while it is read is read again, so often at most.
_READ_TRIES = 5
# The coarsest clock of a file system that we know (FAT): a file written later than this may change again and keep its mtime.
_CLOCK_NS = 2_000_000_000
# PKWARE APPNOTE 6.3.10, 4.3.7: 26 bytes that the central directory repeats, then the lengths of name and extra field
_ZIP_HEADER = struct.Struct("<4s22xHH")

State = tuple[int, int]


class Readable(Protocol):
    """What the bytes of an input are read from."""

    def state(self) -> State: ...

    def read(self, *, most_bytes: int = ...) -> tuple[bytes, State]: ...


@dataclass(frozen=True)
class Source:
    """Where the bytes of an input are: all of a file, or a place in an archive that must still be the listed one."""

    path: str
    place: Place | None = None
    archive: Archive | None = None

    @classmethod
    def of(cls, root: str, path: str, archives: tuple[Archive, ...], place: list[int] | None) -> Readable:
        """Locate an input of a pack: by its path below root, which may be a URL, or by its numbers in `Inputs.places`."""
        if "://" in root:
            from packer.remote import RemoteSource

            return RemoteSource(root, path)
        if place is None:
            return cls(os.path.join(root, path))
        where = Place(*place)
        archive = archives[where.archive]
        return cls(os.path.join(root, archive.path), where, archive)

    def state(self) -> State:
        """Return (size, mtime_ns) of the file, by which a resume notices that it changed; (-1, -1) where there is none."""
        try:
            status = os.stat(self.path)
        except OSError:
            return -1, -1
        return status.st_size, status.st_mtime_ns

    def read(self, *, most_bytes: int = _MOST_BYTES) -> tuple[bytes, State]:
        """Return the input's bytes, or the first most_bytes of them, in one version, and (size, mtime_ns) of the file.

        Renaming and deleting leave an open file as it is. One that is rewritten, cut or appended to while it is read is read
        again, until its times stand still or two reads agree.

        Raises:
            DecodeError: they cannot be read, lie in no regular file, are none, change again and again, or their archive is
                not the one that was listed.
        """
        try:
            # NONBLOCK: opening a FIFO without a writer would wait for ever
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | BINARY)
        except OSError as e:
            raise DecodeError(_unreadable(self.path, e)) from e
        try:
            before: bytes | None = None
            for _ in range(_READ_TRIES):
                data, state, is_settled = self._read_once(descriptor, most_bytes)
                if is_settled or data == before:
                    return data, state
                before = data
        except OSError as e:
            raise DecodeError(_unreadable(self.path, e)) from e
        finally:
            os.close(descriptor)
        raise DecodeError("it was changed each time it was read; pack it when its writer is done")

    def _read_once(self, descriptor: int, most_bytes: int) -> tuple[bytes, State, bool]:
        """Read from an open file; returns the bytes, (size, mtime_ns), and whether they are surely one version."""
        begun = time.time_ns()
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DecodeError(f"it is {_kind(status.st_mode)}, not an image")
        state = status.st_size, status.st_mtime_ns
        if self.archive is not None and state != self.archive[1:]:
            raise DecodeError("its archive was changed since it was listed")
        check_size(status.st_size if self.place is None else self.place.size_bytes)
        if self.place is None:
            os.lseek(descriptor, 0, os.SEEK_SET)
            data = _read_exactly(descriptor, min(status.st_size, most_bytes))
        else:
            data = _read_member(descriptor, self.place, most_bytes)
        # ctime too: no program can set it back
        times = status.st_mtime_ns, status.st_ctime_ns
        now = os.fstat(descriptor)
        is_same = (now.st_size, now.st_mtime_ns, now.st_ctime_ns) == (status.st_size, *times)
        return data, state, is_same and begun - max(times) > _CLOCK_NS


def check_size(size_bytes: int) -> None:
    """Refuse what is empty or larger than any image, as a DecodeError."""
    if size_bytes == 0:
        raise DecodeError("the file is empty")
    if size_bytes > _MOST_BYTES:
        raise DecodeError(f"the file has {size_bytes / 1e9:.0f} GB; no image is that large")


def _read_member(descriptor: int, place: Place, most_bytes: int) -> bytes:
    offset = place.offset
    if place.method != RAW:
        os.lseek(descriptor, offset, os.SEEK_SET)
        header = _read_exactly(descriptor, _ZIP_HEADER.size)
        if len(header) < _ZIP_HEADER.size or not header.startswith(b"PK\x03\x04"):
            raise DecodeError("the zip archive is damaged: the member is not where its directory says")
        _, name_bytes, extra_bytes = _ZIP_HEADER.unpack(header)
        offset += _ZIP_HEADER.size + name_bytes + extra_bytes
    os.lseek(descriptor, offset, os.SEEK_SET)
    if place.method in (RAW, STORED):
        data = _read_exactly(descriptor, min(place.size_bytes, most_bytes))
    else:
        data = _inflated(_read_exactly(descriptor, place.stored_bytes), place, most_bytes)
    if len(data) < min(place.size_bytes, most_bytes):
        raise DecodeError("its archive is cut short")
    if place.method != RAW and len(data) == place.size_bytes and zlib.crc32(data) != place.crc32:
        raise DecodeError("the zip archive is damaged: the member's checksum is wrong")
    return data


def _inflated(packed: bytes, place: Place, most_bytes: int) -> bytes:
    """Undo a zip's compression, up to the size that its directory promises and no byte more."""
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, min(place.size_bytes, most_bytes))
    except zlib.error as e:
        raise DecodeError(f"the zip archive is damaged ({e})") from e


def _read_exactly(descriptor: int, wanted: int) -> bytes:
    """Read wanted bytes, fewer only at the end of the file."""
    data = os.read(descriptor, wanted)
    if len(data) == wanted:
        return data
    parts, have = [data], len(data)
    while have < wanted and (more := os.read(descriptor, min(_READ_BYTES, wanted - have))):
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def _kind(mode: int) -> str:
    for test, name in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    ):
        if test(mode):
            return name
    return "a special file"


def _unreadable(path: str, error: OSError) -> str:
    if error.errno == errno.ENXIO:
        return "it is a socket or a FIFO, not an image"
    if error.errno == errno.ELOOP:
        return "it is a symbolic link that leads back to itself"
    if error.errno == errno.ENOENT and os.path.islink(path):
        return "it is a symbolic link to a file that does not exist"
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "there is no such file"
    return f"it cannot be read: {error.strerror}"
