"""The record of a pack under way, in OUT/.packing: which blocks are safely on disk, and who holds OUT.

One line a block, appended only after the block's rows are synced; the longest prefix of whole lines is what a resume
keeps. Line: 8 hex digits of crc32, a space, JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packer.report import PackError
from packer.sources.local import BINARY
from packer.store.blocks import Result
from packer.store.files import sync_folder
from reader.format.filesystem import look_again, naming, or_again

FOLDER = ".packing"
JOURNAL = f"{FOLDER}/journal"
LOCK = f"{FOLDER}/lock"

# what says that another process holds a lock, the last two on Windows; all else, that there are none to be had
_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_HOLDER_TRIES = 20
_HOLDER_SECONDS = 0.01


class JournalError(PackError):
    """The journal of an unfinished pack cannot be resumed."""


class LockedError(PackError):
    """Another pack holds OUT."""


class Journal:
    """Append-only; `append` returns when its lines are on disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, out: Path, header: dict[str, Any]) -> Journal:
        """Begin a journal; the header says what is packed and how."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | BINARY, 0o666))
        journal._append([header])
        sync_folder(path.parent)
        return journal

    @classmethod
    def reopen(cls, out: Path, keep_bytes: int) -> Journal:
        """Go on after the first keep_bytes of a journal; the rest is cut off."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_APPEND | BINARY))
        with naming(path):
            os.ftruncate(journal._descriptor, keep_bytes)
            # before other rows take the place of those that were cut off
            os.fsync(journal._descriptor)
        # whoever made it may have been killed before it did this
        sync_folder(path.parent)
        return journal

    def append(self, results: list[Result], inputs_stop: int, rows_stop: int) -> None:
        """Record blocks whose rows are on disk; the stops are the totals after the last of them."""
        lines = []
        for result in reversed(results):
            head = {"inputs_stop": inputs_stop, "rows_stop": rows_stop}
            lines.append(head | {field.name: getattr(result, field.name) for field in dataclasses.fields(result)})
            inputs_stop, rows_stop = inputs_stop - result.inputs, rows_stop - result.rows
        self._append(lines[::-1])

    def close(self) -> None:
        """Let the file go; it stays for a resume or until the store is sealed."""
        with naming(self.path):
            os.close(self._descriptor)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = memoryview(b"".join(_encode(line) for line in lines))
        with naming(self.path):
            while len(data):
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)


def discard(out: Path) -> None:
    """Remove OUT's journal, if it has one, for certain: what it names may be overwritten after this."""
    (out / JOURNAL).unlink(missing_ok=True)
    sync_folder(out / FOLDER)


def read_header(out: Path) -> dict[str, Any]:
    """Return the first line of OUT's journal.

    Raises:
        JournalError: it has none.
    """
    for header, _ in _whole_lines(out / JOURNAL):
        return header
    raise JournalError(f"{out / JOURNAL} is empty or damaged. Start anew with --overwrite.")


def has_begun(out: Path) -> bool:
    """Whether OUT holds a pack that can be resumed: a journal with a whole header.

    Raises:
        OSError: there is a journal that cannot be read; what it records must not be taken for lost.
    """
    try:
        return or_again(out / JOURNAL, lambda: any(True for _ in _whole_lines(out / JOURNAL)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_blocks(out: Path) -> Iterator[tuple[Result, int]]:
    """Yield each recorded block and the byte where its line ends, up to the first torn line."""
    lines = _whole_lines(out / JOURNAL)
    next(lines, None)
    known = {field.name for field in dataclasses.fields(Result)}
    for line, end in lines:
        yield Result(**{key: value for key, value in line.items() if key in known}), end


def header_end(out: Path) -> int:
    """Return the byte where the journal's header ends."""
    return next((end for _, end in _whole_lines(out / JOURNAL)), 0)


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
            if not is_shared:  # others hold a shared one; of this one, who opened it sees that it has no name any more
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            self.close()
            raise

    def _sign(self, is_shared: bool) -> None:
        """See that the file still has its name, and write down who holds it."""
        # over NFS also for whatever is looked at in OUT once it is held: what the one before did must be seen
        look_again(self.path)
        try:
            is_there = os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            # opened before its holder removed it: a lock on a file without a name keeps no one out
            raise FileNotFoundError(errno.ENOENT, "the lock was removed meanwhile", str(self.path))
        with naming(self.path):
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
    """Lock an open file or raise OSError; the system lets go when the process ends, however it ends."""
    try:
        import fcntl
    except ImportError:
        if is_shared:
            return  # Windows knows no shared lock of this kind
        import msvcrt

        # past the text, so that others can read who holds it
        os.lseek(descriptor, 1 << 20, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return
    fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)


def _no_locks(path: Path, error: OSError) -> PackError:
    name = errno.errorcode.get(error.errno or 0, "?")
    return PackError(
        f"{path} cannot be locked: {error.strerror} ({name}). OUT needs a file system with locks (flock): NFS 3 needs"
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


def _encode(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    end = 0
    with naming(path), open(path, "rb") as file:
        for line in file:
            text = line[9:-1]
            if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(text):
                return
            end += len(line)
            yield json.loads(text), end
