"""What a folder that holds no store yet says of itself: how far its pack came, and the command that resumes it.

Imports only the standard library; knows what is in OUT/.packing as far as a sentence needs it, and changes nothing there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import open_regular
from reader.format.journal import FOLDER, JOURNAL, Header, read_progress
from reader.format.shown import redacted, shown
from reader.format.split_names import ROLES

PARTS = f"{FOLDER}/parts"
PULLED = f"{FOLDER}/pull/manifest.json"
# In the folder of a store in a cache, see `reader/remote/folder.py`.
CACHED = ".remote/manifest.json"
# Longer than any path.
_MOST_WORD = 4096
# Of no journal: what a command is begun with does not say how it is continued.
_NEVER = ("--overwrite", "--resume", "--")
_SPLIT = re.compile("[A-Za-z]{1,32}")
_SWAPPING_BYTES = 4096
# In each store that replaces a split's from shortly before the first of them does: their names, which belong together.
SWAPPING = f"{FOLDER}/swapping"


def unfinished_message(out: Path) -> str:
    """Say what has begun in OUT, a folder without a manifest, and how to resume; "" where nothing has."""
    if (out / JOURNAL).is_file():
        done, command = read_unfinished(out)
        return f"{out} is incomplete: its pack was interrupted at {done}. Resume with: {command}"
    if (out / PULLED).is_file():
        return f"{out} is incomplete: it was not pulled to its end. Resume with: pack pull URL {out}"
    if (out / PARTS).is_dir():
        return (
            f"{out} is incomplete: its parts are not sealed. When all n of pack IMAGES {out} --part i/n are there:"
            f" pack seal {out}"
        )
    if (out / CACHED).is_file():
        folder = str(out.parent)
        return f"{out} is the cache of a store at a URL, and not complete. Open it by MemmapDataset(URL, cache={folder!r})."
    if (out / FOLDER).is_dir():
        return f"{out} is incomplete: it is being made, or what made it was ended early; then give that command again."
    return ""


def no_manifest(root: Path) -> StoreError:
    """Say what a folder without a manifest is instead of a store."""
    if not root.is_dir():
        return StoreError(f"{root} does not exist. Expected the folder of a store. Make one with: pack IMAGES {root}")
    if message := unfinished_message(root):
        return IncompleteStoreError(message)
    children = [name for name in ROLES if (root / name / "manifest.json").is_file()]
    if children:
        return StoreError(f"{root} holds {len(children)} stores. Open one of them: {root / children[0]}")
    return StoreError(f"{root} is not a pixpack store: it has no manifest.json. Make one with: pack IMAGES OUT")


def read_swapping(folder: Path) -> list[str]:
    """Return the names of the splits whose stores the one in this folder takes its place with; [] where there are none."""
    try:
        with open_regular(folder / SWAPPING) as file:
            names = json.loads(file.read(_SWAPPING_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    is_ours = type(names) is list and all(type(name) is str and _SPLIT.fullmatch(name) for name in names)
    return names if is_ours else []


def half_replaced_message(out: Path) -> str:
    """Say that of the splits which OUT is one of some are new and some old, and how to finish that; "" where it is not so."""
    root = Path(os.path.realpath(out))
    if not root.name:
        return ""
    names = read_swapping(root) or read_swapping(_beside(root))
    old = [name for name in names if (_beside(root.with_name(name)) / FOLDER).is_dir()]
    if not old or len(old) == len(names):
        return ""
    new = ", ".join(name for name in names if name not in old)
    beside = _beside(root.with_name(old[0]))
    command = read_unfinished(beside)[1] if (beside / JOURNAL).is_file() else "the same command again"
    return (
        f"{root.parent} is half replaced: {new} done, {', '.join(old)} not yet, and they do not belong together."
        f" Finish it: {command}"
    )


def _beside(store: Path) -> Path:
    """Name the folder in which what will replace a store is made."""
    return store.with_name(f".{store.name}.packing")


def read_unfinished(out: Path) -> tuple[str, str]:
    """Say how far the interrupted pack of OUT came, and the command that resumes it.

    Reads the first and the last whole line of its journal: milliseconds, whatever the number of rows.
    """
    header = Header()
    try:
        header, inputs_stop, rows_stop = read_progress(out / JOURNAL)
        progress = f"{inputs_stop} of {header.inputs} images, {rows_stop} rows written"
    except (OSError, ValueError):
        progress = "its very start"
    return progress, command_to_resume(out, header)


def command_to_resume(out: Path, header: Header, part: str = "") -> str:
    """Return the command that resumes the pack of OUT, or with a part of it, by the header of a journal.

    Whoever made OUT chose the words of its journal. Such as no pack writes are not repeated: a person may copy the command.
    """
    if not header.images:
        return f"the same call of pack_dataset, with out={str(out)!r} and resume=True"
    if not all(_is_usual(word) for word in (*header.images, *header.words)) or any(map(_is_option, header.images)):
        return f"the same pack command again with --resume ({shown(str(out / JOURNAL))} has words that are not shown)"
    target = out.parent if header.split else out
    words = [*header.images, str(target), *header.words]
    command = shlex.join(["pack", *words, *(["--part", part] if part else []), "--resume"])
    return shown(redacted(command))


def _is_usual(word: str) -> bool:
    """Whether a word of a command is one that a person can read: short, and without control characters."""
    return len(word) <= _MOST_WORD and shown(word) == word and word not in _NEVER


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "-0")
