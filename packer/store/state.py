"""The state of OUT: missing, in progress, finished, or something else; its progress, and the command that resumes it.

The one module that looks for it on the disk. Changes nothing there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shlex
from pathlib import Path

from packer.errors import OptionsError
from packer.inputs.splits import stores_in
from packer.store.journal import FOLDER, JOURNAL, Header, header_of, read_progress
from packer.store.parts import PARTS, Part, check_recorded, started_parts, wanted_parts
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import error_path, open_regular, plain_path, user_path
from reader.format.manifest import MANIFEST, Manifest
from reader.format.shown import redacted, shown
from reader.format.splits import stages, staging_path
from reader.format.urls import is_url

# In a stage inside OUT: all that is in it is finished, and being moved out of it.
MOVING = f"{FOLDER}/moving"
# In a stage that replaces stores: once it is OUT, the stage's name leads to the replaced ones.
REPLACING = f"{FOLDER}/replacing"
# Commands in journals. That of a pull names no blocks.
PULL, UPDATE = "pull", "update"
# The most unfinished parts that a message names.
_PARTS_NAMED = 8
# Longer than any path.
_MOST_WORD = 4096
# In no journal: they start a command, and do not continue it.
_NEVER = ("--overwrite", "--")
# Names that file managers and NAS put into any folder (macOS, Windows, Synology), and ext4 into a mount point; in lower case.
_DROPPED = {"lost+found", ".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"}
# The limit of file systems, less .packing.old.
_MOST_NAME_BYTES = 255 - 12


def check_destination(sources: list[str], out: Path, name: str = "OUT") -> None:
    """Refuse an OUT that is a file, is a folder among IMAGES, or is inside it or in a store; raises OptionsError.

    Args:
        name: its name in the command's messages.
    """
    if os.path.lexists(out) and not out.is_dir():
        raise OptionsError(f"{out} is a file. Expected a folder that does not exist yet.")
    if (store := enclosing_store(out)) is not None:
        raise OptionsError(f"{name} {out} is in the store {store}. Choose a folder outside it.")
    target = Path(os.path.realpath(out))
    for images in filter(os.path.isdir, sources):
        source = Path(os.path.realpath(images))
        if source in (target, *target.parents):
            raise OptionsError(f"{name} {out} is IMAGES {images}, or inside it. Choose a folder outside it.")
        if target in source.parents and is_store(out):
            raise OptionsError(f"IMAGES {images} is inside the store {out}. Choose another {name}.")


def resolved_out(out: str | os.PathLike[str], name: str = "OUT") -> Path:
    """Return OUT without dots: its stage is named after it. Links are resolved.

    Args:
        name: its name in the command's messages.
    """
    if is_url(out):
        url = redacted(os.fspath(out))
        raise OptionsError(
            f"{name} {url} is a URL, expected a folder. Make it in a folder; a store is sent from there by:"
            f" pack push FOLDER {url}"
        )
    if not os.fspath(out):
        raise OptionsError(f"{name} is empty, expected the name of a folder.")
    target = Path(plain_path(user_path(out)))
    real, here = Path(os.path.realpath(target)), Path(os.path.realpath("."))
    # a process inside OUT moves away with the replaced OUT: its ../out is another folder then
    if (
        target.name in ("", "..")
        or os.path.islink(target)
        or (not target.is_absolute() and real in (here, *here.parents))
    ):
        target = real
    if not target.name:
        raise OptionsError(f"{name} {out} is the root of the file system. Choose a folder below it.")
    if (size_bytes := len(os.fsencode(target.name))) > _MOST_NAME_BYTES:
        raise OptionsError(
            f"{name} {out} has a name of {size_bytes} bytes, expected {_MOST_NAME_BYTES} at most, as it is made in a folder"
            " with a longer name. Choose a shorter one."
        )
    if not os.path.lexists(target.parent):
        raise OptionsError(
            f"{name} is {out}, and there is no folder {target.parent}. Make that first, or correct the name."
        )
    return target


def stage_of(out: Path) -> Path:
    """Return the stage of OUT: the existing one; else inside an OUT without a store, or beside OUT.

    Such an OUT keeps its owner, its mode and its mount.
    """
    for stage in (staging_path(out), out / FOLDER):
        if os.path.isdir(stage / FOLDER):
            return stage
    return out / FOLDER if os.path.isdir(out) and not published(out) else staging_path(out)


def published(out: Path) -> list[Path]:
    """List the finished stores in OUT: itself, or those of splits."""
    return [out] if is_store(out) else [store for store in stores_in(out)[1:] if is_store(store)]


def is_store(folder: Path) -> bool:
    """Whether a folder has the manifest of a store, damaged perhaps; other programs have files of that name too."""
    try:
        with error_path(folder / MANIFEST), open_regular(folder / MANIFEST) as file:
            return b'"format": "pixpack"' in file.read(200)
    except (OSError, StoreError) as e:
        if isinstance(e, OSError) and e.errno in (errno.EIO, errno.ESTALE):
            raise
        return False


def enclosing_store(path: Path) -> Path | None:
    """Return the finished or unfinished store whose folder a path is in, or None: no other file belongs there."""
    for folder in Path(os.path.realpath(path)).parents:
        with contextlib.suppress(OSError):  # a folder without permission is no store of this user
            if (folder / JOURNAL).is_file() or is_store(folder):
                return folder
    return None


def in_progress(stage: Path) -> list[Path]:
    """List the folders of a stage with an unfinished pack, pull or part; sealed ones come last."""
    found = [store for store in stores_in(stage) if any(os.path.exists(store / name) for name in (JOURNAL, PARTS))]
    return sorted(found, key=lambda store: (store / MANIFEST).exists())


def is_dropped(name: str) -> bool:
    """Whether a file system, a file manager or a NAS puts this name into any folder: lost+found, .DS_Store, @eaDir, ._NAME."""
    return name.lower() in _DROPPED or name.startswith("._")


def check_finished(out: str | os.PathLike[str]) -> Manifest:
    """Check the structure of a store as a reader does; for an unfinished one the error names the command that finishes it.

    Raises:
        StoreError: as `check_store`; IncompleteStoreError if the store is unfinished.
    """
    try:
        manifest = check_store(out)
    except StoreError:
        # a manifest without permission counts as missing
        if not os.path.exists(Path(out) / MANIFEST) and (message := unfinished_message(Path(out))):
            raise IncompleteStoreError(message) from None
        raise
    check_recorded(manifest)
    return manifest


def unfinished_message(out: Path) -> str:
    """Describe unfinished work in or beside a folder without a manifest, and how to resume it; else ""."""
    finished = published(out)  # with splits, those already moved into OUT
    stores = [store for stage in stages(out) for store in in_progress(stage) if store not in finished]
    found = next(iter(stores), None)
    if found is None:
        if not any(os.path.isdir(stage / FOLDER) for stage in stages(out)):
            return ""
        return f"{out} is incomplete: it is being made, or its command was interrupted; then give that command again."
    if (found / JOURNAL).is_file():
        target, (header, progress) = out_of(found), _read_unfinished(found)
        what = (
            "holds a store whose replacement" if is_store(target) else f"is incomplete: its {header.command or 'pack'}"
        )
        command = command_to_resume(found, header)
        return f"{target} {what}{progress} was interrupted or is still running. Continue with: {command}"
    # with splits, one whose parts are not all packed comes first
    return _progress_of_parts(next((store for store in stores if _unpacked_parts(store)), found))


def _unpacked_parts(store: Path) -> list[Part]:
    """List the unfinished parts of a store; [] before one has started."""
    return [part for part in wanted_parts(store) if not part.is_packed(store)]


def _progress_of_parts(store: Path) -> str:
    """Describe the packed parts of a store, and the next step."""
    parts, out = [*started_parts(store)], out_of(store)
    if two := two_divisions(store, parts):
        return two
    command = seal_command(store)
    message = f"{out} is incomplete: its parts are not sealed"
    if not parts:
        return f"{message}. When all n of pack {shlex.join(['IMAGES', str(out)])} --part i/n are there: {command}"
    count, left = len(wanted_parts(store)), _unpacked_parts(store)
    message += f": {count - len(left)} of {count} are packed"
    if not left:
        return f"{message}. Continue with: {command}"
    more = f" and {len(left) - _PARTS_NAMED} more" if len(left) > _PARTS_NAMED else ""
    message += f", not {', '.join(map(str, left[:_PARTS_NAMED]))}{more}"
    unfinished = (staging_path(part.folder(store)) for part in left)
    line = next((command_to_resume(folder, header) for folder in unfinished if (header := header_of(folder))), "")
    return f"{message}. When all are: {command}.{f' Continue with: {line}' if line else ' Pack these as the others.'}"


def two_divisions(store: Path, parts: list[Part]) -> str:
    """Explain that parts come from two divisions, and what to do; "" if they do not."""
    other = next((part for part in parts if part.count != parts[0].count), None)
    if other is None:
        return ""
    return (
        f"{out_of(store)} holds part {parts[0]} and part {other}, of two divisions. Start over: pack"
        f" {shlex.join(['IMAGES', str(_whole(store))])} --overwrite"
    )


def seal_command(store: Path) -> str:
    """Return the command that seals the parts of a store, of all splits at once."""
    return shlex.join(["pack", "seal", str(_whole(store))])


def _whole(store: Path) -> Path:
    """Return the OUT of a folder in a stage, even of a part; for a split, the folder of all splits."""
    if store.parent.name == Path(PARTS).name:
        store = store.parents[2]
    return out_of(store if store.name.endswith(FOLDER) else store.parent)


def out_of(store: Path) -> Path:
    """Return the final path of a folder in a stage.

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
    """Return the journal's header, empty if damaged, and the progress in words; "" for a pull.

    Reads the first and the last whole line of its journal: milliseconds, whatever the number of rows.
    """
    try:
        header, inputs_stop, rows_stop = read_progress(out)
    except (OSError, ValueError):
        return Header(), ", at its very start,"
    if header.command == PULL:
        return header, ""
    # changed sources are packed again, and rejects at each resume
    return header, f", at {min(inputs_stop, header.inputs)} of {header.inputs} images and {rows_stop} rows,"


def command_to_resume(out: Path, header: Header) -> str:
    """Return the command that resumes the pack in a folder, by the header of a journal.

    The words of a journal are untrusted. Words that no pack writes are left out: a person may copy the command.
    """
    if not header.images:
        return f"the same call of pack_dataset, with out={str(out_of(out))!r}"
    named = (*header.images, header.command)
    if not all(_is_usual(word) for word in (*named, *header.words)) or any(map(_is_option, named)):
        return f"the same pack command again ({shown(str(out / JOURNAL))} has words that are not shown)"
    is_of_more = header.split or header.max_rejects  # splits, or parts
    target, verb = _whole(out) if is_of_more else out_of(out), [header.command] if header.command else []
    command = [*verb, *header.images, f"./{target}" if _is_option(str(target)) else str(target), *header.words]
    command += ["--overwrite"] if not verb and published(out_of(out)) else []
    return shown(redacted(shlex.join(["pack", *command])))


def _is_usual(word: str) -> bool:
    """Whether a word of a command is one that a person can read: short, and without control characters."""
    return len(word) <= _MOST_WORD and shown(word) == word and word not in _NEVER


def _is_option(word: str) -> bool:
    return word.startswith("-") and word not in ("-", "-0")
