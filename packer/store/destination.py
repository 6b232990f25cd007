"""OUT, a folder, as a destination: made beside it, published in one step, so that OUT exists exactly when it is finished.

All of a pack, its splits and journals, is in one folder, the stage OUT.packing, which one lock holds. Publishing gives it
OUT's name: by a rename, which no system does onto a folder that holds anything, or, where OUT holds stores that are replaced, by
an exchange of the two names. Where no folder beside OUT is to take its name (OUT is an empty folder, a mount point perhaps, or
the folder above cannot be written), the stage is OUT/.packing, and its files are moved into OUT, the manifest last.

A crash leaves the stage, which the same command continues, or a finished OUT with a working folder that means nothing any more.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from packer.errors import DiskFullError, OptionsError, PackError
from packer.inputs.splits import is_split, split_of, stores_in, stores_of
from packer.option_names import OVERWRITE, Option
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.files import LONGEST_NAME, copy_access, remove_tree, sync_folder, write_atomically
from packer.store.lock import LOCK, Lock
from packer.store.out_folder import (
    OWN_NAMES,
    check_no_links,
    check_takes_splits,
    dropped_names,
    finished_meanwhile,
    foreign_names,
    listed,
    names_in,
)
from packer.store.parts import Part
from packer.store.state import (
    MOVED,
    State,
    command_to_resume,
    in_progress,
    is_kept,
    is_store,
    moved_names,
    out_of,
    published,
    read_json,
    seal_command,
    stage_of,
    state_of,
    unfinished_message,
)
from packer.system import FULL
from packer.text import system_reason
from reader.format.filesystem import refresh_names
from reader.format.manifest import MANIFEST, PIXELS
from reader.format.splits import FOLDER, beside

if TYPE_CHECKING:
    from packer.inputs.samples import Inputs
    from packer.pixels.layout import RowLayout

# Where the replaced store is between two renames, of a system that exchanges no names: OUT.packing.old.
_ASIDE = f"{FOLDER}.old"
# In a stage: the SHA-256 of the manifest of each store in OUT that it replaces, by split. Nothing else is replaced or removed.
_REPLACES = f"{FOLDER}/replaces.json"
_NO_REPLACING = "Choose another OUT, or remove first what is in it."


class Making:
    """Where a store is made, or a part of it.

    Attributes:
        to: the destination.
        whole: the folder of the stage for all of it.
        part: None: it is all made here.
        folder: where it is made: whole, or that of the part in it.
    """

    def __init__(self, to: Folder, whole: Path, part: Part | None = None) -> None:
        self.to, self.whole, self.part = to, whole, part
        self.folder = whole if part is None else part.folder(whole)

    @property
    def name(self) -> Path:
        """Where it will be; a part is not moved."""
        return self.folder if self.part else self.to.out / self.folder.relative_to(self.to.stage)

    @property
    def old(self) -> Path | None:
        """The store that it replaces; None where there is none."""
        return self.name if self.to.replaces and (self.name / MANIFEST).is_file() else None

    @property
    def lock(self) -> Lock:
        """The lock that who writes here holds."""
        return next((lock for lock in self.to.locks if lock.path == self.folder / LOCK), self.to.locks[-1])

    def log(self, layout: RowLayout | None = None) -> journals.CommitLog:
        """Return what commits its blocks.

        Args:
            layout: of its rows; None: what is committed is durable already.
        """
        return self.to.log(self.folder, layout)


class Folder:
    """OUT, which is one store or holds those of splits.

    Attributes:
        out: its links are resolved.
        stage: the folder in which it is made.
        locks: that are held; the first is the stage's.
        replaces: whether OUT holds stores that this one replaces; known once it was checked.
        notes: what went with them that is not of a store.
    """

    # The file that makes OUT finished.
    last: ClassVar[str] = MANIFEST

    def __init__(self, out: Path, stage: Path | None = None) -> None:
        self.out = out
        self.stage = self._find_stage() if stage is None else stage
        self.locks: list[Lock] = []
        self.replaces = False
        self.notes: list[str] = []

    # -- what is there

    @property
    def state(self) -> State:
        """What OUT is, now."""
        return state_of(self.out, self.stage)

    def is_finished(self, split: str) -> bool:
        """Whether OUT holds the finished store of a split ("": of all), which an unfinished pack would keep.

        Beside one that has it anew it is the one that will be replaced.
        """
        store = self.out / split
        refresh_names(store / MANIFEST)  # another host may have just finished it
        return is_store(store) and (not self.state.is_in_progress or is_kept(self.folder(split)))

    def folder(self, split: str) -> Path:
        """Name the folder of the stage for the store of a split."""
        return self.stage / split

    def store(self, split: str) -> Making:
        """Return where the store of a split is made."""
        return Making(self, self.folder(split))

    @property
    def is_inside(self) -> bool:
        """Whether the stage is in OUT, as no folder beside it is to take its name."""
        return self.stage.parent == self.out

    # -- what is in a folder

    def _foreign_in(self, folder: Path, splits: Sequence[str] = (), ours: Sequence[str] = ()) -> list[str]:
        """Name what is in a folder and belongs to no store of it, or of these splits; what the system dropped does."""
        if is_store(folder):
            return foreign_names(folder)
        names = names_in(folder)
        inside = [f"{split}/{name}" for split in names if split in splits for name in self._foreign_in(folder / split)]
        return [name for name in names if name not in (*splits, *ours)] + inside

    def _foreign_in_stage(self) -> list[str]:
        """Name what is in the stage and is none of ours."""
        names = names_in(self.stage)
        foreign = [name for name in names if name not in OWN_NAMES and not is_split(name)]
        for store in stores_in(self.stage)[1:]:
            foreign += [f"{store.name}/{name}" for name in foreign_names(store)]
        return foreign or (names if FOLDER not in names else [])

    def _changed(self, folder: Path, stage: Path) -> list[str]:
        """Name in what a folder is not just the stores that a stage, or the OUT that it has become, replaces."""
        named, there = _read_replaced(stage), self._digests(folder)
        changed = [split or MANIFEST for split in {**there, **named} if there.get(split) != named.get(split)]
        return self._foreign_in(folder, [*named]) or changed

    def _digest(self, store: Path) -> str:
        return hashlib.sha256((store / MANIFEST).read_bytes()).hexdigest()

    def _digests(self, folder: Path) -> dict[str, str]:
        """Return the digest of what makes each finished store in a folder, by split ("": the folder is one)."""
        return {split_of(store, folder): self._digest(store) for store in published(folder)}

    def _find_stage(self) -> Path:
        """Return the folder in which OUT is made: the one that is there, else beside it if that is to become OUT."""
        return stage_of(self.out) or (self.out / FOLDER if self._why_inside() else beside(self.out))

    def _why_inside(self) -> str:
        """Say why no folder beside OUT is to become it; "" where one is."""
        out = self.out
        if len(os.fsencode(self._aside.name)) > LONGEST_NAME:
            return f"its name has more than {LONGEST_NAME - len(_ASIDE)} bytes, and nothing beside it can be named after it"
        above = next(folder for folder in out.absolute().parents if folder.exists())
        if not os.access(above, os.W_OK | os.X_OK):
            return f"{above} cannot be written"
        # whose folder that is, who may read it, and who works in it, stays as it is
        return "it is there already" if os.path.isdir(out) and not published(out) else ""

    @property
    def _aside(self) -> Path:
        return self.out.with_name(f"{self.out.name}{_ASIDE}")

    # -- before any work

    def check(self, options: OutputOptions, splits: Sequence[str] = ("",)) -> None:
        """Refuse an OUT that is in the way, before any work; says how to resume.

        Args:
            splits: which stores will be in OUT.

        Raises:
            OptionsError: OUT, or the stage, is a folder of something else.
            PackError: a store or an unfinished pack is in the way, or the store cannot be replaced; LockedError where another
                process is packing to OUT just now.
        """
        out = self.out
        check_no_links(*self._own_paths(splits))
        _check_no_stage(out)
        self._check_stage()
        state = self.state
        stores = [out / split for split in splits if out / split in state.finished]
        self.replaces = bool(stores)
        foreign = self._foreign(splits)
        if not stores and foreign:
            raise OptionsError(
                f"{out} is not empty (it holds {foreign[0]}) and is no store. Choose another OUT, or an empty folder."
            )
        is_told = options.overwrite or options.continues
        if stores and is_told:
            self._check_replaceable(stores, foreign)
        if state.is_in_progress and not options.overwrite:
            self._check_unfinished(state, options)
            self._check_named(stores)
        if stores and not is_told:
            what = f"{stores[0]} already holds a store"
            if foreign:
                raise PackError(f"{what}, and {foreign[0]}, so that {OVERWRITE} cannot replace it. Choose another OUT.")
            raise PackError(f"{what}. Replace it with {OVERWRITE}, or choose another OUT.")

    def check_splits(self, parts: Mapping[str, Inputs], images: str) -> None:
        """Refuse stores of splits beside a store of all, or beside one of another split: they would look like those of one pack.

        Args:
            parts: the inputs of each split; "": of all.
            images: what they are called.
        """
        splits = self._splits_there(f"the splits of {images} cannot be packed into it" if "" not in parts else "")
        if splits and "" in parts:
            raise PackError(
                f"{self.out} holds the stores of the splits {', '.join(splits)}, and {images} holds no splits"
                f" ({parts[''].layout or 'it is a list'}). Choose another OUT, or bring the folders of the splits back."
            )
        if gone := [split for split in splits if split not in parts]:
            raise PackError(
                f"{self.out / gone[0]} is the store of a split that {images} does not have: it has {', '.join(parts)}."
                f" Move {self.out / gone[0]} away, or bring {images}/{gone[0]} back."
            )

    def _splits_there(self, refusal: str) -> list[str]:
        """Name the splits of which the stores are there; where splits are to come, refuse what takes none."""
        if refusal:
            check_takes_splits(self.out, refusal)
        return [split for split in stores_of(self.out) if split]

    def _check_unfinished(self, state: State, options: OutputOptions) -> None:
        """Refuse to start where something is in progress: says how far it came, and how to continue it."""
        for store in state.with_parts:
            raise PackError(
                f"{out_of(store)} holds parts of a pack. Continue with {Option('part', 'i/n')}, and"
                f" {seal_command(store)} when all parts are packed; or start over, without parts, with {OVERWRITE}."
            )
        if options.continues:
            return
        found = state.unfinished[0]
        if not self.locks:
            try:
                Lock(self.stage, out=self.out).close()
            except FileNotFoundError:
                raise finished_meanwhile(self.out) from None
        raise PackError(f"{unfinished_message(found).removesuffix('.')} (or start over with {OVERWRITE}).")

    def _check_named(self, stores: Sequence[Path]) -> None:
        """Refuse to replace a store that was not in OUT when the stage was made; one that stays as it is may be another now."""
        named = _read_replaced(self.stage)
        for store in stores:
            split = split_of(store, self.out)
            if not is_kept(self.folder(split)) and named.get(split) != self._digest(store):
                raise PackError(
                    f"{store} is not what was there when {self.stage} was begun, and is not replaced. Move it away, and give"
                    " the command again."
                )

    def _own_paths(self, splits: Sequence[str] = ()) -> Iterator[Path]:
        """Name what a pack writes, moves or removes."""
        yield from (self.stage, self._aside)
        for split in ("", *splits):
            yield from (self.out / split / name for name in sorted(OWN_NAMES))

    def _check_stage(self) -> None:
        """Refuse a stage that holds what no pack has made: it would be published, or removed."""
        if foreign := self._foreign_in_stage() if self.stage.exists() else []:
            raise OptionsError(
                f"{self.stage} is not empty (it holds {foreign[0]}), and {self.out} is made there. Move it away, or choose"
                " another folder."
            )

    def _foreign(self, splits: Sequence[str]) -> list[str]:
        """Name what is in OUT and belongs to no store that is made; what the system dropped is in nobody's way."""
        if not self.out.exists():
            return []
        state = self.state
        if state.is_filling:
            ours = {FOLDER} | {name for name in moved_names(self.stage) if not os.path.lexists(self.stage / name)}
            return [name for name in names_in(self.out) if name not in ours]
        return self._foreign_in(self.out, splits, [FOLDER] if self.is_inside or state.finished else [])

    def _check_replaceable(self, stores: Sequence[Path], foreign: list[str]) -> None:
        if foreign:
            raise PackError(
                f"{self.out} also holds {foreign[0]}, which would be deleted with the store. Move it away first."
            )
        if link := next((store for store in stores if store.is_symlink()), None):
            raise PackError(
                f"{link} is a symbolic link, which cannot be replaced. Put the folder that it leads to in its place."
            )
        if os.path.ismount(self.out):
            raise PackError(f"{self.out} cannot be replaced: it is a mount point. {_NO_REPLACING}")
        if self.is_inside:
            raise PackError(f"{self.out} cannot be replaced: {self._why_inside()}. {_NO_REPLACING}")

    # -- the steps

    @contextlib.contextmanager
    def begin(self, options: OutputOptions, splits: Sequence[str] = ("",), kept: Sequence[str] = ()) -> Iterator[None]:
        """Make the stage, or continue the one that is there, and hold its lock; what is not continued is cleared away.

        Args:
            splits: which stores will be in OUT.
            kept: those of them that are there, and stay as they are.

        Raises:
            PackError: OUT is in the way; LockedError where another process holds the stage.
        """
        with self.held():
            self._prepare(options, splits, kept)
            yield

    @contextlib.contextmanager
    def held(self, parts: Sequence[Path] = ()) -> Iterator[None]:
        """Hold the stage, as it is; or, together with other parts of the same pack, the folders of these parts.

        Raises:
            PackError: another process has finished OUT since the first look; LockedError where one holds the stage, or a part.
        """
        check_no_links(*self._own_paths())
        try:
            with contextlib.ExitStack() as held:
                held.callback(self._release, not parts)
                self._lock(self.stage, is_shared=bool(parts))
                if self.state.finished and not self.replaces:
                    raise finished_meanwhile(self.out)
                if self.is_inside and not parts:
                    self._move_back()
                for folder in parts:
                    self._lock(folder)
                yield
        finally:
            self.locks = []

    def check_same(self) -> None:
        """See that the stage, and OUT, are what they were when it was locked: called before each truncate, rename, delete or
        commit.

        Raises:
            PackError: one was renamed, removed or replaced by someone else.
        """
        for lock in self.locks:
            lock.check()

    def log(self, store: Path, layout: RowLayout | None) -> journals.CommitLog:
        """Return what commits blocks of the store that is made in a folder of the stage: for `Making.log`."""
        return journals.CommitLog(store, self.check_same, row_names(layout))

    def publish(self) -> None:
        """Make the stage, which is complete and synced, OUT: in one step, but where it is inside OUT.

        Raises:
            PackError: OUT was made or replaced by someone else meanwhile; what is there stays. Or OUT is finished, but that was
                not synced; DiskFullError where room is lacking.
            OSError: the disk or its file system refuses it.
        """
        self.check_same()
        sync_folder(self.stage)
        replaced = None
        if os.name == "nt":
            for lock in self.locks:
                lock.close()  # Windows moves and removes no open file
        if self.is_inside:
            self._move_in()
        elif self.replaces:
            for store in stores_in(self.stage):
                if (old := self.out / split_of(store, self.stage)).is_dir():
                    copy_access(old, store)
            replaced = self._replace()
        else:
            self._rename(self.stage, self.out)
        try:
            for folder in (self.out, self.stage) if self.is_inside else (self.out.parent,):
                sync_folder(folder)
            self.locks[0].check_moved(self.stage if self.is_inside else self.out)
            self._tidy(replaced)
        except OSError as e:
            raise (DiskFullError if e.errno in FULL else PackError)(
                f"{self.out} is finished and can be used, but {e.filename or self.out} cannot be synced: {system_reason(e)}."
                f" Check that disk. If the power fails meanwhile, and {self.out} is not the new store after that, give the"
                " command again."
            ) from None

    def withdraw(self, store: Path | None = None) -> None:
        """Leave nothing of a store in the stage, or of all that is in it; nor the stage, where nothing else is."""
        for folder in stores_in(self.stage)[::-1] if store is None else [store]:
            self._drop(folder)
        if not in_progress(self.stage):
            for folder in stores_in(self.stage)[1:]:  # which stay as they are in OUT
                self.remove(folder)
            self._remove_stage()

    def _drop(self, store: Path) -> None:
        self.clear(store)
        if store != self.stage:
            self.remove(store)

    def remove(self, path: Path) -> None:
        """Remove a file or folder of the stage, if there is one, and the stage still is what was locked."""
        self.check_same()
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)

    def clear(self, store: Path) -> None:
        """Remove what an earlier pack has left of a store that is made in this folder, and nothing else.

        The working folder stays, with its lock and with what says which stores are replaced. The journal goes first: it must
        never outlive the rows that it names.
        """
        working = store / FOLDER
        if working.is_dir():
            self.check_same()
            journals.discard(store)
            # and the working folder, which says whose this is
            sync_folder(store)
        stays = (Path(LOCK).name, Path(_REPLACES).name)
        left = [working / name for name in listed(working) if name not in stays] if working.is_dir() else []
        for path in [*(store / name for name in sorted(OWN_NAMES - {FOLDER})), *left]:
            self.remove(path)

    # -- begin

    def _lock(self, folder: Path, *, is_shared: bool = False) -> None:
        """Make the stage, or a folder in it, with its working folder, and lock it.

        Raises:
            OSError: the disk is full, or the path is too long.
            PackError: as `held`; or any other reason why it cannot be made.
        """
        try:
            (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            if e.errno in (*FULL, errno.ENAMETOOLONG):
                raise
            raise PackError(f"{e.filename or folder} cannot be made: {system_reason(e)}.") from None
        try:
            self.locks.append(Lock(folder, is_shared=is_shared, out=self.out if folder == self.stage else None))
        except FileNotFoundError:
            raise finished_meanwhile(self.out) from None

    def _prepare(self, options: OutputOptions, splits: Sequence[str], kept: Sequence[str]) -> None:
        """Look again, now that the stage is held, and clear it of what is not continued."""
        self.check(options, splits)
        if self.replaces:
            self.notes = self._dropped()
            copy_access(self.out, self.stage)  # before a row of a private store is written
        if not self.is_inside and self.out.is_dir():  # a mount point perhaps, since the stage was made beside it
            self._check_renames()
        self._clear_unasked(options, splits)
        there = self._digests(self.out)
        may_replace = self.replaces and (options.overwrite or options.update or self.state.is_in_progress)
        if not may_replace and (new := [split for split in there if split not in kept]):
            raise finished_meanwhile(self.out / new[0])
        # before anything is made
        write_atomically(self.stage / _REPLACES, json.dumps(there).encode())
        for split in kept:
            self._keep(split)

    def _check_renames(self) -> None:
        """Refuse an OUT that its file system does not rename, such as one of a lower layer of an overlay, before any work.

        No system renames a folder onto one that holds something; what else is in the way it says before that.
        """
        try:
            os.rename(self.out, self.stage)
        except OSError as e:
            if e.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise PackError(
                    f"{self.out} cannot be replaced: its file system does not rename it ({system_reason(e)}). {_NO_REPLACING}"
                ) from None
        else:  # someone has just emptied the stage
            os.rename(self.stage, self.out)
            self.check_same()

    def _dropped(self) -> list[str]:
        """Say what goes with the stores that are replaced although it is not part of them."""
        folders = dict.fromkeys([self.out, *published(self.out)])
        return [
            f"{folder} also held {', '.join(names)}, which went with the old store."
            for folder in folders
            if (names := dropped_names(folder))
        ]

    def _clear_unasked(self, options: OutputOptions, splits: Sequence[str]) -> None:
        """Remove what an earlier pack has left in the stage, where it is not resumed."""
        is_resumed = options.continues and self.state.is_in_progress
        if not is_resumed:
            self.clear(self.stage)
        for store in stores_in(self.stage)[1:]:
            if is_resumed and store.name in splits:
                continue
            if is_resumed and not options.overwrite:
                raise PackError(
                    f"{self.out} was started with other splits: {store.name} is one of them. Continue with the same, or start"
                    f" over with {OVERWRITE}."
                )
            self._drop(store)

    def _keep(self, split: str) -> None:
        """Let the stage have a store that stays as it is: by second names of its files, which never change."""
        old, new = self.out / split, self.folder(split)
        if is_kept(new) and self._digest(old) == self._digest(new):
            return
        self.remove(new)
        shutil.copytree(old, new, copy_function=_linked, ignore=lambda _, names: {MANIFEST, FOLDER} & {*names})
        for folder in (new, *(path for path in new.rglob("*") if path.is_dir()), self.stage):
            sync_folder(folder)
        # last: without it nothing is kept
        _linked(os.fspath(old / MANIFEST), os.fspath(new / MANIFEST))
        sync_folder(new)

    # -- publish

    def _rename(self, folder: Path, to: Path) -> None:
        """Rename a folder to what nothing has as its name, or an empty folder."""
        try:
            if os.name == "nt" and to.is_dir():
                to.rmdir()
            os.rename(folder, to)
        except OSError:
            self.check_same()  # someone has taken the name, or the folder
            raise

    def _replace(self) -> Path:
        """Let the stage and OUT change names, and return where the replaced stores are; open readers keep their files."""
        if _exchange(self.stage, self.out):
            try:
                self._check_replaced(self.stage)
            except BaseException:
                _exchange(self.stage, self.out)
                sync_folder(self.out.parent)
                raise
            return self.stage
        # a crash between the two leaves no OUT: the next command on it takes the old one back
        aside = self._aside
        self._rename(self.out, aside)
        try:
            self._check_replaced(aside)
            os.rename(self.stage, self.out)
        except BaseException:
            if not os.path.lexists(self.out):
                os.rename(aside, self.out)
            raise
        return aside

    def _check_replaced(self, replaced: Path) -> None:
        """See that what was in OUT is all that is to be replaced, and nothing that came meanwhile."""
        self.locks[0].check_replaced(replaced)
        if changed := self._changed(replaced, self.out if replaced == self.stage else self.stage):
            raise PackError(
                f"{self.out / changed[0]} was changed or put there while this command worked on it, and was left as it is."
                f" Move it away if {self.out} is to be replaced, and give the command again."
            )

    def _move_in(self) -> None:
        """Move all from the stage inside OUT into OUT, of a store its manifest last: it is complete then."""
        self._check_nothing_else()
        names = [name for name in names_in(self.stage) if name != FOLDER]
        write_atomically(self.stage / MOVED, json.dumps(names).encode())
        for name in sorted(names, key=lambda name: name == self.last):
            if os.path.lexists(self.out / name):
                raise finished_meanwhile(self.out)
            if name == self.last:
                sync_folder(self.out)
            os.rename(self.stage / name, self.out / name)

    def _move_back(self) -> None:
        """Take back what of a stage inside OUT was moved into it before a crash: it is sealed again, and moved again."""
        self._check_nothing_else()
        for name in moved_names(self.stage):
            if os.path.lexists(self.out / name):
                self.check_same()
                os.rename(self.out / name, self.stage / name)
        for folder in (self.stage, self.out):
            sync_folder(folder)
        (self.stage / MOVED).unlink(missing_ok=True)

    def _check_nothing_else(self) -> None:
        """Refuse what someone has put into OUT beside the stage inside it."""
        if foreign := self._foreign(()):
            raise PackError(
                f"{self.out} also holds {foreign[0]}, which is not of what is made there. Move it away, and give the command"
                " again."
            )

    # -- end

    def _release(self, is_whole: bool) -> None:
        """Let go of the locks; a stage of which the whole was held, and in which nothing is in progress, is removed before."""
        with contextlib.suppress(OSError, PackError):
            if is_whole and not self.locks:
                self.stage.rmdir()
            elif is_whole and self.stage.is_dir() and not in_progress(self.stage) and {*listed(self.stage)} <= {FOLDER}:
                self._remove_stage()
        for lock in self.locks:
            lock.close()

    def _remove_stage(self) -> None:
        sync_folder(self.stage)
        self.remove(self.stage / FOLDER)
        with contextlib.suppress(OSError):  # another program has put a file there meanwhile
            self.stage.rmdir()

    def recover(self) -> None:
        """Finish what a crash in the middle of publishing has left; called by each command before it looks at OUT.

        Raises:
            LockedError: another process is publishing it just now.
            PackError: the disk refuses it.
        """
        out, stage, aside, inside = self.out, beside(self.out), self._aside, self.out / FOLDER
        try:
            if not os.path.lexists(out):
                # whoever gives up may have removed the stage
                if self._is_replaced(aside, stage if os.path.isdir(stage / FOLDER) else None):
                    with _held(stage, out):
                        os.rename(aside, out)
                        sync_folder(out.parent)
            # a folder of images to which more is added stays as it is
            elif (
                os.path.isdir(inside)
                and (state := self.state).finished
                and not (self.is_inside and state.is_in_progress)
            ):
                check_no_links(inside, *(store / FOLDER for store in state.finished))
                with _held(inside if os.path.isdir(inside / FOLDER) else out, out):
                    for replaced in (stage, aside):
                        if self._is_replaced(replaced, out):
                            self._tidy(replaced)
                    self._tidy(None)
        except OSError as e:
            raise PackError(f"{e.filename or out} cannot be moved or removed: {system_reason(e)}.") from None
        self.stage = self._find_stage()

    def _is_replaced(self, folder: Path, stage: Path | None) -> bool:
        """Whether a folder holds stores, and just those that a stage, if it is there, or the OUT that it has become, replaces."""
        is_old = bool(published(folder)) and not os.path.lexists(folder / FOLDER)
        return is_old and (stage is None or not self._changed(folder, stage))

    def _tidy(self, replaced: Path | None) -> None:
        """Remove the stores that OUT has replaced, and the working folders.

        First they are moved into the working folder: what a reader on this host has open over NFS stays until it is closed, and
        is in nobody's way there.
        """
        working = self.out / FOLDER
        if replaced is not None:
            try:
                os.rename(replaced, Path(tempfile.mkdtemp(dir=working)) / "old")
            except OSError:  # the disk is full, or its own folder cannot be written
                shutil.rmtree(replaced, ignore_errors=True)
            for folder in (self.out.parent, working):
                sync_folder(folder)
        for store in published(self.out):
            if store != self.out:
                shutil.rmtree(store / FOLDER, ignore_errors=True)
                sync_folder(store)
        # of a stage inside OUT: at once, so that none is taken for one that is half moved
        with contextlib.suppress(OSError):
            os.rename(working / FOLDER, working / "moved")
        # last, and under the lock: another pack may begin here as soon as it is gone
        shutil.rmtree(working, ignore_errors=True)
        sync_folder(self.out)


def row_names(layout: RowLayout | None) -> list[str]:
    """Name the files that workers write rows to."""
    if layout is None:
        return []
    from packer.store.row_files import MASKS

    return [PIXELS, MASKS] if layout.has_mask_file else [PIXELS]


def _read_replaced(stage: Path) -> dict[str, str]:
    """Return which stores a stage, or the OUT that it has become, replaces; none where nothing says so."""
    found = read_json(stage / _REPLACES)
    return found if isinstance(found, dict) else {}


def _check_no_stage(out: Path) -> None:
    """Refuse an OUT that is a stage itself; raises PackError."""
    found = next(iter(in_progress(out)), None)
    if found is None or (found / MANIFEST).exists():
        return
    if out_of(out) != out:
        command = command_to_resume(found, journals.header_of(found) or journals.Header())
        raise PackError(f"{out} is where {out_of(out)} is made. Give that as OUT: {command}")
    raise PackError(
        f"{out} is where a store is made, under another name. Rename it to {beside(out)}, then give OUT as {out}."
    )


@contextlib.contextmanager
def _held(folder: Path, out: Path) -> Iterator[None]:
    """Hold the lock of whoever was at it, where that is still there."""
    try:
        lock = Lock(folder, out=out)
    except (FileNotFoundError, NotADirectoryError):
        yield
        return
    with contextlib.closing(lock):
        yield


def _linked(old: str, new: str) -> str:
    """Give a file a second name; or copy it, where its file system has one alone."""
    try:
        os.link(old, new)
    except OSError:
        shutil.copyfile(old, new)
        with open(new, "rb") as file:
            os.fsync(file.fileno())
    return new


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically by renameat2(2); False if it is not available."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    at_current_folder, exchange = -100, 2
    return call(at_current_folder, os.fsencode(one), at_current_folder, os.fsencode(other), exchange) == 0
