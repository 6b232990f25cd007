"""Files and names as file systems really have them: errors that lack a path, remembered names, and sizes in words.

Imports only the standard library, and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Let an OSError of an open file, which knows only a descriptor, say which file it is about."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or os.fspath(path)
        raise


def look_again(path: Path) -> None:
    """Have the names on the way to path, its own too, looked up anew by whoever uses them next.

    NFS trusts for up to a minute what a name stood for, or that it was missing; opening a folder asks its server.
    """
    for folder in reversed(path.absolute().parents):
        with contextlib.suppress(OSError):  # closed to us, or not there: the next look will tell
            os.close(os.open(folder, os.O_RDONLY))


def or_again(path: Path, look: Callable[[], _T]) -> _T:
    """Return what look returns; where it finds that path is missing, it looks once more, at what the server has."""
    try:
        return look()
    except FileNotFoundError:
        look_again(path)
        return look()


def size_text(size_bytes: int) -> str:
    """Say so many bytes for a person."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"
