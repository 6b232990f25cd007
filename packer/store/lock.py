"""The lock on a store that is being made: one process at a time, on any host that shares the folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
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
    """Hold of OUT for as long as this process lives, exclusive or shared; a dead process's lock is taken over.

    Shared is what the parts of one pack hold beside each other: none of them may be there while OUT is packed or sealed.

    Raises:
        LockedError: another process holds it; names its pid and host.
        PackError: the file system has no locks.
        FileNotFoundError: another process has just finished OUT and taken the lock's file away.
    """

    def __init__(self, out: Path, *, is_shared: bool = False) -> None:
        self.path = out / LOCK
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            take_lock(self._descriptor, is_shared)
        except OSError as e:
            os.close(self._descriptor)
            if e.errno not in _HELD:
                raise _no_locks(self.path, e) from None
            holder = _holder(self.path)
            raise LockedError(f"{out} is being packed by {holder}. Wait for it, or choose another OUT.") from None
        try:
            self._sign(is_shared)
        except FileNotFoundError:
            os.close(self._descriptor)
            raise
        except BaseException:
            if not is_shared:  # others hold a shared lock; a process that opened this one sees that its name is gone
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            self.close()
            raise

    def _sign(self, is_shared: bool) -> None:
        """See that the file still has its name, and write down who holds it."""
        # over NFS also for whatever is read in OUT under the lock: the changes of the previous holder must be visible
        refresh_names(self.path)
        try:
            is_there = os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            # opened before its holder removed it: a lock on a file without a name keeps no one out
            raise FileNotFoundError(errno.ENOENT, "the lock was removed meanwhile", str(self.path))
        with error_path(self.path):
            os.ftruncate(self._descriptor, 0)
            if not is_shared:
                os.write(self._descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode())
                # NFS keeps written bytes here for half a minute, and other hosts must read who holds OUT
                os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go; also called in a forked worker, whose copy would outlive this process's."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
            # NFS kept the file, and so its folder, for as long as it was open; one that holds anything else stays
            os.rmdir(self.path.parent)


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


def _no_locks(path: Path, error: OSError) -> PackError:
    return PackError(
        f"{path} cannot be locked: {system_reason(error)}. OUT needs a file system with locks (flock): NFS 3 needs"
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
