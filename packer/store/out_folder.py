"""OUT on its file system: its possible contents, our own files, where a replacement is built and where the old store is moved."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from packer.errors import DiskFullError, OptionsError, PackError
from packer.options import OutputOptions
from packer.store import journal as journals
from packer.store.files import sync_folder, write_synced
from packer.store.lock import Lock
from packer.store.unfinished import PARTS, PULLED, command_to_resume, read_unfinished, unfinished_message
from packer.system import FULL
from packer.text import system_reason
from reader.format.filesystem import error_path, plain_path, refresh_names
from reader.format.manifest import MANIFEST, REJECTED, SAMPLES
from reader.format.shown import redacted
from reader.format.tensors import FACTORS, LEVELS_FOLDER, TEXTS_FILE
from reader.format.urls import is_url

# Marks a folder whose pack, begun or not, replaces the store beside it.
ANNOUNCED = f"{journals.FOLDER}/announced"

# What a pack may have left in OUT before its journal could be read back.
OWN_NAMES = {
    journals.FOLDER,
    "_tensordict",
    "meta.json",
    SAMPLES,
    REJECTED,
    TEXTS_FILE,
    LEVELS_FOLDER,
    MANIFEST,
    f".{MANIFEST}.tmp",
}

# What a pack has in the folder of levels.
_LEVELS = {str(factor) for factor in FACTORS}

# What file managers and NAS drop into any folder that they show (macOS, Windows, Synology), in lower case.
_DROPPED = {".ds_store", "thumbs.db", "ehthumbs.db", "desktop.ini", "@eadir"}


def check_destination(sources: list[str], out: Path) -> None:
    """Refuse an OUT that is a file, is a folder among IMAGES, or is inside it or in a store; raises OptionsError."""
    if os.path.lexists(out) and not out.is_dir():
        raise OptionsError(f"{out} is a file. Expected a folder that does not exist yet.")
    if (store := enclosing_store(out)) is not None:
        raise OptionsError(f"OUT {out} is in the store {store}. Choose a folder outside it.")
    for images in sources:
        if os.path.isdir(images):
            _check_folder(images, out)


def check_takes_splits(out: Path, what: str) -> None:
    """Refuse a folder for the stores of splits that is a store, or an unfinished one; raises PackError.

    Args:
        what: is to be done with the splits: "the splits of images cannot be packed into it".
    """
    if (out / MANIFEST).exists():
        raise PackError(f"{out} holds a store; {what}. Choose another OUT.")
    if any((out / name).exists() for name in (journals.JOURNAL, PARTS, PULLED)):
        raise PackError(f"{unfinished_message(out)}. Until then {what}: choose another OUT.")


def check_out(out: Path, options: OutputOptions, *, is_held: bool = False) -> None:
    """Refuse an OUT that is in the way; says how to resume.

    Args:
        is_held: whether this process holds OUT's lock already.

    Raises:
        OptionsError: OUT is a folder of something else.
        PackError: a store or an unfinished pack is in the way; LockedError where another process is packing to OUT just now.
    """
    check_no_links(*own_paths(out))
    if not out.exists():
        return
    found = [name for name in _listed(out) if not is_dropped(name)]
    foreign = foreign_names(out)
    is_store = MANIFEST in found and _is_ours(out / MANIFEST)
    if found and not is_store and (foreign or MANIFEST in found or journals.FOLDER not in found):
        what = (foreign or found)[0]
        raise OptionsError(
            f"{out} is not empty (it holds {what}) and is no store. Choose another OUT, or an empty folder."
        )
    if is_store and (options.overwrite or options.update or (options.resume and not is_finished(out))):
        _check_replaceable(out, foreign)
    elif is_store and not options.resume:
        if begun := _begun_replacement(out):
            raise PackError(begun)
        if foreign:  # such as the generations of a URL
            raise PackError(
                f"{out} already holds a store, and {foreign[0]}, so that --overwrite cannot replace it. Choose another OUT."
            )
        raise PackError(f"{out} already holds a store. Replace it with --overwrite, or choose another OUT.")
    elif not is_store and journals.has_started(out) and not options.resume and not options.overwrite:
        if not is_held:
            try:
                Lock(out).close()
            except FileNotFoundError:
                raise finished_meanwhile(out) from None
        progress, command = read_unfinished(out)
        raise PackError(
            f"{out} is incomplete: its pack was interrupted at {progress}. Resume with: {command}"
            " (or start over with --overwrite)."
        )


def _begun_replacement(out: Path) -> str:
    """Say how far a pack came that was to replace the store OUT, and how to continue it; "" where none has begun."""
    beside = replacement(out)
    if not journals.has_started(beside):
        return ""
    header = journals.read_header(beside)
    command = "the same pack update with --resume" if header.update else command_to_resume(out, header)
    return (
        f"{out} holds a store whose replacement was interrupted at {read_unfinished(beside)[0]}. Continue with: {command}"
        " (or start over with --overwrite)."
    )


def own_paths(out: Path) -> Iterator[Path]:
    """Name what a pack to OUT writes, moves or removes: in OUT, and beside it."""
    for folder in (out, replacement(out)):
        yield from (folder / name for name in sorted(OWN_NAMES))
    yield replacement(out)
    if out.absolute().parent.is_dir():
        yield from _trash(out)


def check_no_links(*paths: Path) -> None:
    """Refuse a symbolic link among these files and folders, or below them: a write would change files elsewhere.

    Raises:
        PackError: names the link, and where it leads.
    """
    for path in paths:
        if (link := next(_links(os.fspath(path)), None)) is not None:
            raise PackError(
                f"{link} is a symbolic link to {os.readlink(link)}, where pack keeps what is its own and may remove it."
                " Remove the link, or choose another folder."
            )


def _links(path: str) -> Iterator[str]:
    """Yield the symbolic links that a path is, or that are anywhere below it."""
    if os.path.islink(path):
        yield path
    else:
        with contextlib.suppress(OSError):  # a file; or another process takes it away just now
            for name in sorted(os.listdir(path)):
                yield from _links(os.path.join(path, name))


def foreign_names(out: Path) -> list[str]:
    """Name a file in OUT that is neither a pack's nor of the system, such as .DS_Store; raises PackError."""
    found = [name for name in _listed(out) if name not in OWN_NAMES and not is_dropped(name)]
    levels = out / LEVELS_FOLDER
    inside = _listed(levels) if levels.is_dir() else []
    return found + [f"{LEVELS_FOLDER}/{name}" for name in inside if name not in _LEVELS and not is_dropped(name)]


def dropped_names(out: Path) -> list[str]:
    """Name the files of the system in OUT: they do not hinder a pack, and are removed with a replaced store."""
    return [name for name in _listed(out) if is_dropped(name)]


def is_dropped(name: str) -> bool:
    """Whether a name is one that file managers and NAS use in any folder: .DS_Store, Thumbs.db, desktop.ini, @eaDir, ._NAME."""
    return name.lower() in _DROPPED or name.startswith("._")


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as e:
        raise PackError(f"{folder} cannot be listed: {e.strerror}.") from None


def finished_meanwhile(out: Path) -> PackError:
    """Say that another process finished OUT after this one had looked at it."""
    return PackError(f"{out} was finished by another process just now. Look at it: pack info {out}")


def _check_folder(images: str, out: Path) -> None:
    source, target = os.path.realpath(images), os.path.realpath(out)
    if target == source:
        raise OptionsError(f"OUT {out} is IMAGES itself. Choose a folder outside it.")
    if Path(source) in Path(target).parents:
        raise OptionsError(f"OUT {out} is inside IMAGES {images}. Choose a folder outside it.")
    if Path(target) in Path(source).parents and (out / MANIFEST).exists():
        raise OptionsError(f"IMAGES {images} is inside the store {out}. Choose another OUT.")


def _check_replaceable(out: Path, foreign: list[str]) -> None:
    if foreign:
        raise PackError(f"{out} also holds {foreign[0]}, which would be deleted with the store. Move it away first.")
    if out.is_symlink():  # a split's folder: OUT itself is resolved before
        raise PackError(
            f"{out} is a symbolic link, which cannot be replaced. Put the folder that it leads to in its place."
        )
    if os.path.ismount(out):
        raise PackError(f"{out} is a mount point, which cannot be replaced. Pack into a folder below it.")


def enclosing_store(path: Path) -> Path | None:
    """Return the store, or the unfinished one, in whose folder a path is, where no other file belongs; None where in none."""
    for folder in Path(os.path.realpath(path)).parents:
        with contextlib.suppress(OSError):  # what we may not look into is not a store of ours
            if (folder / journals.JOURNAL).is_file() or _is_ours(folder / MANIFEST):
                return folder
    return None


def replacement(out: Path) -> Path:
    """Name the folder beside OUT in which --overwrite builds the store that will replace it."""
    return out.with_name(f".{out.name}.packing")


def is_finished(out: Path) -> bool:
    """Whether OUT holds a store and no pack that replaces it is in progress or announced."""
    refresh_names(out / MANIFEST)  # another host may have just finished it
    return (out / MANIFEST).is_file() and not is_replaced(out)


def is_replaced(out: Path) -> bool:
    """Whether a pack that will replace OUT has begun, or is announced.

    Of a finished one nothing of this is left, and a copy of rows that was cut short is none: nothing resumes it.
    """
    beside = replacement(out)
    return (beside / ANNOUNCED).exists() or (beside / journals.JOURNAL).exists()


def announce(out: Path) -> None:
    """Mark a store as about to be replaced: a resume must not take it for the new one.

    Raises:
        PackError: that cannot be written; DiskFullError where the disk is full, LockedError where another is at work there.
    """
    beside = replacement(out)
    try:
        (beside / journals.FOLDER).mkdir(parents=True, exist_ok=True)
        with contextlib.closing(Lock(beside)):
            write_synced(beside / ANNOUNCED, b"")
            for folder in (beside / journals.FOLDER, beside, out.absolute().parent):
                sync_folder(folder)
    except FileNotFoundError:
        raise finished_meanwhile(out) from None
    except OSError as e:
        kind = DiskFullError if e.errno in FULL else PackError
        raise kind(f"{e.filename or beside / ANNOUNCED} cannot be written: {system_reason(e)}.") from None


def remove_replaced(out: Path) -> None:
    """Remove the store that OUT has replaced, where a crash cut that short; it has no journal."""
    beside = replacement(out)
    if (beside / MANIFEST).is_file() and not (beside / journals.FOLDER).exists():
        os.rename(beside, free_trash(out))
    if _trash(out):
        remove_trash(out)
        sync_folder(out.absolute().parent)


def sync_names(out: Path) -> None:
    """Make OUT's name and those above it survive a power loss, up to where its file system is mounted.

    All of them, since whoever made one, a pack that was killed perhaps, need not have synced it.
    """
    folder = out.absolute()
    device = folder.stat().st_dev
    for above in folder.parents:
        if above.stat().st_dev != device:
            return
        sync_folder(above)


def _trash(out: Path) -> list[Path]:
    """List the stores that OUT has replaced and that are still there.

    NFS keeps the files that a reader on this host has open, and so their folders, until it closes them.
    """
    parent, own = out.absolute().parent, re.compile(re.escape(f".{out.name}.packing.old") + r"\d*")
    return [parent / name for name in sorted(os.listdir(parent)) if own.fullmatch(name)]


def remove_trash(out: Path) -> None:
    """Remove the stores that OUT has replaced, as far as possible already."""
    for trash in _trash(out):
        shutil.rmtree(trash, ignore_errors=True)


def free_trash(out: Path) -> Path:
    """Name a folder beside OUT for the store that it replaces."""
    names = (out.with_name(f".{out.name}.packing.old{number or ''}") for number in itertools.count())
    return next(path for path in names if not os.path.lexists(path))


def is_manifest(content: bytes) -> bool:
    """Whether the bytes of a manifest.json are a store's, damaged perhaps; other programs have files of that name too."""
    return b'"format": "pixpack"' in content[:200]


def _is_ours(manifest: Path) -> bool:
    try:
        with error_path(manifest), open(manifest, "rb") as file:
            return is_manifest(file.read(200))
    except (FileNotFoundError, IsADirectoryError):
        return False


def resolved_out(out: str | os.PathLike[str]) -> Path:
    """Return OUT without dots: the folder beside it, in which --overwrite builds, is named after it. Links are resolved."""
    if is_url(out):
        raise OptionsError(
            f"OUT {redacted(os.fspath(out))} is a URL, expected a folder. Make the store in a folder, then:"
            f" pack push FOLDER {redacted(os.fspath(out))}"
        )
    if not os.fspath(out):
        raise OptionsError("OUT is empty, expected the name of a folder.")
    target = Path(plain_path(out))
    if target.name in ("", "..") or target.is_symlink():
        target = Path(os.path.realpath(target))
    if not target.name:
        raise OptionsError(f"OUT {out} is the root of the file system. Choose a folder below it.")
    return target


def remove_working_folder(out: Path) -> None:
    """Remove the working folder, once the manifest is safe and nothing in it is open."""
    shutil.rmtree(out / journals.FOLDER, ignore_errors=True)
    sync_folder(out)
