"""Files that are being written, and folders that one process needs for a while; a later one removes those of a killed one.

Each is locked while it is needed, and the kernel frees the lock with its process. So processes count whose numbers mean nothing
here, as those of another container.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import BinaryIO

from reader.format.filesystem import error_path

# The letters that mkdtemp adds to a name.
_RANDOM = "[a-z0-9_]" * 8
# The name of a file while it is written, see `path_beside`.
_BESIDE = re.compile(r"\..+\.[0-9]+\.[0-9]+")


class Scratch:
    """A folder of this process, TMPDIR/pixpack-KIND-*. Use it as a context, which removes it at the end.

    Those of the same kind and user that processes left which were killed are removed first.

    Args:
        parent: a folder for it instead of TMPDIR.
    """

    def __init__(self, kind: str, parent: str | os.PathLike[str] | None = None) -> None:
        prefix, folder = f"pixpack-{kind}-", Path(tempfile.gettempdir() if parent is None else parent)
        # as mkdtemp names them: what a user calls pixpack-KIND-mine stays
        remove_abandoned(path for path in folder.glob(f"{prefix}{_RANDOM}") if _is_own(path))
        self.path, self._descriptor = locked_folder(folder, prefix)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make and lock a folder; returns it, and the descriptor to close when it is not needed any more."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            if hold(descriptor, path):
                return path, descriptor
            os.close(descriptor)


def hold(descriptor: int, path: Path) -> bool:
    """Lock a new file or folder until the descriptor is closed; False: it was removed before that."""
    # not available on Windows
    import fcntl

    # where there are no such locks, nothing is removed either
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path.exists()


def write_beside(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file beside its name, sync it, and rename it; nothing is left of one whose pieces cannot be had."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path_beside(path)
    try:
        with error_path(beside), new_file(beside) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
            # while it is locked: others may remove what nobody has locked
            os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_names(path.parent)


def path_beside(path: Path) -> Path:
    """Return where a file is written before it has its name: several threads may write it at once, with the same bytes."""
    return path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")


def new_file(path: Path) -> BinaryIO:
    """Make a file that nobody removes while it is open."""
    while not hold((file := open(path, "wb")).fileno(), path):  # noqa: SIM115 (closed by who asks for it)
        file.close()
    return file


def sync(descriptor: int) -> None:
    """Have the bytes of a file on the disk."""
    (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(descriptor)


def sync_names(folder: Path) -> None:
    """Have the names in a folder on the disk, where its file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_half_written(root: Path, without: Collection[str]) -> None:
    """Remove what killed processes were writing below a folder, but for what is in its folders of these names."""
    # rglob raises where another process removes a folder meanwhile
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in without]
        remove_abandoned(Path(folder, name) for name in names if _BESIDE.fullmatch(name))


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove those files and folders that no process holds; what cannot be removed stays."""
    import fcntl

    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # its process may have renamed it since, and created another of that name
                if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    continue
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            finally:
                os.close(descriptor)


def _is_own(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.lstat().st_uid == os.getuid()
    return False
