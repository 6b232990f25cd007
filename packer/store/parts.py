"""Parts of one pack, on any hosts that share OUT's folder: what each one has, where it works, what may stand beside what.

A part works in .packing/parts/2-of-4 of the stage as a pack works in the stage: no file is ever written by two hosts. The parts
become one store in `packer.packing.parts.seal_parts`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packer.errors import PackError
from packer.option_names import OVERWRITE, Option
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.destination import Folder
from packer.store.journal import FOLDER
from packer.store.lock import Lock
from packer.store.out_folder import finished_meanwhile
from packer.store.state import PARTS, command_to_resume, published, read_unfinished, stores_in
from reader.format.manifest import PIXELS
from reader.format.splits import stages

_NAME = re.compile(r"([1-9]\d*)-of-([1-9]\d*)")


@dataclass(frozen=True, order=True)
class Part:
    """The number-th of count equal parts, from 1; written 2/4."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read "2/4", which the options have checked."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def span(self, inputs: int, block_inputs: int) -> range:
        """Return the span of inputs of this part, in complete blocks, so that parts have the blocks of one pack.

        Example:
            >>> [Part(number, 3).span(inputs=10, block_inputs=2) for number in (1, 2, 3)]
            [range(0, 2), range(2, 6), range(6, 10)]
        """
        blocks = -(-inputs // block_inputs)
        start, stop = (blocks * number // self.count * block_inputs for number in (self.number - 1, self.number))
        return range(min(start, inputs), min(stop, inputs))

    def folder(self, out: Path) -> Path:
        """Name the folder that this part of OUT works in."""
        return out / PARTS / f"{self.number}-of-{self.count}"


def started_parts(out: Path) -> list[Part]:
    """List the parts of OUT that have a journal, in order."""
    try:
        names = os.listdir(out / PARTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = sorted(Part(int(match[1]), int(match[2])) for match in map(_NAME.fullmatch, names) if match)
    return [part for part in found if journals.header_of(part.folder(out))]


def images_of_unfinished(out: Path) -> set[str]:
    """Return the IMAGES, as absolute paths and URLs, of the unfinished packs of OUT: splits and parts included."""
    with contextlib.suppress(OSError):
        stores = [store for stage in stages(out) for store in stores_in(stage)]
        folders = [*stores, *(part.folder(store) for store in stores for part in started_parts(store))]
        return {path for header in map(journals.header_of, folders) if header for path in header.images}
    return set()


class PartFolder(Folder):
    """OUT, of which one part is made, beside others that share the stage, each in a folder and under a lock of its own.

    Nothing is published: `packer.packing.parts.seal_parts` does that when all parts are there.
    """

    def __init__(self, out: Path, part: Part) -> None:
        super().__init__(out)
        self.part = part

    def store(self, split: str) -> Path:
        """Name the folder in which the part of the store of a split is made."""
        return self.part.folder(super().store(split))

    def whole(self, store: Path) -> Path:
        """Return the folder in which all parts of the store will be one."""
        return store.parents[2]

    def level(self, store: Path, factor: int) -> Path:
        """Name the folder in which the part of a level is made."""
        return self.part.folder(super().level(self.whole(store), factor))

    def named(self, store: Path) -> Path:
        """Return the folder itself: a part is not moved."""
        return store

    def check(self, options: OutputOptions, splits: Sequence[str] = ("",)) -> None:
        """Refuse a part where something is in its way; says how to resume. Once it is held, it was looked at before.

        Raises:
            OptionsError: other files are in OUT.
            PackError: OUT is a store, it is packed without parts, in another number of parts, or being sealed;
                or the part is there.
        """
        for split in splits:
            self._check_split(options, split)

    @contextlib.contextmanager
    def begin(self, options: OutputOptions, splits: Sequence[str] = ("",), kept: Sequence[str] = ()) -> Iterator[None]:
        """Hold the stage together with other parts, and the folders of this one."""
        made = [split for split in splits if split not in kept]
        with self.held(is_shared=True), contextlib.ExitStack() as held:
            for split in made:
                held.enter_context(self._held_part(self.store(split)))
            self.check(options, made)
            yield

    def publish(self) -> None:
        """Do nothing: the part stays where it is."""

    @contextlib.contextmanager
    def _held_part(self, folder: Path) -> Iterator[None]:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        try:
            lock = Lock(folder)
        except FileNotFoundError:
            raise finished_meanwhile(self.out) from None
        self.locks.append(lock)
        try:
            yield
        finally:
            self.locks.remove(lock)
            lock.close()

    def _check_split(self, options: OutputOptions, split: str) -> None:
        out, folder, part = self.out / split, self.store(split), self.part
        store = self.whole(folder)
        if published(out):
            if self.locks:
                raise finished_meanwhile(out)
            raise PackError(
                f"{out} already holds a store, which parts cannot replace. Choose another OUT, or remove it."
            )
        super().check(OutputOptions(overwrite=True), [split])  # of which parts that are there are no reason
        if journals.header_of(store):
            command = read_unfinished(store).command
            raise PackError(f"{out} is being packed as a whole, without {Option('part')}. Resume with: {command}")
        if (store / PIXELS).exists() and started_parts(store):
            raise PackError(f"the parts of {out} are being sealed. Resume with: pack seal {self.out}")
        if (store / PIXELS).exists():
            raise PackError(
                f"{store} is incomplete, and no parts are in it: what made it was ended early. Remove it first."
            )
        if others := [other for other in started_parts(store) if other.count != part.count]:
            raise PackError(
                f"{out} is packed in {others[0].count} parts, this is part {part}. Give them all the same number."
            )
        if not self.locks and not options.resume and not options.overwrite and journals.header_of(folder):
            Lock(folder).close()
            raise PackError(
                f"part {part} of {out} was begun before, and may be done. Resume with: {resume_command(store, part)}"
                f" (or start this part over with {OVERWRITE})."
            )


def resume_command(store: Path, part: Part, like: Part | None = None) -> str:
    """Return the command that packs a part of a store, or resumes it, with the words of its journal, or of like's."""
    return command_to_resume(store, journals.read_header((like or part).folder(store)), part=str(part))
