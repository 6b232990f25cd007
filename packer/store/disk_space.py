"""Space on OUT's disk: checked before a pack, allocated up front, and explained in errors."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

from packer.errors import DiskFullError, PackError
from packer.option_names import Option
from packer.system import FULL, NO_DESCRIPTOR
from packer.text import system_reason
from reader.format.filesystem import error_path
from reader.format.manifest import PIXELS

_ALLOCATE_BYTES = 1 << 30
# A failed write needs a page at least, even if the estimate of all files is used up.
_LEAST_BYTES = 4096


def check_room(out: Path, sizes: dict[str, int], again: str = "") -> None:
    """Compare the space that OUT's files still need with the free space.

    Args:
        sizes: name below OUT -> bytes that the file will have.
        again: what to do once there is room; "": resume.

    Raises:
        DiskFullError: names path, needed, free and missing bytes.
    """
    need, free = needed_bytes(out, sizes), free_bytes(out / PIXELS)
    if need > free:
        raise disk_full(out, need, free, again)


def allocate(path: Path, size_bytes: int, progress: Callable[[int], None]) -> None:
    """Allocate the disk space of a file now, in pieces: a full disk then shows before an image is decoded.

    If the file system cannot, nothing is allocated. Rows are always written by plain writes, never through a mapping.

    Raises:
        OSError: with the path as its filename.
    """
    if not hasattr(os, "posix_fallocate"):  # macOS
        return
    with error_path(path), open(path, "r+b", buffering=0) as file:
        for start in range(0, size_bytes, _ALLOCATE_BYTES):
            stop = min(start + _ALLOCATE_BYTES, size_bytes)
            try:
                os.posix_fallocate(file.fileno(), start, stop - start)
            except OSError as e:
                if e.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                    return
                raise
            progress(stop)


def guard_standard_streams() -> None:
    """Open closed descriptors 0 to 2, so that no file of packer gets their numbers.

    The next opened file would get the number, and a C library's messages to standard error would be written into pixels.memmap.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def needed_bytes(out: Path, sizes: dict[str, int]) -> int:
    """Return how much disk the files of these sizes below OUT still need together."""
    return sum(_missing_bytes(out / name, size_bytes) for name, size_bytes in sizes.items())


def free_bytes(path: Path) -> int:
    """Return the free bytes on the disk of a file, which need not exist yet."""
    return shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free


def disk_full(path: Path | str, need: int, free: int, again: str = "") -> DiskFullError:
    """Return an error with the number of missing bytes, and how to resume."""
    again = again or "give the same command again"
    return DiskFullError(
        f"{path} needs {need} more bytes, its disk has {free} free: {max(0, need - free)} are missing."
        f" Free some space and {again}, or choose a folder on another disk."
    )


def _missing_bytes(path: Path, size_bytes: int) -> int:
    """Return the disk space that a file of size_bytes still needs; a sparse file counts by its allocated blocks."""
    try:
        status = os.stat(path)
    except OSError:
        return size_bytes
    return max(0, size_bytes - min(status.st_blocks * 512, status.st_size))


def as_pack_error(error: OSError, out: Path, sizes: dict[str, int], again: str = "") -> PackError:
    """Return the error to raise for a failed system call: DiskFullError if space is lacking, else PackError.

    Args:
        sizes: name below OUT -> bytes that the file will have.
        again: what to do once it is fixed; "": the same command.
    """
    fewer = "" if again else f" or give fewer {Option('workers')}"
    again = again or "give the same command again"
    if error.errno in NO_DESCRIPTOR:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return PackError(
            f"{error.filename or 'a pipe to a worker'} cannot be opened: {system_reason(error)}, of which this process may"
            f" have {most} (ulimit -n). Allow more{fewer}, and {again}."
        )
    if error.filename is None and error.errno not in FULL:  # an error of opening, reading or writing names its file
        return PackError(
            f"a worker process cannot be started or reached: {system_reason(error)}. {again[0].upper()}{again[1:]}."
        )
    path = Path(error.filename or out / PIXELS)
    what = f"{path} cannot be read or written: {system_reason(error)}"
    if error.errno == errno.ENAMETOOLONG:
        return PackError(f"{what}. Choose a folder with a shorter path, or shorten the name.")
    if error.errno not in FULL:
        return PackError(f"{what}. {again[0].upper()}{again[1:]} once it can.")
    free = free_bytes(path)
    need = max(_LEAST_BYTES, needed_bytes(out, sizes))
    if need > free:
        return disk_full(path, need, free, again)
    # a quota is used up, or someone has made room meanwhile
    return DiskFullError(
        f"{what}; {need} more bytes are needed, its disk has {free} free."
        f" Free some space or raise your quota, and {again}."
    )
