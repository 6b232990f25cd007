"""The lock on an unfinished store: one process at a time, on any host that shares the folder.

Also checks that the locked paths still lead to the same folders. A user may rename or remove these at any time, and another
command's folder of the same name must not be touched.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from packer.errors import LockedError, PackError
from packer.store.journal import FOLDER
from packer.text import system_reason
from reader.format.filesystem import error_path, refresh_names
from reader.format.shown import shown

LOCK = f"{FOLDER}/lock"


class Lock:
    """A lock on a folder while this process lives, exclusive or shared; a dead process's lock is taken over.

    Parts of one pack share it; no part may hold it while OUT is packed or sealed.

    Args:
        out: the OUT of a stage. Errors name it; it must stay the same folder, or missing, until the stage becomes it.

    Raises:
        LockedError: another process holds it; names its pid and host.
        PackError: the file system has no locks.
        FileNotFoundError: another process has just finished OUT and taken the lock's file away.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False, out: Path | None = None) -> None:
        self.path, self._out = folder / LOCK, out
        self.content = b"" if is_shared else f"process {os.getpid()} on {socket.gethostname()}".encode()
        # open, so that no other folder gets its inode number; -1: no folder
        self._replaced = -1 if out is None or not out.is_dir() else os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        self._descriptor = -1
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            self._take(fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX, out or folder)
        except BaseException:
            self.close()
            raise

    def _take(self, kind: int, out: Path) -> None:
        """Lock the open file, check that it still has its name, and record the holder."""
        try:
            fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            # opened again: over NFS an open file shows its old content for seconds
            holder = shown(self.path.read_text(errors="replace")) or "another process"
            raise LockedError(f"{out} is being packed by {holder}. Wait for it, or choose another folder.") from None
        except OSError as e:
            raise PackError(
                f"{self.path} cannot be locked: {system_reason(e)}. It needs a file system with locks (flock): NFS 3 needs"
                " its lock service (rpc.statd), Lustre the mount option flock."
            ) from None
        # over NFS also for reads in OUT under the lock: the changes of the previous holder must be visible
        refresh_names(self.path)
        if not _leads_to(self.path, self._descriptor):
            # opened before its holder removed it: a lock on a file without a name keeps no one out
            raise FileNotFoundError(errno.ENOENT, "the lock was removed meanwhile", str(self.path))
        with error_path(self.path):
            self.path.write_bytes(self.content)
            # NFS keeps written bytes here for half a minute, and other hosts must read who holds OUT
            os.fsync(self._descriptor)

    @property
    def identity(self) -> tuple[str, bytes]:
        """The path and content of its file, by which workers recognize it."""
        return str(self.path.absolute()), self.content

    def check(self) -> None:
        """Check that the folder and OUT are the locked ones: before each truncate, rename, delete and commit.

        Raises:
            PackError: one was renamed, removed or replaced by someone else.
        """
        for folder, path, descriptor in (
            (self.path.parent.parent, self.path, self._descriptor),
            (self._out, self._out, self._replaced),
        ):
            if folder is not None and path is not None:
                refresh_names(path)
                if not _leads_to(path, descriptor):
                    raise _taken(folder)

    def close(self) -> None:
        """Release the lock; also called in a forked worker, whose copy would outlive this process's."""
        for descriptor in (self._descriptor, self._replaced):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._descriptor = self._replaced = -1


@contextlib.contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """If the body fails because OUT was renamed or removed, raise the error of the lock's `check` instead."""
    try:
        yield
    except Exception:
        check()
        raise


def check_same_lock(path: str, content: bytes) -> None:
    """Refuse to write, in a worker on any host, below a folder whose lock another command has written.

    Raises:
        PackError: the folder was renamed, removed or replaced.
    """
    with contextlib.suppress(OSError):
        if Path(path).read_bytes() == content:
            return
    raise _taken(Path(path).parent.parent)


def _leads_to(path: Path, descriptor: int) -> bool:
    """Whether a path still leads to this open file or folder; for descriptor -1, whether nothing is there."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return descriptor < 0
    return descriptor >= 0 and os.path.samestat(found, os.fstat(descriptor))


def _taken(folder: Path) -> PackError:
    given = folder.parent if folder.name == FOLDER else folder  # the user knows OUT, not the hidden folder in it
    return PackError(
        f"{given} was renamed, removed or replaced while this command worked on it. Nothing there was changed."
        " Move the folder back, or choose another, and give the command again."
    )
