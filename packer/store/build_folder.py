"""The folder that a store is made in: OUT, a replacement beside it, or a part's own. Created, locked, cleared, renamed at last.

Knows no inputs and writes no row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from packer.errors import PackError
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.files import remove_tree, sync_folder
from packer.store.lock import Lock
from packer.store.out_folder import (
    OWN_NAMES,
    check_out,
    dropped_names,
    finished_meanwhile,
    is_replaced,
    remove_working_folder,
    replacement,
)
from packer.store.parts import Part, check_no_parts, check_part
from packer.store.swap import swap
from packer.system import FULL
from packer.text import system_reason
from reader.format.manifest import MANIFEST


class BuildFolder:
    """The folder of one store being made; out is where its files are written, final where they belong.

    replaces: whether these are two, as it replaces a store, or is a split beside which a store is replaced.

    Attributes:
        locks: that `lock` took: of OUT where this is a part of it, of `out`, of an unfinished pack that is replaced.
    """

    def __init__(self, out: Path, options: OutputOptions, part: Part | None, *, replaces: bool | None = None) -> None:
        self._part, self._parent, self._options = part, out, options
        self.locks: list[Lock] = []
        self.final = out if part is None else part.folder(out)
        self.replaces = replaces_store(self.final, options) if replaces is None else replaces
        self.out = replacement(self.final) if self.replaces else self.final
        # the store that will be replaced
        self.replaced = self.final if self.replaces and (self.final / MANIFEST).is_file() else None
        # files that are removed with it although they are not part of it
        dropped = dropped_names(self.replaced) if self.replaced else []
        self.notes = [f"{self.final} also held {', '.join(dropped)}, which went with the old store."] if dropped else []

    def make(self) -> bool:
        """Make the folder and its working folder; returns whether it is new.

        Raises:
            OSError: the disk is full.
            PackError: any other reason why it cannot be made.
        """
        created = not self.out.exists()
        try:
            (self.out / journals.FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            if e.errno in FULL:
                raise
            raise PackError(f"{e.filename or self.out} cannot be made: {system_reason(e)}.") from None
        return created

    def lock(self) -> list[Lock]:
        """Lock OUT exclusively; or a part of it exclusively, and OUT shared with the other parts."""
        try:
            with contextlib.ExitStack() as undone:
                locks = [Lock(self._parent, is_shared=True)] if self._part is not None else []
                for folder in self._locked_folders():
                    for lock in locks[-1:]:
                        undone.callback(lock.close)
                    is_beside = self.replaces and folder == self.out
                    locks.append(Lock(folder, replaces=self.final if is_beside else None))
                undone.pop_all()
                self.locks = locks
                return locks
        except FileNotFoundError:
            raise finished_meanwhile(self.final) from None

    @property
    def own_lock(self) -> Lock:
        """The lock of the folder that files are written to."""
        return self.locks[0 if self._part is None else 1]

    def check(self) -> None:
        """See that each folder still is the one that was locked, and the one to be replaced too; raises PackError."""
        self._check_own()
        self.own_lock.check_replaced()

    def _check_own(self) -> None:
        for lock in self.locks:
            lock.check()

    def _locked_folders(self) -> list[Path]:
        """Name the folders to lock: where it works, and an unfinished pack that it will replace."""
        is_started = self.replaces and self.replaced is None and (self.final / journals.FOLDER).is_dir()
        return [self.out, self.final] if is_started else [self.out]

    def check_again(self) -> None:
        """Refuse OUT if another pack has finished it between the first look and the lock; leaves nothing of ours in it.

        Also under --resume and --overwrite: both would remove the finished store to start over.
        """
        if self.replaces:
            return
        if self._part is not None:
            check_part(self._parent, self._part, self._options, is_held=True)
            return
        check_no_parts(self.out, self._options)
        if (self.out / MANIFEST).exists():
            remove_working_folder(self.out)
            raise finished_meanwhile(self.out)
        check_out(self.out, self._options, is_held=True)

    def resumes(self) -> bool:
        """Whether a pack that was begun here is resumed."""
        return self._options.resume and journals.has_started(self.out)

    def clear(self) -> None:
        """Remove what an earlier pack left, and nothing else, but for the working folder, which must go last."""
        for name in OWN_NAMES - {journals.FOLDER}:
            self._check_own()
            entry = self.out / name
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)

    def remove(self, created: bool) -> None:
        """Leave nothing behind that looks like a store."""
        self.clear()
        sync_folder(self.out)
        self._check_own()
        remove_tree(self.out / journals.FOLDER)
        if created or self.replaces:
            with contextlib.suppress(OSError):  # another program has put a file there meanwhile
                self.out.rmdir()


def finish(folders: Sequence[BuildFolder], locks: Sequence[Lock]) -> None:
    """Move sealed stores to their destinations, all or none, and remove the working folders, under the locks to their end.

    Raises:
        PackError: a folder was renamed or removed meanwhile.
    """
    if os.name == "nt":
        for lock in locks:
            lock.close()  # Windows moves and removes no open file
    if replacing := {folder.final: folder.own_lock for folder in folders if folder.replaces}:
        swap(replacing)
    for folder in folders:
        if not folder.replaces:
            folder.check()
            # last, and under the lock: another pack may begin here as soon as it is gone
            remove_working_folder(folder.final)


def release(held: list[Lock], locks: Sequence[Lock]) -> None:
    """Let go of some of the locks that are held."""
    for lock in locks:
        lock.close()
        held.remove(lock)


def replaces_store(out: Path, options: OutputOptions) -> bool:
    """Whether the store asked for is made beside OUT and replaces it: open readers keep the old one."""
    is_store = (out / MANIFEST).is_file()
    # where there is no OUT, a crash came between the two renames of a system that cannot exchange names
    resumes = is_replaced(out) and (is_store or not out.exists())
    return (options.resume and resumes) or ((options.overwrite or options.update) and is_store)
