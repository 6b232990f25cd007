"""Files and names on real file systems: errors without a path, cached names, and sizes in words.

Imports only the standard library, and writes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TypeVar

from reader.format.errors import StoreError

_T = TypeVar("_T")


def user_path(path: str | os.PathLike[str]) -> str:
    """Return a user's path with ~ as the home folder, as torchvision's ImageFolder does with its root; ./~ is a name."""
    return os.path.expanduser(os.fspath(path))


def plain_path(path: str | os.PathLike[str]) -> str:
    """Return a path without . and ..; the part before a .. is resolved first, since it may be a symbolic link.

    Example:
        >>> plain_path("./images/"), plain_path("../images")
        ('images', '../images')
    """
    text = os.fspath(path)
    names = itertools.dropwhile(lambda name: name in ("", ".", ".."), text.split(os.sep))
    if ".." in names:
        folder, name = os.path.split(text)
        text = os.path.realpath(text) if name in ("..", ".", "") else os.path.join(os.path.realpath(folder), name)
    return os.path.normpath(text)


def absolute_path(path: str | os.PathLike[str]) -> str:
    """Return a path that means the same from any folder, without . and .., as `plain_path` does."""
    return plain_path(os.path.join(os.getcwd(), os.fspath(path)))


def identity(path: Path) -> tuple[int, int, int] | None:
    """Return the identity of the file at this path, which differs for a replacement; None if it is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


@contextlib.contextmanager
def error_path(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add the path to an OSError from an open file, which only has a descriptor."""
    try:
        yield
    except OSError as e:
        e.filename = e.filename or os.fspath(path)
        raise


def open_regular(path: Path, *, most_bytes: int | None = None) -> IO[bytes]:
    """Open a file of a store to read it; a pipe or device is refused before anything waits for it, and no link is followed.

    Raises:
        StoreError: it is not a regular file, or larger than most_bytes.
        OSError: it cannot be opened.
    """
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; a store holds its own files. Copy it with cp -rL.")
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise StoreError(f"{path} is not a regular file. Copy the store again.")
        if most_bytes is not None and status.st_size > most_bytes:
            raise StoreError(f"{path} has {status.st_size} bytes, expected {most_bytes} at most. Copy the store again.")
        return open(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def is_allowed(path: str | os.PathLike[str], mode: int) -> bool:
    """Return whether this user has these permissions for a file: os.R_OK, W_OK, X_OK."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def unreadable(path: str | os.PathLike[str]) -> StoreError:
    """Return the error of a file or folder of a store that this user may not read."""
    return StoreError(
        f"{os.fspath(path)} cannot be read: Permission denied. Its owner may allow it, of all files: chmod -R a+rX STORE"
    )


def refresh_names(path: Path) -> None:
    """Make the next use of path look up its name, and the names of the folders above, again.

    NFS caches for up to a minute the file of a name, or that it was missing; opening a folder asks the server.
    """
    for folder in reversed(path.absolute().parents):
        with contextlib.suppress(OSError):  # no permission, or missing: the next use fails
            # opening a pipe of that name would wait
            os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))


def retry_missing(path: Path, use: Callable[[], _T]) -> _T:
    """Return the result of use; if it raises FileNotFoundError, refresh the names of path and call it again."""
    try:
        return use()
    except FileNotFoundError:
        refresh_names(path)
        return use()


def size_text(size_bytes: int) -> str:
    """Format a number of bytes: "1.5 GB"."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{size_bytes / scale:.1f} {unit}"
    return f"{size_bytes} bytes"
