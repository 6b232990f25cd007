"""What OUT is: nothing, in progress, finished, or something else; how far it came, and the command that resumes it.

The one place that asks the disk. Changes nothing there.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from packer.inputs.splits import stores_in
from packer.store.journal import FOLDER, JOURNAL, Header, header_of, read_header, read_progress
from packer.store.parts import PARTS, Part, started_parts
from packer.store.recorded import check_recorded
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import error_path
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted, shown
from reader.format.splits import beside, stages

# In a stage inside OUT: the names that are moved out of it, written before the first is. Nothing else in OUT is taken for ours.
MOVED = f"{FOLDER}/moved.json"
# Of the journal of a pull, which names no blocks, and of one of images, which names no rows.
PULL, REQUANTIZE = "pull", "requantize"
# Options of an update, which takes all others from the store; each has a value.
_OF_UPDATE = (
    "--classes",
    "--root",
    "--path-column",
    "--target-column",
    "--extension",
    "--boxes",
    "--masks",
    "--max-rejects",
)
# Of parts that are not packed to their end, as many are named.
_PARTS_NAMED = 8
# Longer than any path.
_MOST_WORD = 4096
# Of no journal: what starts a command does not say how it is continued.
_NEVER = ("--overwrite", "--")
# What file managers and NAS drop into any folder that they show (macOS, Windows, Synology), in lower case.
_DROPPED = {".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"}


@dataclass(frozen=True)
class State:
    """What OUT is, as it was found: nothing, where all is empty.

    Attributes:
        finished: stores in OUT: itself, or those of splits; none while a stage inside OUT is half moved out of it.
        unfinished: the folders in the stage where a pack, a pull or parts of one are in progress; first those not sealed.
        is_in_progress: whether there is something that the same command continues.
        is_filling: whether a stage inside OUT is there, and not all that was made in it is moved out of it.
        header: what the journal of the stage itself says is made there; None where it has none.
    """

    finished: list[Path]
    unfinished: list[Path]
    is_in_progress: bool = False
    is_filling: bool = False
    header: Header | None = None

    @property
    def with_parts(self) -> list[Path]:
        """The folders where parts of a pack are in progress."""
        return [store for store in self.unfinished if os.path.isdir(store / PARTS)]


def state_of(out: Path, stage: Path) -> State:
    """Find out what OUT is, of which the stage is where it is made, or would be.

    Raises:
        StoreError: a journal is none that can be continued; says what to do.
    """
    # what is left of one of which all was moved means nothing
    names = moved_names(stage)
    is_moved = bool(names) and not any(os.path.lexists(stage / name) for name in names)
    is_filling = stage.parent == out and os.path.isdir(stage / FOLDER) and not is_moved
    finished, unfinished = [] if is_filling else published(out), [] if is_moved else in_progress(stage)
    is_in_progress = any(header_of(store) or started_parts(store) for store in unfinished)
    return State(finished, unfinished, is_in_progress, is_filling, header_of(stage))


def stage_of(out: Path) -> Path | None:
    """Return the folder in which OUT is made, or was; None where there is none."""
    return next((stage for stage in (beside(out), out / FOLDER) if os.path.isdir(stage / FOLDER)), None)


def published(out: Path) -> list[Path]:
    """List the finished stores in OUT: itself, or those of splits."""
    return [out] if is_store(out) else [store for store in stores_in(out)[1:] if is_store(store)]


def is_manifest(content: bytes) -> bool:
    """Whether the bytes of a manifest.json are a store's, damaged perhaps; other programs have files of that name too."""
    return b'"format": "pixpack"' in content[:200]


def is_store(folder: Path) -> bool:
    """Whether a folder has the manifest of a store, damaged perhaps."""
    try:
        with error_path(folder / MANIFEST), open(folder / MANIFEST, "rb", opener=_open_without_waiting) as file:
            return is_manifest(file.read(200) or b"")
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG):
            return False
        raise


def _open_without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe in its place, which nobody writes, is empty."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_kept(store: Path) -> bool:
    """Whether a folder of a stage has a finished store of OUT, which stays as it is."""
    return (store / MANIFEST).is_file() and not (store / FOLDER).exists()


def enclosing_store(path: Path) -> Path | None:
    """Return the store, or the unfinished one, in whose folder a path is, where no other file belongs; None where in none."""
    for folder in Path(os.path.realpath(path)).parents:
        with contextlib.suppress(OSError):  # what we may not look into is not a store of ours
            if (folder / JOURNAL).is_file() or is_store(folder):
                return folder
    return None


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


def is_dropped(name: str) -> bool:
    """Whether a name is one that file managers and NAS use in any folder: .DS_Store, Thumbs.db, desktop.ini, @eaDir, ._NAME."""
    return name.lower() in _DROPPED or name.startswith("._")


def images_of_unfinished(out: Path) -> set[str]:
    """Return the IMAGES, as absolute paths and URLs, of the unfinished packs of OUT: splits and parts included."""
    with contextlib.suppress(OSError):
        folders = [store for stage in stages(out) for store in stores_in(stage)]
        folders += [part.folder(store) for store in folders for part in started_parts(store)]
        return {path for header in map(header_of, folders) if header for path in header.images}
    return set()


def check_finished(out: str | os.PathLike[str]) -> Manifest:
    """Check the structure of a store as a reader does; where it is not finished the error names the command that finishes it.

    Raises:
        StoreError: as `check_store`; IncompleteStoreError where what makes the store has not finished.
    """
    try:
        manifest = check_store(out)
        check_recorded(manifest)
        return manifest
    except StoreError as e:
        folder = Path(out)
        # one that may not be looked at is not there for this
        message = "" if os.path.exists(folder / MANIFEST) else unfinished_message(folder)
        if not message and not isinstance(e, IncompleteStoreError):
            raise
        raise IncompleteStoreError(message or str(e)) from None


def unfinished_message(out: Path) -> str:
    """Say what is in progress in a folder without a manifest, or where it is made, and how to resume it; "" where nothing is."""
    stores = [store for stage in stages(out) for store in in_progress(stage)]
    found = next(iter(stores), None)
    if found is None:
        if not any(os.path.isdir(stage / FOLDER) for stage in stages(out)):
            return ""
        return f"{out} is incomplete: it is being made, or what made it was ended early; then give that command again."
    target = out_of(found)
    if (found / JOURNAL).is_file():
        header, progress = _read_unfinished(found)
        command = command_to_resume(found, header)
        how = f"is at {progress}, interrupted or still running"
        if is_store(target):
            return f"{target} holds a store whose replacement {how}. Continue with: {command}"
        work = "requantizing" if header.command == REQUANTIZE else "pack"
        how = f"its {work} {how}" if progress else "its pull was interrupted or is still running"
        return f"{target} is incomplete: {how}. Resume with: {command}"
    # of splits, first that whose parts are not all packed
    found = next((store for store in stores if _unpacked_parts(store)), found)
    return _progress_of_parts(found)


def _progress_of_parts(store: Path) -> str:
    """Say which parts of a store are packed, and what to do next."""
    parts, unpacked = started_parts(store), _unpacked_parts(store)
    message = f"{out_of(store)} is incomplete: its parts are not sealed"
    if not parts:
        images_and_out = shlex.join(["IMAGES", str(out_of(store))])
        return f"{message}. When all n of pack {images_and_out} --part i/n are there: {seal_command(store)}"
    if two := two_divisions(store, parts):
        return two
    started = list(filter(None, unpacked.values()))
    more = f", and {len(started) - _PARTS_NAMED} more" if len(started) > _PARTS_NAMED else ""
    message += (
        f": {parts[0].count - len(unpacked)} of {parts[0].count} are packed{''.join(started[:_PARTS_NAMED])}{more}"
    )
    if not unpacked:
        return f"{message}. Continue with: {seal_command(store)}"
    following = resume_command(store, next(iter(unpacked)), like=parts[0])
    return f"{message}. When all are: {seal_command(store)}. Continue with: {following}"


def _unpacked_parts(store: Path) -> dict[Part, str]:
    """Return the parts of a store that are not packed to their end, with how far each is; "" of one that has not started."""
    parts = started_parts(store)
    unpacked = {Part(number, part.count): "" for part in parts[:1] for number in range(1, part.count + 1)}
    for part in parts:
        header, inputs_stop, _ = read_progress(part.folder(store))
        start, stop = header.span or (0, header.inputs)
        # before its first block no line says how far it is
        done = max(0, inputs_stop - start)
        if done >= stop - start:
            unpacked.pop(part, None)
        else:
            unpacked[part] = f", {part} at {done} of {stop - start} images"
    return unpacked


def two_divisions(store: Path, parts: list[Part]) -> str:
    """Say that parts are not of one division, and what to do; "" where they are of one."""
    other = next((part for part in parts if part.count != parts[0].count), None)
    if other is None:
        return ""
    return (
        f"{out_of(store)} holds part {parts[0]} and part {other}, of two divisions. Start over: pack"
        f" {shlex.join(['IMAGES', str(_whole(store))])} --overwrite"
    )


def seal_command(store: Path) -> str:
    """Return the command that seals the parts of a store; those of a split with those of the other splits."""
    return shlex.join(["pack", "seal", str(_whole(store))])


def _whole(store: Path) -> Path:
    """Return the OUT of a store that has parts in a stage: of a split, the folder of all."""
    headers = (header_of(part.folder(store)) for part in started_parts(store))
    return out_of(store.parent if any(header.split for header in headers if header) else store)


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


def _read_unfinished(out: Path) -> tuple[Header, str]:
    """Return the header of the journal in a folder, an empty one where it is damaged, and how far it came; "" of a pull.

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
    return header, progress


def command_to_resume(out: Path, header: Header, part: str = "") -> str:
    """Return the command that resumes the pack in a folder, or with a part of it, by the header of a journal.

    Whoever made that chose the words of its journal. Such as no pack writes are not repeated: a person may copy the command.
    """
    if not header.images:
        return f"the same call of pack_dataset, with out={str(out_of(out))!r}"
    named = (*header.images, header.command)
    if not all(_is_usual(word) for word in (*named, *header.words)) or any(map(_is_option, named)):
        return f"the same pack command again ({shown(str(out / JOURNAL))} has words that are not shown)"
    target, verb, words = str(out_of(out.parent if header.split else out)), header.command, [*header.words]
    if header.update and published(Path(target)):
        verb, words = "update", [word for pair in pairwise(words) if pair[0] in _OF_UPDATE for word in pair]
    command = [
        *([verb] if verb else []),
        *header.images,
        f"./{target}" if _is_option(target) else target,
        *words,
        *(["--part", part] if part else []),
    ]
    return shown(redacted(shlex.join(["pack", *command])))


def _is_usual(word: str) -> bool:
    """Whether a word of a command is one that a person can read: short, and without control characters."""
    return len(word) <= _MOST_WORD and shown(word) == word and word not in _NEVER


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "-0")


def resume_command(store: Path, part: Part, like: Part | None = None) -> str:
    """Return the command that packs a part of a store, or resumes it, with the words of its journal, or of like's."""
    return command_to_resume(store, read_header((like or part).folder(store)), part=str(part))
