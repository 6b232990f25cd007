"""The destination OUT: made beside it and published in one step, so that OUT exists exactly when it is finished.

A pack, with its splits and journals, is in one folder, the stage OUT.packing, under one lock. Publishing renames the stage to
OUT; no system renames onto a folder with content. If OUT holds stores to replace, the two names are exchanged. If OUT is an
empty folder, perhaps a mount point, the stage is OUT/.packing, and its files are moved into OUT, the manifest last.

The actions of `Folder.check` and `Folder.begin`:

    OUT holds            the stage holds      asked for by                    is
    other files          -                    any                             refused
    stores               -                    pack, pull                      confirmed, or refused (before this is asked)
    stores               -                    merge, subset                   refused
    stores of its splits -                    update, and any --overwrite     replaced
    -                    work of its command  any but merge and subset        continued (with --overwrite: if it is the same)
    -                    work of another      any                             refused, with the line that continues it
    -                    work of another      any --overwrite                 cleared away
    -                    what a copy left     any                             cleared away

A kill leaves the stage, or a finished OUT with an obsolete working folder; `Folder.recover` finishes its publication.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.inputs.splits import is_split, split_of, stores_in
from packer.option_names import OVERWRITE, Option
from packer.store import journal as journals
from packer.store.files import remove_tree, sync_folder, write_atomically
from packer.store.lock import LOCK, Lock
from packer.store.parts import PARTS
from packer.store.state import (
    MOVING,
    REPLACING,
    UPDATE,
    in_progress,
    is_dropped,
    is_store,
    out_of,
    published,
    seal_command,
    stage_of,
    unfinished_message,
)
from packer.system import FULL
from packer.text import system_reason
from reader.format.manifest import MANIFEST, REJECTED, SAMPLES
from reader.format.splits import FOLDER, staging_path

# Names in a store's folder, finished or not.
_OWN_NAMES = {FOLDER, "_tensordict", "meta.json", SAMPLES, REJECTED, MANIFEST, f".{MANIFEST}.tmp"}


class StagedStore:
    """A store in the making.

    Attributes:
        to: the destination.
        folder: its folder in the stage.
    """

    def __init__(self, to: Folder, folder: Path) -> None:
        self.to, self.folder = to, folder

    @property
    def name(self) -> Path:
        """Its final path."""
        return self.to.out / self.folder.relative_to(self.to.stage)

    @property
    def old(self) -> Path | None:
        """The store that it replaces, or None."""
        return self.name if self.to.replaces and is_store(self.name) else None


class Folder:
    """OUT, one store or a folder of stores of splits.

    Args:
        out: its links are resolved.
        command: the word of the command; "": a pack. Journals are continued by the command that began them.
        overwrite: whether stores in OUT, and work in the stage, may be replaced.

    Attributes:
        stage: the folder in which it is made.
        locks: the held locks; the first is the stage's.
        replaces: whether OUT holds stores that this one replaces; set by `check`.
    """

    def __init__(self, out: Path, command: str = "", *, overwrite: bool = False) -> None:
        self.out, self.command, self.overwrite = out, command, overwrite
        self.stage = stage_of(out)
        self.locks: list[Lock] = []
        self.replaces = False

    @property
    def finished(self) -> list[Path]:
        """The finished stores in OUT: itself, or those of splits."""
        return published(self.out)

    @property
    def unfinished(self) -> list[Path]:
        """The folders in the stage with an unfinished pack, pull or part; unsealed ones first."""
        return in_progress(self.stage)

    @property
    def is_inside(self) -> bool:
        """Whether the stage is inside OUT, so that OUT itself stays."""
        return self.stage.parent == self.out

    def store(self, split: str) -> StagedStore:
        """Return the store of a split, in the stage."""
        return StagedStore(self, self.stage / split)

    # -- before any work

    def check(self, splits: Collection[str] = ("",)) -> None:
        """Refuse an OUT that is in the way, before any work, by the table of this module.

        Args:
            splits: the splits that OUT will hold.

        Raises:
            OptionsError: OUT, or the stage, holds something else.
            PackError: a store or an unfinished pack is in the way, or the store cannot be replaced.
        """
        self.check_splits(splits)
        finished = self.finished
        self.replaces = bool(finished)
        self._check_foreign(splits)
        if finished and not self.overwrite and self.command != UPDATE:
            raise PackError(f"{finished[0]} already holds a store. Replace it with {OVERWRITE}, or choose another OUT.")
        for store in [] if self.overwrite else self.unfinished:
            if (store / PARTS).is_dir():
                raise PackError(
                    f"{out_of(store)} holds parts of a pack. Continue with {Option('part', 'i/n')}, and"
                    f" {seal_command(store)} when all parts are packed; or start over, without parts, with {OVERWRITE}."
                )
            header = journals.header_of(store)
            if header and header.command != self.command:
                raise PackError(f"{self.stage} is of another command. Remove it, or: {unfinished_message(store)}")
            if split_of(store, self.stage) not in splits:
                raise PackError(
                    f"{self.out} was started with other splits, as {store} shows. Continue with the same, or start over"
                    f" with {OVERWRITE}."
                )

    def check_splits(self, splits: Collection[str]) -> None:
        """Refuse a store beside splits, and a store of another split: they would look like stores of one pack."""
        found = [split_of(store, self.out) for store in self.finished]
        if other := [split for split in found if split not in splits]:
            there, asked = (", ".join(filter(None, names)) or "none" for names in (found, splits))
            raise PackError(
                f"{self.out} holds a store of other splits: {there}, now {asked}. Choose another OUT, or move"
                f" {self.out / other[0]} away."
            )

    def _check_foreign(self, splits: Collection[str]) -> None:
        """Refuse foreign files in OUT or in the stage: they would be published or removed."""
        finished = self.finished
        ours = {FOLDER} if self.is_inside or finished else set[str]()
        ours |= _OWN_NAMES if self.out in finished else {store.name for store in finished if store.name in splits}
        there = _names(self.out)
        if foreign := [name for name in there if name not in ours]:
            if not self.replaces:
                raise OptionsError(
                    f"{self.out} is not empty (it holds {foreign[0]}) and is no store. Choose another OUT, or an empty"
                    " folder."
                )
            raise PackError(
                f"{self.out} also holds {foreign[0]}, which would be deleted with the store. Move it away first."
            )
        there = _names(self.stage)
        foreign = [name for name in there if name not in _OWN_NAMES and not is_split(name)]
        if foreign or (there and FOLDER not in there):
            raise OptionsError(
                f"{self.stage} is not empty (it holds {(foreign or there)[0]}), and {self.out} is made there. Move it away,"
                " or choose another folder."
            )

    # -- the steps

    @contextlib.contextmanager
    def begin(self, splits: Collection[str] = ("",)) -> Iterator[None]:
        """Create or continue the stage and hold its lock; remove all work that is not continued.

        Args:
            splits: the splits that OUT will hold.

        Raises:
            PackError: OUT is in the way; LockedError if another process holds the stage.
        """
        with self.held():
            self.check(splits)
            if self.replaces:
                shutil.copymode(self.out, self.stage)  # before a row of a private store is written
            if not self.is_inside and self.out.is_dir():  # made since the stage, perhaps a mount point
                self._check_renames()
            headers = map(journals.header_of, self.unfinished)
            is_continued = any(header and header.command == self.command for header in headers)
            for store in stores_in(self.stage):
                if not is_continued or split_of(store, self.stage) not in splits:
                    self.withdraw(store)
            yield

    @contextlib.contextmanager
    def held(self, *, is_shared: bool = False) -> Iterator[None]:
        """Hold the stage, as it is; is_shared: together with processes that pack parts in it.

        An exclusively held stage without work in progress is removed at the end.

        Raises:
            PackError: another process has finished OUT since the first look; LockedError if one holds the stage.
        """
        try:
            self._lock(is_shared)
            yield
        finally:
            if self.locks and not is_shared:
                with contextlib.suppress(OSError, PackError):
                    self.check_same()
                    if not self.unfinished and not (self.stage / MOVING).exists():
                        remove_tree(self.stage)
            self._release()

    def _lock(self, is_shared: bool) -> None:
        """Make the stage with its working folder, and lock it."""
        try:
            (self.stage / FOLDER).mkdir(parents=True, exist_ok=True)
            self.locks.append(Lock(self.stage, is_shared=is_shared, out=self.out))
        except OSError as e:
            if isinstance(e, FileNotFoundError) and self.finished:
                raise self._finished_meanwhile() from None
            if e.errno in (*FULL, errno.ENAMETOOLONG):
                raise
            raise PackError(f"{e.filename or self.stage} cannot be made: {system_reason(e)}.") from None
        if self.finished and not self.replaces:
            raise self._finished_meanwhile()

    def _finished_meanwhile(self) -> PackError:
        return PackError(f"{self.out} was finished by another process just now. Give the command again.")

    def _release(self) -> None:
        for lock in self.locks:
            lock.close()
        self.locks = []

    def _check_renames(self) -> None:
        """Refuse an OUT that its file system does not rename, a mount point or an overlay's lower layer, before any work.

        No system renames a folder onto one with content; any other obstacle it reports first.
        """
        try:
            os.rename(self.out, self.stage)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise PackError(
                    f"{self.out} cannot be replaced: its file system does not rename it ({system_reason(e)}). Choose another"
                    " OUT, or remove its content first."
                ) from None

    def check_same(self) -> None:
        """Check that the stage and OUT are the locked ones; called before each truncate, rename, delete or commit.

        Raises:
            PackError: one was renamed, removed or replaced by someone else.
        """
        for lock in self.locks:
            lock.check()

    def withdraw(self, store: Path | None = None) -> None:
        """Remove a store, or all stores, from the stage."""
        for folder in stores_in(self.stage) if store is None else [store]:
            self.clear(folder)
            if folder != self.stage:
                remove_tree(folder)

    def clear(self, store: Path) -> None:
        """Remove an earlier pack's files from the folder of a store, except the lock.

        The journal goes first: it must never outlive the rows that it names.
        """
        self.check_same()
        working = store / FOLDER
        if working.is_dir():
            journals.discard(store)
            # also the working folder, which marks a stage
            sync_folder(store)
        stays = [store / FOLDER, store / LOCK, *stores_in(store)[1:]]
        for path in [path for folder in (store, working) if folder.is_dir() for path in folder.iterdir()]:
            if path not in stays:
                remove_tree(path) if path.is_dir() else path.unlink()

    # -- publish

    def publish(self) -> None:
        """Publish the complete and synced stage as OUT, in one step unless it is inside OUT.

        Raises:
            PackError: OUT was made or replaced by someone else meanwhile; what is there stays.
            OSError: the disk or its file system refuses it.
        """
        self.check_same()
        self._check_foreign([split_of(store, self.stage) for store in stores_in(self.stage)])
        sync_folder(self.stage)
        replaced = None
        if self.is_inside:
            write_atomically(self.stage / MOVING, b"")
            self._move_in()
        elif self.replaces:
            for store in self.finished:
                shutil.copymode(store, self.stage / split_of(store, self.out))
            write_atomically(self.stage / REPLACING, b"")
            replaced = self.stage
            if not _exchange(self.stage, self.out):
                replaced = self._replaced_path
                # a kill between the two leaves no OUT: the next command on it restores the old one
                os.rename(self.out, replaced)
                os.rename(self.stage, self.out)
        else:
            os.rename(self.stage, self.out)
        sync_folder(self.out if self.is_inside else self.out.parent)
        self._tidy(replaced)

    @property
    def _replaced_path(self) -> Path:
        """The replaced store's path between two renames, on a system that cannot exchange names."""
        return self.out.with_name(f"{self.out.name}{FOLDER}.old")

    def _move_in(self) -> None:
        """Move everything from a stage inside OUT into OUT, the manifest of each store last: it is complete then."""
        stage = self.out / FOLDER
        for name in sorted(_names(stage), key=lambda name: name == MANIFEST):
            if name != FOLDER:
                if os.path.lexists(self.out / name):
                    raise PackError(f"{self.out / name} is in the way of the new store. Move it away first.")
                if name == MANIFEST:
                    sync_folder(self.out)
                os.rename(stage / name, self.out / name)

    def recover(self) -> None:
        """Finish a publication that a kill interrupted; each command calls this before it looks at OUT.

        Raises:
            LockedError: another process is publishing it just now.
            PackError: a link is in place of a pack's own file or folder, or the disk fails.
        """
        out, stage, working = self.out, staging_path(self.out), self.out / FOLDER
        check_no_links(stage, working, self._replaced_path)
        try:
            if not os.path.lexists(out) and published(self._replaced_path):
                with _held(stage, out):
                    os.rename(self._replaced_path, out)
                    sync_folder(out.parent)
            is_moving = (working / MOVING).exists()
            if os.path.isdir(working) and (is_moving or published(out)):
                with _held(working if is_moving else out, out):
                    if is_moving:
                        self._move_in()
                    is_replacing = (out / REPLACING).exists() and not (working / "old").exists()
                    places = (stage, self._replaced_path) if is_replacing else ()
                    # without a working folder it is not an unfinished store
                    replaced = [place for place in places if published(place) and not (place / FOLDER).exists()]
                    self._tidy(*replaced[:1])
        except OSError as e:
            raise PackError(f"{e.filename or out} cannot be moved or removed: {system_reason(e)}.") from None
        self.stage = stage_of(out)

    def _tidy(self, replaced: Path | None = None) -> None:
        """Remove the stores that OUT has replaced, and the working folders.

        They are moved into the working folder first. Over NFS, files that a reader on this host has open stay there until
        they are closed, and block nothing.
        """
        working = self.out / FOLDER
        if replaced is not None:
            os.rename(replaced, working / "old")
            for folder in (self.out.parent, working):
                sync_folder(folder)
            (self.out / REPLACING).unlink()
        splits = [store for store in published(self.out) if store != self.out]
        for store in splits:
            shutil.rmtree(store / FOLDER, ignore_errors=True)
            sync_folder(store)
        # NFS keeps an open file, and so its folder
        self._release()
        # nothing looks for the splits' working folders once the common one is gone
        if not any((store / FOLDER).exists() for store in splits):
            shutil.rmtree(working, ignore_errors=True)
        sync_folder(self.out)


def check_no_links(*paths: Path) -> None:
    """Refuse a symbolic link among these folders, or below them: a write would change files elsewhere.

    Raises:
        PackError: names the link, and where it leads.
    """
    for path in paths:
        for found in itertools.chain([path], path.rglob("*")):
            if found.is_symlink():
                raise PackError(
                    f"{found} is a symbolic link to {os.readlink(found)}, where pack keeps its own files and may remove"
                    " them. Remove the link, or choose another folder."
                )


def _names(folder: Path) -> list[str]:
    """Return the names in a folder, except the system's; [] for no folder."""
    try:
        return sorted(name for name in os.listdir(folder) if not is_dropped(name))
    except FileNotFoundError:
        return []
    except OSError as e:
        raise PackError(f"{folder} cannot be listed: {e.strerror}.") from None


@contextlib.contextmanager
def _held(folder: Path, out: Path) -> Iterator[None]:
    """Acquire the previous run's lock, if its working folder still exists."""
    try:
        lock = Lock(folder, out=out)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    with contextlib.closing(lock):
        yield


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically by renameat2(2); False if it is not available."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    at_current_folder, exchange = -100, 2
    return call(at_current_folder, os.fsencode(one), at_current_folder, os.fsencode(other), exchange) == 0
