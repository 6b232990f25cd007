"""What may be in OUT: our own files, those that systems drop anywhere, and what is refused. Knows not how OUT is made."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.store import journal as journals
from packer.store.state import enclosing_store, in_progress, is_dropped, is_store, unfinished_message
from reader.format.check import EXTRAS, TENSORS
from reader.format.filesystem import plain_path, user_path
from reader.format.manifest import MANIFEST, REJECTED, SAMPLES
from reader.format.shown import redacted
from reader.format.splits import stages
from reader.format.urls import is_url

# What a pack may have left in OUT before its journal could be read back.
OWN_NAMES = {
    journals.FOLDER,
    "_tensordict",
    "meta.json",
    SAMPLES,
    REJECTED,
    MANIFEST,
    f".{MANIFEST}.tmp",
}


def check_destination(sources: list[str], out: Path, name: str = "OUT") -> None:
    """Refuse an OUT that is a file, is a folder among IMAGES, or is inside it or in a store; raises OptionsError.

    Args:
        name: what the command calls it.
    """
    if os.path.lexists(out) and not out.is_dir():
        raise OptionsError(f"{out} is a file. Expected a folder that does not exist yet.")
    if (store := enclosing_store(out)) is not None:
        raise OptionsError(f"{name} {out} is in the store {store}. Choose a folder outside it.")
    for images in sources:
        if os.path.isdir(images):
            _check_folder(images, out)


def check_takes_splits(out: Path, what: str) -> None:
    """Refuse a folder for the stores of splits that is a store, or an unfinished one; raises PackError.

    Args:
        what: is to be done with the splits: "the splits of images cannot be packed into it".
    """
    if is_store(out):
        raise PackError(f"{out} holds a store; {what}. Choose another OUT.")
    for stage in stages(out):
        if stage in in_progress(stage):
            raise PackError(f"{unfinished_message(stage)}. Until then {what}: choose another OUT.")


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
        # a file; or another process takes it away just now
        with contextlib.suppress(OSError), os.scandir(path) as found:
            for entry in sorted(found, key=lambda entry: entry.name):
                if entry.is_symlink() or entry.is_dir():
                    yield from _links(entry.path)


def foreign_names(out: Path) -> list[str]:
    """Name a file in OUT that is neither a pack's nor of the system, such as .DS_Store; raises PackError."""
    found = [name for name in names_in(out) if name not in OWN_NAMES]
    for folder in (TENSORS, EXTRAS):
        if (out / folder).is_dir():
            found += [f"{folder}/{name}" for name in names_in(out / folder) if not _is_of_tensors(name)]
    return found


def _is_of_tensors(name: str) -> bool:
    """Whether a name is one of a file of tensors, or of the folder of extras; a dot begins those that are being written."""
    return name.endswith(".memmap") or name in ("meta.json", "extras") or name.startswith(".")


def dropped_names(out: Path) -> list[str]:
    """Name the files of the system in OUT: they do not hinder a pack, and are removed with a replaced store."""
    return [name for name in listed(out) if is_dropped(name)]


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder that are not the system's; raises PackError."""
    return [name for name in listed(folder) if not is_dropped(name)]


def listed(folder: Path) -> list[str]:
    """Return the names in a folder; raises PackError."""
    try:
        return sorted(os.listdir(folder))
    except OSError as e:
        raise PackError(f"{folder} cannot be listed: {e.strerror}.") from None


def finished_meanwhile(out: Path) -> PackError:
    """Say that another process finished OUT after this one had looked at it."""
    return PackError(
        f"{out} was finished by another process just now. Look at it: {shlex.join(['pack', 'info', str(out)])}"
    )


def _check_folder(images: str, out: Path) -> None:
    source, target = os.path.realpath(images), os.path.realpath(out)
    if target == source:
        raise OptionsError(f"OUT {out} is IMAGES itself. Choose a folder outside it.")
    if Path(source) in Path(target).parents:
        raise OptionsError(f"OUT {out} is inside IMAGES {images}. Choose a folder outside it.")
    if Path(target) in Path(source).parents and is_store(out):
        raise OptionsError(f"IMAGES {images} is inside the store {out}. Choose another OUT.")


def _working_folders() -> list[Path]:
    """Return the working directory and all above it; none where it is gone."""
    with contextlib.suppress(OSError):
        here = Path(os.getcwd())
        return [here, *here.parents]
    return []


def resolved_out(out: str | os.PathLike[str], name: str = "OUT") -> Path:
    """Return OUT without dots: the folder beside it, in which it is made, is named after it. Links are resolved.

    Args:
        name: what the command calls it.
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
    real = Path(os.path.realpath(target))
    # a command that works in OUT, or below it, is elsewhere once OUT is replaced: what it calls ../out is another folder then
    if target.name in ("", "..") or target.is_symlink() or (not target.is_absolute() and real in _working_folders()):
        target = real
    if not target.name:
        raise OptionsError(f"{name} {out} is the root of the file system. Choose a folder below it.")
    if not os.path.lexists(target.parent):
        raise OptionsError(
            f"{name} is {out}, and there is no folder {target.parent}. Make that first, or correct the name."
        )
    return target
