"""Names of folders that mean something: train and val are splits, .ipynb_checkpoints and @eaDir are never classes.

Also finds the stores of splits below a folder, for every command that takes a store. Opens no image and no store.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from packer.errors import OptionsError, ScanError
from packer.option_names import Option
from reader.format.filesystem import user_path
from reader.format.manifest import MANIFEST
from reader.format.shown import redacted
from reader.format.splits import FOLDER, ROLES, is_stage
from reader.format.urls import is_url

SPLITS = tuple(ROLES)
# What systems and tools put among images: thumbnails of Synology and QNAP, resource forks in zips of macOS, bins, lost files.
# Those of Jupyter, git and most others are hidden, and left out for that.
_JUNK = {"__macosx", "@eadir", "@recycle", "#recycle", "$recycle.bin", "system volume information", "lost+found"}
# AppleDouble: what macOS writes beside a file on a disk that is not its own. ._a.jpg is no image.
_JUNK_FILE = "._"


def is_split(name: str) -> bool:
    """Say whether a folder of this name is a split: train, val, valid, validation, dev, eval, test and the like, in any case."""
    return name.lower() in ROLES


def is_junk(name: str) -> bool:
    """Say whether a folder of this name is hidden or a system's, and so never a class."""
    return name.startswith(".") or name.lower() in _JUNK


def is_junk_file(name: str) -> bool:
    """Say whether a file of this name is a system's note on another file."""
    return name.startswith(_JUNK_FILE)


def junk_above(name: str) -> str:
    """Return the first folder of a name that is never a class, as a path, "" where there is none: a/.git/b/c.jpg -> a/.git."""
    folders = name.split("/")[:-1]
    return next(("/".join(folders[: depth + 1]) for depth, folder in enumerate(folders) if is_junk(folder)), "")


def split_folders(names: Iterable[str], has_image: Callable[[str], bool] | None = None) -> list[str]:
    """Return which splits a folder with these sub-folders is made of; [""] where it is none of those.

    They are splits where no other folder with an image is beside them, or where two of different roles are there: train and
    val, beside annotations. A class may be called train.

    Args:
        has_image: whether a sub-folder holds an image, at any depth; where it is not given all do.

    Raises:
        ScanError: two names differ in case alone.

    Example:
        >>> split_folders(["val", "train"]), split_folders(["annotations", "Train", "Val"]), split_folders(["train", "plane"])
        (['train', 'val'], ['Train', 'Val'], [''])
    """
    visible = [name for name in names if not is_junk(name)]
    splits = sorted(filter(is_split, visible), key=_order)
    others = [name for name in visible if not is_split(name)]
    roles = {ROLES[name.lower()] for name in splits}
    if not splits or (len(roles) < 2 and any(has_image is None or has_image(name) for name in others)):
        return [""]
    for one, other in itertools.pairwise(splits):
        if one.lower() == other.lower():
            raise ScanError(f"{one} and {other} are two folders of one split. Rename one of them, or join them.")
    return splits


def stores_of(out: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the stores of splits below a folder, by split; {"": out} where it is a store itself, or holds none.

    A pack that has not finished is one too: whatever opens it refuses it, and so no split is skipped.

    Raises:
        OptionsError: it is a URL.
    """
    if is_url(out):
        url = redacted(os.fspath(out))
        raise OptionsError(f"{url} is a URL, expected the folder of a store. Copy it first: pack pull {url} FOLDER")
    root = Path(user_path(out))
    # beside the stores of splits, a working folder that is no stage was left when they were complete
    if _is_store(root) and (is_stage(root) or _is_file(root / MANIFEST)):
        return {"": root}
    return {store.name: store for store in stores_in(root)[1:] if _is_store(store)} or {"": root}


def stores_in(folder: Path) -> list[Path]:
    """Name a folder and those of splits in it: where stores are, or are made."""
    try:
        names = sorted(filter(is_split, os.listdir(folder)), key=_order)
    except OSError:  # whatever opens it as a store says why
        names = []
    return [folder, *(folder / name for name in names if os.path.isdir(folder / name))]


def split_of(store: Path, folder: Path) -> str:
    """Name the split that a store in a folder is of; "" where it is the folder itself."""
    return "" if store == folder else store.name


def check_one_store(store: str | os.PathLike[str], option: Option) -> None:
    """Refuse an option that names rows of one store where the folder holds the stores of splits; raises OptionsError."""
    stores = stores_of(store)
    if "" not in stores:
        raise OptionsError(
            f"{option} is about one store, and {store} holds those of {', '.join(stores)}."
            f" Name one of them: {next(iter(stores.values()))}"
        )


def _order(name: str) -> tuple[int, str, str]:
    return ROLES[name.lower()], name.lower(), name


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except PermissionError:  # whatever opens it says so
        return True
    except OSError:
        return False


def _is_store(folder: Path) -> bool:
    for name, is_kind in ((MANIFEST, stat.S_ISREG), (FOLDER, stat.S_ISDIR)):
        try:
            if is_kind((folder / name).stat().st_mode):
                return True
        except PermissionError:  # whatever opens it says so
            return True
        except OSError:
            continue
    return False
