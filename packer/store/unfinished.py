"""What a folder that holds no store yet says of itself: how far its pack came, and the command that resumes it.

Knows what is in OUT/.packing as far as a sentence needs it, and changes nothing there.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from packer.store.journal import FOLDER, JOURNAL, Header, read_progress
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted, shown
from reader.format.splits import half_replaced

PARTS = f"{FOLDER}/parts"
PULLED = f"{FOLDER}/pull/manifest.json"
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
    except IncompleteStoreError as e:
        folder = Path(out)
        message = half_replaced_message(folder) if (folder / MANIFEST).exists() else unfinished_message(folder)
        raise IncompleteStoreError(message or str(e)) from None


def unfinished_message(out: Path) -> str:
    """Say what has begun in OUT, a folder without a manifest, and how to resume it; "" where nothing has."""
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
    if (out / FOLDER).is_dir():
        return f"{out} is incomplete: it is being made, or what made it was ended early; then give that command again."
    return ""


def half_replaced_message(out: Path) -> str:
    """Say that of the splits which OUT is one of some are new and some old, and how to finish that; "" where it is not so."""
    if (found := half_replaced(out)) is None:
        return ""
    has_journal = (found.pending / JOURNAL).is_file()
    command = read_unfinished(found.pending)[1] if has_journal else "the same command again"
    return f"{found.what} Finish it: {command}"


def read_unfinished(out: Path) -> tuple[str, str]:
    """Say how far the interrupted pack of OUT came, and the command that resumes it.

    Reads the first and the last whole line of its journal: milliseconds, whatever the number of rows.
    """
    header = Header()
    try:
        header, inputs_stop, rows_stop = read_progress(out)
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
