"""Members of a tar, as tarfile reads their headers: where their bytes are, and the bytes of labels."""

from __future__ import annotations

import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, cast

from packer.errors import ScanError
from packer.sources.roots import check_system

_READ_BYTES = 256 << 10
_MOST_LABEL_BYTES = 16 << 20
# Of a header, where POSIX ustar and GNU write "ustar".
_MAGIC_AT = 257


def read_members(
    path: Path, label_suffixes: Collection[str]
) -> Iterator[tuple[str, int, int, bytes | None, str | None]]:
    """Yield what is in a tar but folders, in its order: name, byte where its data begin, their number, the data of a label.

    Of one that cannot be an input also the reason.

    Raises:
        ScanError: it is cut short, damaged, or several tars one after the other.
        SourceError: its disk cannot be read now.
    """
    size_bytes, name = path.stat().st_size, "its beginning"
    try:
        with tarfile.open(path, "r:") as tar:
            file = cast(IO[bytes], tar.fileobj)
            while (info := tar.next()) is not None:
                # it would keep all of them
                tar.members = []  # type: ignore[attr-defined]
                name, label = info.name, None
                # of less than 0 bytes the next one would be that again, forever
                if info.size < 0 or (info.isreg() and info.offset_data + info.size > size_bytes):
                    raise tarfile.ReadError("the member's data are not all there")
                if info.isdir():
                    continue
                is_plain = info.isreg() and not info.issparse()
                if is_plain and name.lower().rpartition(".")[2] in label_suffixes and info.size <= _MOST_LABEL_BYTES:
                    file.seek(info.offset_data)
                    label = file.read(info.size)
                yield name, info.offset_data, info.size, label, None if is_plain else "it is no plain file in its tar"
            _check_end(file, tar.offset)
    # tarfile lets the last four through of records, sizes and rows of headers that no program writes
    except (OSError, tarfile.TarError, EOFError, ValueError, OverflowError, MemoryError, RecursionError) as e:
        if isinstance(e, OSError):
            check_system(str(path), e)
        raise ScanError(f"{path} is cut short or damaged at {name}: {e}. Copy it again.") from None


def is_header(head: bytes) -> bool:
    """Whether these bytes begin with a member's header, as POSIX ustar and GNU write it."""
    return head[_MAGIC_AT : _MAGIC_AT + 5] == b"ustar"


def _check_end(file: IO[bytes], offset: int) -> None:
    """Raise ReadError if a tar continues behind its end: tarfile takes a damaged header for it, and `cat` joins tars."""
    file.seek(offset)
    while data := file.read(_READ_BYTES):
        if any(data):
            raise tarfile.ReadError("a header after it is damaged, or another tar follows")
