"""Files and folders that one process needs for a while; those of a process that was killed are removed by a later one.

Each is locked while it is needed, and the kernel frees the lock with its process. So processes count whose numbers mean nothing
here, as those of another container.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path


class Scratch:
    """A folder of this process, TMPDIR/pixpack-KIND-*. Use it as a context: it is gone behind that.

    Those of the same kind and user that processes left which were killed are removed first.

    Args:
        parent: a folder for it instead of TMPDIR.
    """

    def __init__(self, kind: str, parent: str | os.PathLike[str] | None = None) -> None:
        prefix, folder = f"pixpack-{kind}-", Path(tempfile.gettempdir() if parent is None else parent)
        remove_abandoned(path for path in folder.glob(f"{prefix}*") if _is_own(path))
        self.path, self._descriptor = held_folder(folder, prefix)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


def held_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Make a folder; returns it, and what is to be closed when it is not needed any more."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            if hold(descriptor, path):
                return path, descriptor
            os.close(descriptor)


def hold(descriptor: int, path: Path) -> bool:
    """Hold a file or folder that was made just now, until the descriptor is closed; False: it was removed before that."""
    # not available on Windows
    import fcntl

    # where there are no such locks, nothing is removed either
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)
    return path.exists()


def remove_abandoned(paths: Iterable[Path]) -> None:
    """Remove those files and folders that no process holds; what cannot be removed stays."""
    import fcntl

    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # its process may have renamed it since, and made another of that name
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
