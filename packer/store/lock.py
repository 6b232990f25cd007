"""The lock on a store that is being made: one process at a time, on any host that shares the folder.

Also knows whether the paths that it locked still lead to the same folders: a user may rename or remove them at any time, and what
another command makes under the same name must not be touched.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from packer.errors import LockedError, PackError
from packer.store.journal import FOLDER
from packer.text import system_reason
from reader.format.filesystem import error_path, refresh_names

LOCK = f"{FOLDER}/lock"
# what says that another process holds a lock, the last two on Windows; any other, that the file system has no locks
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_HOLDER_TRIES = 20
_HOLDER_SECONDS = 0.01


class Lock:
    """Hold of a folder for as long as this process lives, exclusive or shared; a dead process's lock is taken over.

    Shared is what the parts of one pack hold beside each other: none of them may be there while OUT is packed or sealed.

    Args:
        out: of a stage, OUT: errors name it, and it must stay the same folder, or missing, until the stage becomes it.

    Raises:
        LockedError: another process holds it; names its pid and host.
        PackError: the file system has no locks.
        FileNotFoundError: another process has just finished OUT and taken the lock's file away.
    """

    def __init__(self, folder: Path, *, is_shared: bool = False, out: Path | None = None) -> None:
        self.path, self._out = folder / LOCK, out
        # open, so that no other folder gets their inode numbers; None: there is none
        self._folder = _open_folder(folder)
        self._replaced = None if out is None else _open_folder(out)
        self._descriptor = -1
        # what its file says, by which workers know it
        self.content = b"" if is_shared else json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode()
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            take_lock(self._descriptor, is_shared)
        except OSError as e:
            self._close_files()
            if self._descriptor < 0:
                raise
            if e.errno not in _HELD:
                raise _no_locks(self.path, e) from None
            holder = _holder(self.path)
            raise LockedError(
                f"{out or folder} is being packed by {holder}. Wait for it, or choose another folder."
            ) from None
        try:
            self._sign()
        except FileNotFoundError:
            self._close_files()
            raise
        except BaseException:
            if not is_shared:  # others hold a shared lock; a process that opened this one sees that its name is gone
                with contextlib.suppress(OSError):
                    os.unlink(self._own(LOCK), dir_fd=self._folder)
            self.close()
            raise

    def check(self) -> None:
        """See that the folder, and OUT, are what they were when it was locked: before each truncate, rename, delete and commit.

        Raises:
            PackError: one was renamed, removed or replaced by someone else.
        """
        self.check_moved(self.path.parent.parent)
        self.check_replaced()

    def check_moved(self, folder: Path) -> None:
        """See that of the folder, by another name."""
        refresh_names(folder / LOCK)
        _check(folder, folder, self._folder)
        _check(folder, folder / LOCK, self._descriptor)

    def check_replaced(self, at: Path | None = None) -> None:
        """See that OUT still is the folder that was there, or none where there was none.

        Args:
            at: where it has been moved.
        """
        if self._out is not None:
            at = at or self._out
            refresh_names(at)
            _check(self._out, at, self._replaced)

    def _sign(self) -> None:
        """See that the file still has its name, and write down who holds it."""
        # over NFS also for whatever is read in OUT under the lock: the changes of the previous holder must be visible
        refresh_names(self.path)
        if not _leads_to(self.path, self._descriptor):
            # opened before its holder removed it: a lock on a file without a name keeps no one out
            raise FileNotFoundError(errno.ENOENT, "the lock was removed meanwhile", str(self.path))
        with error_path(self.path):
            os.ftruncate(self._descriptor, 0)
            if self.content:
                left = memoryview(self.content)
                while len(left):  # a disk may take less at a time
                    left = left[os.write(self._descriptor, left) :]
                # NFS keeps written bytes here for half a minute, and other hosts must read who holds OUT
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go; also called in a forked worker, whose copy would outlive this process's."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
            # NFS kept the file, and so its folder, for as long as it was open; one that holds anything else stays
            os.rmdir(self._own(FOLDER), dir_fd=self._folder)
        self._descriptor = -1
        self._close_files()

    def _own(self, name: str) -> str:
        """Name a file for a call that takes the locked folder as dir_fd, where the system has that."""
        return name if self._folder is not None else str(self.path.parent.parent / name)

    def _close_files(self) -> None:
        for descriptor in (self._descriptor, self._folder, self._replaced):
            if descriptor is not None and descriptor >= 0:
                os.close(descriptor)
        self._folder = self._replaced = None


@contextlib.contextmanager
def checked(check: Callable[[], None]) -> Iterator[None]:
    """Where something fails inside because OUT was renamed or removed, raise what `check` of its lock does instead."""
    try:
        yield
    except Exception:
        check()
        raise


def check_same_lock(path: str, content: bytes) -> None:
    """Refuse, in a worker on any host, to write below a folder whose lock is not the one that its command wrote.

    Raises:
        PackError: the folder was renamed, removed or replaced.
    """
    with contextlib.suppress(OSError):
        if Path(path).read_bytes() == content:
            return
    raise _taken(Path(path).parent.parent)


def take_lock(descriptor: int, is_shared: bool) -> None:
    """Lock an open file or raise OSError; the system releases the lock whenever the process ends."""
    try:
        import fcntl
    except ImportError:
        if is_shared:
            return  # Windows knows no shared lock of this kind
        import msvcrt

        # a byte past the text, so that others can read the holder
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return
    fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _open_folder(path: Path) -> int | None:
    try:
        return None if os.name == "nt" else os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return None


def _leads_to(path: Path, descriptor: int | None) -> bool:
    """Whether a path leads to an open file or folder, or to none where there was none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return descriptor is None
    return descriptor is not None and os.path.samestat(found, os.fstat(descriptor))


def _check(out: Path, path: Path, descriptor: int | None) -> None:
    """Raise where a path no longer leads to an open file or folder of OUT."""
    # Windows renames and removes no folder with an open file in it
    if os.name != "nt" and not _leads_to(path, descriptor):
        raise _taken(out)


def _taken(folder: Path) -> PackError:
    given = folder.parent if folder.name == FOLDER else folder  # the user knows of OUT, not of what is hidden in it
    return PackError(
        f"{given} was renamed, removed or replaced while this command worked on it, and what is there now was left as it is."
        " Move the folder back, or choose another, and give the command again."
    )


def _no_locks(path: Path, error: OSError) -> PackError:
    return PackError(
        f"{path} cannot be locked: {system_reason(error)}. It needs a file system with locks (flock): NFS 3 needs"
        " its lock service (rpc.statd), Lustre the mount option flock."
    )


def _holder(path: Path) -> str:
    """Read who holds a lock; one who has just taken it needs a moment to write its name."""
    for _ in range(_HOLDER_TRIES):
        with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
            # opened each time: over NFS an open file shows for seconds what it held before
            found = json.loads(path.read_bytes())
            return f"process {found['pid']} on {found['host']}"
        time.sleep(_HOLDER_SECONDS)
    return "another process"
