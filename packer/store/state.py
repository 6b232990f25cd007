"""What OUT is: nothing, in progress, finished, or something else; how far it came, and the command that resumes it.

The one place that asks the disk. Changes nothing there.
"""

from __future__ import annotations

import enum
import errno
import json
import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.inputs.splits import is_split
from packer.option_names import RESUME, pack_call
from packer.store.journal import FOLDER, JOURNAL, Header, header_of, read_progress
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted, shown
from reader.format.splits import stages

PARTS = f"{FOLDER}/parts"
# In a stage inside OUT: the names that are moved out of it, written before the first is. Nothing else in OUT is taken for ours.
MOVED = f"{FOLDER}/moved.json"
# Of the journal of a pull, which names no blocks, and of one of images, which names no rows.
PULL, REQUANTIZE = "pull", "requantize"
# Longer than any path.
_MOST_WORD = 4096
# Of no journal: what starts a command does not say how it is continued.
_NEVER = ("--overwrite", "--resume", "--")


class What(enum.Enum):
    """What OUT is. NOTHING: of ours; a folder of something else perhaps."""

    NOTHING = "nothing"
    IN_PROGRESS = "in progress"
    FINISHED = "finished"
    REPLACED = "finished, and one that replaces it is in progress"


@dataclass(frozen=True)
class State:
    """What OUT is, as it was found.

    Attributes:
        what: in one word.
        finished: stores in OUT: itself, or those of splits; none while a stage inside OUT is half moved out of it.
        unfinished: the folders in the stage where a pack, a pull or parts of one are in progress; first those not sealed.
        is_filling: whether a stage inside OUT is there, and not all that was made in it is moved out of it.
    """

    what: What
    finished: list[Path]
    unfinished: list[Path]
    is_filling: bool

    @property
    def is_in_progress(self) -> bool:
        """Whether there is something that --resume continues."""
        return self.what in (What.IN_PROGRESS, What.REPLACED)

    @property
    def with_parts(self) -> Path | None:
        """The first folder where parts of a pack are in progress."""
        return next(filter(_has_parts, self.unfinished), None)


def state_of(out: Path, stage: Path) -> State:
    """Find out what OUT is, of which the stage is where it is made, or would be."""
    # what is left of one of which all was moved means nothing
    names = moved_names(stage)
    is_moved = bool(names) and not any(os.path.lexists(stage / name) for name in names)
    is_filling = stage.parent == out and os.path.isdir(stage / FOLDER) and not is_moved
    finished, unfinished = [] if is_filling else published(out), [] if is_moved else in_progress(stage)
    if any(header_of(store) or _has_parts(store) for store in unfinished):
        what = What.REPLACED if finished else What.IN_PROGRESS
    else:
        what = What.FINISHED if finished else What.NOTHING
    return State(what, finished, unfinished, is_filling)


def published(out: Path) -> list[Path]:
    """List the finished stores in OUT: itself, or those of splits."""
    if is_store(out):
        return [out]
    return [store for store in stores_in(out) if store != out and is_store(store)]


def is_manifest(content: bytes) -> bool:
    """Whether the bytes of a manifest.json are a store's, damaged perhaps; other programs have files of that name too."""
    return b'"format": "pixpack"' in content[:200]


def is_store(folder: Path) -> bool:
    """Whether a folder has the manifest of a store, damaged perhaps."""
    try:
        with error_path(folder / MANIFEST), open(folder / MANIFEST, "rb") as file:
            return is_manifest(file.read(200))
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            return False
        raise


def stores_in(folder: Path) -> list[Path]:
    """Name a folder and those of splits in it: where stores are, or are made."""
    try:
        names = sorted(filter(is_split, os.listdir(folder)))
    except OSError:
        names = []
    return [folder, *(folder / name for name in names if os.path.isdir(folder / name))]


def in_progress(stage: Path) -> list[Path]:
    """List the folders of a stage where a pack, a pull or parts of a pack are in progress; those that are sealed come last."""
    found = [store for store in stores_in(stage) if any(os.path.exists(store / name) for name in (JOURNAL, PARTS))]
    return sorted(found, key=lambda store: (store / MANIFEST).exists())


def moved_names(stage: Path) -> list[str]:
    """List what is moved from a stage inside OUT to OUT, or was before a crash; none before the first is."""
    found = read_json(stage / MOVED)
    return found if isinstance(found, list) else []


def read_json(path: Path) -> Any:
    """Read a small file of ours; None where it is not there, or damaged."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def _has_parts(store: Path) -> bool:
    try:
        names = os.listdir(store / PARTS)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return any(header_of(store / PARTS / name) for name in names)


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
    """Say what is in progress in a folder without a manifest, or where it is made, and how to resume it; "" where nothing is."""
    found = next((store for stage in stages(out) for store in in_progress(stage)), None)
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
        # of images, those whose sources have changed come again, and rejects at each resume
        progress = f"{min(inputs_stop, header.inputs)} of {header.inputs} images"
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
