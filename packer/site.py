"""The folder that a store is made in: OUT, a replacement beside it, or a part's own. Made, held alone, cleared, put in its place.

Knows no inputs and writes no row.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from packer import journal as journals
from packer.disk import FULL
from packer.durable import sync_folder
from packer.options import PackOptions
from packer.parts import Part, check_no_parts, check_part
from packer.place import OWN_NAMES, check_out, dropped_names, finished_meanwhile, is_replaced, replacement, swap
from packer.report import PackError
from packer.seal import remove_working_folder
from reader.manifest import MANIFEST


class Site:
    """The folder of one store being made; out is where its files are written, final where they belong."""

    def __init__(self, out: Path, options: PackOptions, part: Part | None) -> None:
        self._part, self._whole, self._options = part, out, options
        self.final = out if part is None else part.folder(out)
        # --overwrite of a finished store builds beside it and renames: open readers keep the old one
        beside, is_store = replacement(self.final), (self.final / MANIFEST).is_file()
        # where there is no OUT, a crash came between the two renames of a system that cannot exchange names
        goes_on = is_replaced(self.final) and (is_store or not self.final.exists())
        self._replaces = (options.resume and goes_on) or ((options.overwrite or options.update) and is_store)
        self.out = beside if self._replaces else self.final
        # the store that will be replaced
        self.replaced = self.final if self._replaces and is_store else None
        # what goes with it though it is no part of it
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
            name = errno.errorcode.get(e.errno or 0, "?")
            raise PackError(f"{e.filename or self.out} cannot be made: {e.strerror} ({name}).") from None
        return created

    def lock(self) -> list[journals.Lock]:
        """Hold OUT alone; or a part of it alone, and OUT together with the other parts."""
        try:
            if self._part is None:
                return [journals.Lock(self.out)]
            shared = journals.Lock(self._whole, is_shared=True)
            try:
                return [shared, journals.Lock(self.out)]
            except BaseException:
                shared.close()
                raise
        except FileNotFoundError:
            raise finished_meanwhile(self.final) from None

    def look_again(self) -> None:
        """Refuse OUT if another pack has finished it between the first look and the lock; leaves nothing of ours in it.

        Also under --resume and --overwrite: both would clear the finished store away to begin in its place.
        """
        if self._replaces:
            return
        if self._part is not None:
            check_part(self._whole, self._part, self._options, is_held=True)
            return
        check_no_parts(self.out, self._options)
        if (self.out / MANIFEST).exists():
            remove_working_folder(self.out)
            raise finished_meanwhile(self.out)
        check_out(self.out, self._options, is_held=True)

    def goes_on(self) -> bool:
        """Whether a pack that was begun here is asked for again."""
        return self._options.resume and journals.has_begun(self.out)

    def clear(self) -> None:
        """Remove what an earlier pack left, and nothing else, but for the working folder, which must go last."""
        for name in OWN_NAMES - {journals.FOLDER}:
            entry = self.out / name
            if entry.is_dir() and not entry.is_symlink():
                remove_tree(entry)
            else:
                entry.unlink(missing_ok=True)

    def remove(self, created: bool) -> None:
        """Leave nothing behind that looks like a store."""
        self.clear()
        sync_folder(self.out)
        remove_tree(self.out / journals.FOLDER)
        if created or self._replaces:
            with contextlib.suppress(OSError):  # someone put a file of theirs there meanwhile
                self.out.rmdir()

    def finish(self, lock: journals.Lock) -> None:
        """Put a sealed store in its place and take the scaffold away, under the lock to its end."""
        if os.name == "nt":
            lock.close()  # Windows moves and removes no open file
        if self._replaces:
            swap(self.out, self.final)
        # last, and under the lock: another pack may begin here as soon as it is gone
        remove_working_folder(self.final)


def remove_tree(folder: Path) -> None:
    """Remove a folder and all that is in it; an error names the whole path of what it could not remove."""
    try:
        shutil.rmtree(folder)
    except OSError as e:
        # what lies in a folder is named without it
        if e.filename and not os.path.dirname(e.filename):
            e.filename = str(folder / e.filename)
        raise
