"""Members of a tar, as tarfile reads their headers: what a listing asks for, and the bytes of labels."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Protocol, cast

from packer.errors import ScanError
from packer.sources.roots import NOWHERE

# A member: its name, the byte where its data begin, how many they are, and whether it is a file.
Plain = tuple[str, int, int, bool]

_READ_BYTES = 256 << 10
_MOST_LABEL_BYTES = 16 << 20
# Of a header, where POSIX ustar and GNU write "ustar".
_MAGIC_AT = 257
# What tarfile lets through of records, sizes and rows of headers that no program writes.
SENSELESS = (ValueError, OverflowError, MemoryError, RecursionError)


def read_members(
    path: Path, label_suffixes: Collection[str], notes: list[str]
) -> Iterator[tuple[Plain, bytes | None, str | None]]:
    """Yield what is in a tar but folders, in its order, each with its bytes where it is a label.

    With one that cannot be an input, the reason. notes: what `listed_all` says is added here.

    Raises:
        ScanError: it is cut short or damaged.
        SourceError: its disk cannot be read now.
    """
    size_bytes, name = path.stat().st_size, "its beginning"
    try:
        with tarfile.open(path, "r:") as tar:
            for member, odd in listed_all(tar, path, notes):
                name, offset, size, is_file = member
                if is_file and offset + size > size_bytes:
                    raise tarfile.ReadError("the member's data are not all there")
                if not is_file and odd is None:
                    continue
                is_label = name.lower().rpartition(".")[2] in label_suffixes and is_file and size <= _MOST_LABEL_BYTES
                label = _bytes_of(tar, odd, offset, size) if is_label else None
                yield member, label, "it is no plain file in its tar" if odd else None
    except (OSError, tarfile.TarError, EOFError) as e:
        if isinstance(e, OSError):
            NOWHERE.check(str(path), e)
        raise ScanError(f"{path} is cut short or damaged at {name}: {e}. Copy it again.") from None
    except SENSELESS:
        raise ScanError(f"{path} is damaged after {name}: a header makes no sense. Copy it again.") from None


def listed_all(tar: tarfile.TarFile, path: Path, notes: list[str]) -> Iterator[tuple[Plain, tarfile.TarInfo | None]]:
    """Yield as `listed` what is in a tar, and in those behind its end, as `cat` joins them; notes: that there are some.

    What else is behind the end is left out, with a note.

    Raises:
        ReadError: as `listed`, or a header is damaged.
    """
    yield from listed(tar)
    file, count = cast(IO[bytes], tar.fileobj), 1
    while (offset := _behind_end(file, tar.offset)) is not None:
        if not _begins_tar(file, offset):
            notes.append(
                f"{path} has bytes behind its end that are not a tar, from byte {offset:,} on: they are left out."
            )
            break
        # records for all members are for those of one tar
        cast(_TarPosition, tar).offset, tar.pax_headers = offset, {}
        yield from listed(tar)
        count += 1
    if count > 1:
        notes.append(f"{path} is {count} tars, one after the other: the members of all of them are read.")


def listed(tar: tarfile.TarFile) -> Iterator[tuple[Plain, tarfile.TarInfo | None]]:
    """Yield the members of a tar that was just opened, as iterating over it does; raises what that raises.

    With one that is neither a plain file nor a folder also what tarfile knows of it.

    Raises:
        ReadError: a member has less than 0 bytes: the next one would be that again, forever.
    """
    while (info := _next(tar)) is not None:
        if info.size < 0:
            raise tarfile.ReadError(f"the header of {info.name} says {info.size} bytes")
        # it would keep all of them
        tar.members = []  # type: ignore[attr-defined]
        is_odd = not info.isdir() and (not info.isreg() or info.issparse())
        yield (info.name, info.offset_data, info.size, info.isreg()), info if is_odd else None


def is_header(head: bytes) -> bool:
    """Whether these 512 bytes are a member's header."""
    # POSIX ustar and GNU write it; older tars do not, but there a checksum is right
    if head[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar" or len(head) < tarfile.BLOCKSIZE:
        return head[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar"
    try:
        expected = int(head[148:156].strip(b" \0"), 8)
    except ValueError:
        return False
    return expected == sum(head[:148]) + sum(head[156:]) + 8 * 32


def _bytes_of(tar: tarfile.TarFile, odd: tarfile.TarInfo | None, offset: int, size: int) -> bytes:
    """Read a member; odd: of which tarfile knows more than where it is."""
    file = tar.extractfile(odd) if odd else tar.fileobj
    assert file is not None
    if not odd:
        file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        raise tarfile.ReadError("unexpected end of data")
    return data


def _behind_end(file: IO[bytes], offset: int) -> int | None:
    """Return the byte of the first block behind a tar's end, which is at offset, that is not empty; None: all are.

    Raises:
        ReadError: this is not the end: tarfile takes a damaged header in the middle for it.
    """
    file.seek(offset)
    block = file.read(tarfile.BLOCKSIZE)
    if any(block) or 0 < len(block) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("a header after it is damaged")
    offset += len(block)
    while data := file.read(_READ_BYTES):
        empty = len(data) - len(data.lstrip(b"\0"))
        if empty < len(data):
            return offset + empty // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        offset += len(data)
    return None


def _begins_tar(file: IO[bytes], offset: int) -> bool:
    """Whether a header is at offset; raises ReadError where one is behind it alone, as behind one that was overwritten."""
    file.seek(offset)
    if is_header(file.read(tarfile.BLOCKSIZE)):
        return True
    while data := file.read(_READ_BYTES):
        if any(found.start() % tarfile.BLOCKSIZE == _MAGIC_AT for found in re.finditer(b"ustar", data)):
            raise tarfile.ReadError("a header after it is damaged")
    return False


class _TarPosition(Protocol):
    """What tarfile knows of where it is, and no stub names: the member that it was opened at, where the next one is."""

    firstmember: tarfile.TarInfo | None
    offset: int


def _next(tar: tarfile.TarFile) -> tarfile.TarInfo | None:
    first = cast(_TarPosition, tar)
    offset = tar.offset
    if tar.fileobj is not None and offset and first.firstmember is None:
        # from anywhere else tarfile looks whether the member before is all there
        tar.fileobj.seek(offset - 1)
    return tar.next()
