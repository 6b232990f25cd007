"""OUT as the destination of one part of a pack: what may stand beside what, and a lock of its own below that of the stage."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from packer.errors import PackError
from packer.option_names import Option
from packer.store import journal as journals
from packer.store.destination import Folder, Making
from packer.store.parts import Part, started_parts
from packer.store.state import command_to_resume, seal_command
from reader.format.manifest import PIXELS


class PartFolder(Folder):
    """OUT, of which one part is made, beside others that share the stage, each in a folder and under a lock of its own.

    Nothing is published: `packer.packing.parts.seal_parts` does that when all parts are there.
    """

    def __init__(self, out: Path, part: Part, *, overwrite: bool = False) -> None:
        super().__init__(out, overwrite=overwrite)
        self.part = part

    def store(self, split: str) -> Making:
        """Return where the part of the store of a split is made."""
        return Making(self, self.folder(split), self.part)

    def check(self, splits: Collection[str] = ("",)) -> None:
        """Refuse a part where something is in its way; says how to resume. Once it is held, it was looked at before.

        Raises:
            OptionsError: other files are in OUT.
            PackError: OUT is a store, it is packed without parts, in another number of parts, or being sealed;
                or the part is there.
        """
        for store in self.finished:
            raise PackError(
                f"{store} already holds a store, which parts cannot replace. Choose another OUT, or remove it."
            )
        self._check_foreign(splits)
        for split in splits:
            out, store, part = self.out / split, self.folder(split), self.part
            if header := journals.header_of(store):
                command = command_to_resume(store, header)
                raise PackError(f"{out} is being packed as a whole, without {Option('part')}. Resume with: {command}")
            parts = started_parts(store)
            if (store / PIXELS).exists():
                raise PackError(
                    f"the parts of {out} are being sealed. Resume with: {seal_command(store)}"
                    if parts
                    else f"{store} is incomplete, and no parts are in it: what made it was ended early. Remove it first."
                )
            if others := [other for other in parts if other.count != part.count]:
                raise PackError(
                    f"{out} is packed in {others[0].count} parts, this is part {part}. Give them all the same number."
                )

    @contextlib.contextmanager
    def begin(self, splits: Collection[str] = ("",)) -> Iterator[None]:
        """Hold the stage together with other parts, and the folders of this one."""
        with self.held([self.store(split).folder for split in splits]):
            self.check(splits)
            yield

    def publish(self) -> None:
        """Do nothing: the part stays where it is."""
