"""Names of folders that are splits: train, val, test and the like.

Also finds the stores of splits below a folder, for every command that takes a store. Opens no image and no store.
"""

from __future__ import annotations

import os
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


def is_split(name: str) -> bool:
    """Return whether a folder of this name is a split: train, val, valid, validation, dev, eval or test, in any case."""
    return name.lower() in ROLES


def split_folders(names: Iterable[str], has_image: Callable[[str], bool]) -> list[str]:
    """Return the split folders among these sub-folders; [""] if the folder is not made of splits.

    They are splits if no other folder with an image is beside them, or if two have different roles: train and
    val, beside annotations. A class may be called train.

    Args:
        has_image: whether a sub-folder holds an image, at any depth.

    Raises:
        ScanError: two names differ only in case.

    Example:
        >>> split_folders(["val", "train"], bool), split_folders(["train", "plane"], bool)
        (['train', 'val'], [''])
    """
    known = sorted(names)
    splits = sorted(filter(is_split, known), key=_order)
    roles = {ROLES[name.lower()] for name in splits}
    if not splits or (len(roles) < 2 and any(not is_split(name) and has_image(name) for name in known)):
        return [""]
    if len({name.lower() for name in splits}) < len(splits):
        raise ScanError(f"{' and '.join(splits)} name one split twice. Rename one of them, or join them.")
    return splits


def stores_of(out: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the stores of splits below a folder, by split; {"": out} if it is a store itself, or holds none.

    An unfinished pack is included: opening it raises an error, so no split is skipped silently.

    Raises:
        OptionsError: it is a URL.
    """
    if is_url(out):
        url = redacted(os.fspath(out))
        raise OptionsError(f"{url} is a URL, expected the folder of a store. Copy it first: pack pull {url} FOLDER")
    root = Path(user_path(out))
    # beside complete stores of splits, a working folder that is no stage is a remnant
    if _is_store(root) and (is_stage(root) or not os.path.isdir(root / FOLDER) or os.path.isfile(root / MANIFEST)):
        return {"": root}
    return {store.name: store for store in stores_in(root)[1:] if _is_store(store)} or {"": root}


def stores_in(folder: Path) -> list[Path]:
    """List a folder and its split folders, where stores are or are made."""
    try:
        names = sorted(filter(is_split, os.listdir(folder)), key=_order)
    except OSError:  # opening it as a store raises the reason
        names = []
    return [folder, *(folder / name for name in names if os.path.isdir(folder / name))]


def split_of(store: Path, folder: Path) -> str:
    """Return the split of a store in a folder; "" for the folder itself."""
    return "" if store == folder else store.name


def check_one_store(store: str | os.PathLike[str], option: Option) -> None:
    """Raise OptionsError for an option that names rows, if the folder holds several splits."""
    stores = stores_of(store)
    if "" not in stores:
        raise OptionsError(
            f"{option} is about one store, and {store} holds those of {', '.join(stores)}."
            f" Name one of them: {next(iter(stores.values()))}"
        )


def _order(name: str) -> tuple[int, str, str]:
    return ROLES[name.lower()], name.lower(), name


def _is_store(folder: Path) -> bool:
    # opening a folder without permission raises the reason
    is_closed = os.path.isdir(folder) and not os.access(folder, os.X_OK, effective_ids=True)
    return is_closed or os.path.isfile(folder / MANIFEST) or os.path.isdir(folder / FOLDER)
