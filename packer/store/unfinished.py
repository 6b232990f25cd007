"""What a store that is not finished says of itself: where it is made, how far its pack came, and the command that resumes it.

Knows what is in a stage as far as a sentence needs it, and changes nothing there.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from packer.inputs.splits import is_split
from packer.option_names import RESUME, pack_call
from packer.store.journal import FOLDER, JOURNAL, Header, has_started, read_progress
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted, shown
from reader.format.splits import stages

PARTS = f"{FOLDER}/parts"
# Of the journal of a pull, which names no blocks, and of one of images, which names no rows.
PULL, REQUANTIZE = "pull", "requantize"
# Longer than any path.
_MOST_WORD = 4096
# Of no journal: what a command is begun with does not say how it is continued.
_NEVER = ("--overwrite", "--resume", "--")


def check_finished(out: str | os.PathLike[str]) -> Manifest:
    """Check the structure of a store as a reader does; where it is not finished the error names the command that finishes it.

    Raises:
        StoreError: as `check_store`; IncompleteStoreError where what makes the store has not finished.
    """
    try:
        return check_store(out)
    except StoreError as e:
        folder = Path(out)
        # one that may not be looked at is not there for this
        message = "" if os.path.exists(folder / MANIFEST) else unfinished_message(folder)
        if not message and not isinstance(e, IncompleteStoreError):
            raise
        raise IncompleteStoreError(message or str(e)) from None


def unfinished_message(out: Path) -> str:
    """Say what has begun in a folder without a manifest, or where it is made, and how to resume it; "" where nothing has."""
    found = next((store for stage in stages(out) if (store := first_begun(stage)) is not None), None)
    if found is None:
        if not any(os.path.isdir(stage / FOLDER) for stage in stages(out)):
            return ""
        return f"{out} is incomplete: it is being made, or what made it was ended early; then give that command again."
    target = out_of(found)
    if (found / JOURNAL).is_file():
        done, command = read_unfinished(found)
        if not done:
            return f"{target} is incomplete: it was not pulled to its end. Resume with: {command}"
        return f"{target} is incomplete: its pack was interrupted at {done}. Resume with: {command}"
    return (
        f"{target} is incomplete: its parts are not sealed. When all n of pack IMAGES {target} --part i/n are there:"
        f" pack seal {target}"
    )


def stores_in(folder: Path) -> list[Path]:
    """Name a folder and those of splits in it: where stores are, or are made."""
    try:
        names = sorted(filter(is_split, os.listdir(folder)))
    except OSError:
        names = []
    return [folder, *(folder / name for name in names if os.path.isdir(folder / name))]


def first_begun(stage: Path) -> Path | None:
    """Return the first folder in a stage where something was begun that can be continued, one that is not sealed where there is
    one: a pack, a pull, parts of a pack; None where there is none.
    """
    begun = [store for store in stores_in(stage) if any(os.path.exists(store / name) for name in (JOURNAL, PARTS))]
    return min(begun, key=lambda store: (store / MANIFEST).exists(), default=None)


def has_parts(store: Path) -> bool:
    """Whether parts of a store were begun in the folder where it is made."""
    try:
        names = os.listdir(store / PARTS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(has_started(store / PARTS / name) for name in names)


def out_of(store: Path) -> Path:
    """Return where what is made in a folder of a stage will be.

    Example:
        >>> [str(out_of(Path(name))) for name in ("out.packing/train", "out/.packing", "out")]
        ['out/train', 'out', 'out']
    """
    for stage, below in ((store, ""), (store.parent, store.name)):
        if stage.name == FOLDER:
            return stage.parent / below
        if stage.name.endswith(FOLDER):
            return stage.with_name(stage.name.removesuffix(FOLDER)) / below
    return store


def read_unfinished(out: Path) -> tuple[str, str]:
    """Say how far the interrupted pack in a folder came ("" of a pull), and the command that resumes it.

    Reads the first and the last whole line of its journal: milliseconds, whatever the number of rows.
    """
    header = Header()
    try:
        header, inputs_stop, rows_stop = read_progress(out)
        progress = f"{inputs_stop} of {header.inputs} images"
        progress += "" if header.command == REQUANTIZE else f", {rows_stop} rows written"
        progress = "" if header.command == PULL else progress
    except (OSError, ValueError):
        progress = "its very start"
    return progress, command_to_resume(out, header)


def command_to_resume(out: Path, header: Header, part: str = "") -> str:
    """Return the command that resumes the pack in a folder, or with a part of it, by the header of a journal.

    Whoever made that chose the words of its journal. Such as no pack writes are not repeated: a person may copy the command.
    """
    if not header.images:
        return f"the same call of pack_dataset, with out={str(out_of(out))!r} and resume=True"
    named = (*header.images, header.command)
    if not all(_is_usual(word) for word in (*named, *header.words)) or any(map(_is_option, named)):
        return f"the same pack command again with {RESUME} ({shown(str(out / JOURNAL))} has words that are not shown)"
    target = out_of(out.parent if header.split else out)
    words = [*([header.command] if header.command else []), *header.images, str(target), *header.words]
    command = [*words, *(["--part", part] if part else [])]
    # whatever has come stays, without being told
    command += [] if header.command == PULL else ["--resume"]
    return shown(redacted(shlex.join(["pack", *command]) if header.command else pack_call(command)))


def _is_usual(word: str) -> bool:
    """Whether a word of a command is one that a person can read: short, and without control characters."""
    return len(word) <= _MOST_WORD and shown(word) == word and word not in _NEVER


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "-0")
