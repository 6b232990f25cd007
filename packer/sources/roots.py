"""Distinguishes errors of the system from errors of the content.

A single missing or unreadable file is rejected. If a folder, archive, disk or network is gone, no image is at fault: the pack
stops unsealed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from packer.errors import SourceError, UnreadableError
from packer.text import system_reason

# Errors of a single file: no such name, no right to read it, a link to itself, a device without a driver. All other errors
# (EIO, ESTALE, ENOTCONN, ETIMEDOUT, EKEYEXPIRED, ...) are errors of its disk or network.
_OF_THE_FILE = frozenset(
    (
        *(errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG, errno.EISDIR),
        *(errno.ENXIO, errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EILSEQ, errno.EOVERFLOW, errno.EFBIG),
    )
)


def check_system(path: str, error: OSError, roots: Iterable[str] = ()) -> None:
    """Raise SourceError if reading failed by the system's fault, or the disk of path is gone.

    Args:
        roots: the folders and archives of the inputs, which existed at listing.
    """
    if error.errno and error.errno not in _OF_THE_FILE:
        raise UnreadableError(f"{path} cannot be read: {system_reason(error)}") from error
    for root in roots:
        if not os.access(root, os.R_OK):
            raise SourceError(f"{path} cannot be read: {root} is gone, or access to it is denied") from error
    if roots and not os.path.exists(path):
        folder = os.path.dirname(os.path.realpath(path))
        while not os.path.exists(folder):
            folder = os.path.dirname(folder)
        # the mount point of an unmounted disk is an empty folder
        if os.access(folder, os.R_OK) and os.path.isdir(folder) and not os.listdir(folder):
            raise SourceError(f"{path} cannot be read: {folder} is empty, its disk may not be mounted") from error


def files_below(folder: Path) -> Iterator[str]:
    """Yield all files below a folder, as paths relative to it with / between; raises SourceError as `check_system`."""

    def check(error: OSError) -> None:
        """Raise the errors that os.walk skips."""
        check_system(str(error.filename), error)

    for root, _, files in os.walk(folder, followlinks=True, onerror=check):
        inside = Path(os.path.relpath(root, folder))
        yield from ((inside / file).as_posix() for file in sorted(files))


def is_there(path: str | os.PathLike[str]) -> bool:
    """Whether a path exists; raises SourceError if an error of the system hides that."""
    try:
        os.stat(path)
    except ValueError:  # a NUL: no file has such a name
        return False
    except OSError as e:
        check_system(os.fspath(path), e)
        return False
    return True
