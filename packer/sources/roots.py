"""Errors of the system, distinguished from errors of the content: what the inputs are on, and whether that is still there.

A file that is missing or unreadable by itself is rejected. A folder, archive, disk or network that went away is no fault of an
image: what needs it is tried again with pauses, and where that does not help, the pack stops unsealed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from packer.errors import SourceError, UnreadableError
from packer.text import system_reason
from reader.format.filesystem import absolute_path

_T = TypeVar("_T")

# What one file may have by itself: no such name, no right to read it, a link to itself, a device without a driver. All other
# errors (EIO, ESTALE, ENOTCONN, ETIMEDOUT, EKEYEXPIRED, ...) are of the system that the file is on.
_OF_THE_FILE = frozenset(
    (
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR),
        *(errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EILSEQ, errno.EOVERFLOW, errno.EFBIG),
    )
)
_MOUNTS = "/proc/self/mountinfo"


class Root(NamedTuple):
    """A folder, or an archive, by what it was when it was listed: another one may replace it."""

    path: str
    device: int
    inode: int
    is_readable: bool


@dataclass(frozen=True)
class Roots:
    """What inputs are on: the folders that hold them, or the archives; and the mount points there were, with their devices.

    Mount points stand for what is below a root, or where a symbolic link leads, on another file system; only Linux lists
    them.
    """

    paths: tuple[Root, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, paths: Iterable[str | os.PathLike[str]]) -> Roots:
        """Look at folders or archives as they are now.

        Raises:
            SourceError: one is not there, or cannot be examined.
        """
        return cls(tuple(map(_root, map(absolute_path, paths))), tuple(_mounts().items()))

    def lost(self, path: str) -> str:
        """Say what has become of what a file is on; "" where all of it is as it was listed."""
        path = absolute_path(path)
        for root in self.paths:
            if path == root.path or path.startswith(os.path.join(root.path, "")):
                try:
                    now = _root(root.path)
                except SourceError as e:
                    return str(e)
                if now[:3] != root[:3]:
                    return f"{root.path} is not the one that was listed: its disk was unmounted, or it was replaced"
                if root.is_readable and not now.is_readable:
                    return f"access to {root.path} is denied now"
        if not self.mounts:
            return ""
        real = os.path.realpath(path)
        before, now_mounted = _mount_of(real, dict(self.mounts)), _mount_of(real, _mounts())
        return "" if before == now_mounted else f"the disk at {before[0]} is no longer mounted there"

    def check(self, path: str, error: OSError) -> None:
        """Raise SourceError where an error of reading path is the system's, or path is missing with what it was on."""
        if is_of_the_system(error):
            raise UnreadableError(f"{path} cannot be read: {system_reason(error)}") from error
        if lost := self.lost(path):
            raise SourceError(f"{path} cannot be read: {lost}") from error

    def check_all(self) -> None:
        """Raise SourceError where a root, or a disk below one, has gone since this was made."""
        now = _mounts()
        for root in self.paths:
            if lost := self.lost(root.path):
                raise SourceError(lost)
            inside = os.path.join(os.path.realpath(root.path), "")
            for point, device in self.mounts:
                if point.startswith(inside) and now.get(point) != device:
                    raise SourceError(f"the disk at {point} is no longer mounted there")


# Of what nothing is known: errors of the system are reported all the same.
NOWHERE = Roots()


def files_below(folder: Path) -> Iterator[str]:
    """Yield all files below a folder, as paths relative to it with / between; raises SourceError as `check_listed`."""
    for root, _, files in os.walk(folder, followlinks=True, onerror=check_listed):
        inside = Path(os.path.relpath(root, folder))
        yield from ((inside / file).as_posix() for file in sorted(files))


def check_listed(error: OSError) -> None:
    """Raise SourceError where a folder cannot be listed for a reason of the system; for os.walk, which passes over it."""
    NOWHERE.check(str(error.filename), error)


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a path exists; raises SourceError where an error of the system keeps that from being known."""
    try:
        os.stat(path)
    except ValueError:  # a NUL: no file can be called so
        return False
    except OSError as e:
        NOWHERE.check(os.fspath(path), e)
        return False
    return True


def is_missing(path: str) -> bool:
    """Whether a path is not there, cannot be reached, or is an empty folder, as the mount point of a disk that is away."""
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is None
    except NotADirectoryError:
        return False
    except OSError:
        return True


def is_of_the_system(error: OSError) -> bool:
    """Whether an error is of a file system, disk or network rather than of one file."""
    return bool(error.errno) and error.errno not in _OF_THE_FILE


def _root(path: str) -> Root:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise SourceError(f"{path} is gone") from None
    except OSError as e:
        kind = UnreadableError if is_of_the_system(e) else SourceError
        raise kind(f"{path} cannot be reached: {system_reason(e)}") from None
    return Root(path, status.st_dev, status.st_ino, os.access(path, os.R_OK))


def _mounts() -> dict[str, str]:
    """Return mount point -> device, of two at one point the upper one; nothing where the system does not say."""
    found = {}
    with contextlib.suppress(OSError), open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            # 36 35 98:0 /root /mnt rw,noatime ...; a space in a name is \040: proc_pid_mountinfo(5)
            _, _, device, _, point, *_ = line.split(" ")
            found[re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)] = device
    return found


def _mount_of(path: str, mounts: dict[str, str]) -> tuple[str, str]:
    """Return the mount point that a path is on, and its device."""
    while path not in mounts and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path, mounts.get(path, "")
