"""Parts of one pack, on any hosts that share OUT's folder: what each one has, where it works, what may stand beside what.

A part works in OUT/.packing/parts/2-of-4 as a pack works in OUT: no file is ever written by two hosts. The parts become one
store in `packer.packing.parts.seal_parts`.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.lock import Lock
from packer.store.out_folder import (
    check_no_links,
    finished_meanwhile,
    foreign_names,
    own_paths,
    remove_working_folder,
    replacement,
)
from packer.store.unfinished import PARTS, command_to_resume, read_unfinished
from reader.format.manifest import MANIFEST, PIXELS

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
    return [part for part in found if journals.has_started(part.folder(out))]


def begun_from(out: Path) -> set[str]:
    """Return the IMAGES, as absolute paths and URLs, that unfinished packs in OUT were begun from: splits and parts included."""
    with contextlib.suppress(OSError):
        stores = [out, *(entry for entry in sorted(out.iterdir()) if entry.is_dir())]
        folders = [folder for store in stores for folder in (store, replacement(store))]
        folders += [part.folder(store) for store in stores for part in started_parts(store)]
        headers = [journals.read_header(folder) for folder in folders if journals.has_started(folder)]
        return {path for header in headers for path in header.images}
    return set()


def check_part(out: Path, part: Part, options: OutputOptions, *, is_held: bool = False) -> None:
    """Refuse a part where something is in its way; says how to resume.

    Args:
        is_held: whether this process holds the part's lock already.

    Raises:
        OptionsError: other files are in OUT.
        PackError: OUT is a store, it is packed without parts, in another number of parts, or being sealed;
            or the part was begun before.
    """
    check_no_links(*own_paths(out))
    if (out / MANIFEST).exists():
        if is_held:
            remove_working_folder(out)
            raise finished_meanwhile(out)
        raise PackError(f"{out} already holds a store, which parts cannot replace. Choose another OUT, or remove it.")
    if out.exists() and (foreign := foreign_names(out)):
        raise OptionsError(f"{out} is not empty (it holds {foreign[0]}). Choose another OUT, or an empty folder.")
    if journals.has_started(out):
        raise PackError(f"{out} is being packed without --part. Resume with: {read_unfinished(out)[1]}")
    if (out / PIXELS).exists() and started_parts(out):
        raise PackError(f"the parts of {out} are being sealed. Resume with: pack seal {out}")
    if (out / PIXELS).exists():
        raise PackError(f"{out} is incomplete, and no parts are in it: what made it was ended early. Remove it first.")
    if others := [other for other in started_parts(out) if other.count != part.count]:
        raise PackError(
            f"{out} is packed in {others[0].count} parts, this is part {part}. Give them all the same number."
        )
    if not is_held:
        _check_begun(out, part, options)


def resume_command(out: Path, part: Part, like: Part | None = None) -> str:
    """Return the command that packs a part of OUT, or resumes it, as it was begun, or another one, like."""
    return command_to_resume(out, journals.read_header((like or part).folder(out)), part=str(part))


def check_no_parts(out: Path, options: OutputOptions) -> None:
    """Refuse to pack OUT without parts beside parts of it, but with --overwrite, which removes them under OUT's lock."""
    if not options.overwrite and started_parts(out):
        raise PackError(
            f"{out} holds parts of a pack. Continue with --part, and pack seal {out} when all parts are packed;"
            " or start over, without parts, with --overwrite."
        )


def _check_begun(out: Path, part: Part, options: OutputOptions) -> None:
    folder = part.folder(out)
    if options.resume or options.overwrite or not journals.has_started(folder):
        return
    Lock(folder).close()
    raise PackError(
        f"part {part} of {out} was begun before, and may be done. Resume with: {resume_command(out, part)}"
        " (or start this part over with --overwrite)."
    )
