"""What OUT may be: which folder a user names by it, and where it may not be. Knows not how OUT is made."""

from __future__ import annotations

import os
from pathlib import Path

from packer.errors import OptionsError
from packer.store.state import enclosing_store, is_store
from reader.format.filesystem import plain_path, user_path
from reader.format.shown import redacted
from reader.format.urls import is_url

# Of those that file systems have, without .packing.old.
_MOST_NAME_BYTES = 255 - 12


def check_destination(sources: list[str], out: Path, name: str = "OUT") -> None:
    """Refuse an OUT that is a file, is a folder among IMAGES, or is inside it or in a store; raises OptionsError.

    Args:
        name: what the command calls it.
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
    real, here = Path(os.path.realpath(target)), Path(os.path.realpath("."))
    # a command that works in OUT, or below it, is elsewhere once OUT is replaced: what it calls ../out is another folder then
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
