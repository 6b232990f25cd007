"""Splits: what the name of each is for, and whether the stores of splits beside each other belong together.

Imports only the standard library, and changes nothing. Knows of a pack in progress where it works, and no more.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from reader.format.filesystem import open_regular

# The role of a split, by its name in lower case. Stores are made, and listed, in the order of the roles.
ROLES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}

# In the folder of a store, while it is being made.
FOLDER = ".packing"
# In each store that replaces a split's from shortly before the first of them does: their names, which belong together.
SWAPPING = f"{FOLDER}/swapping"
_SWAPPING_BYTES = 4096
_SPLIT = re.compile("[A-Za-z]{1,32}")


def meant(split: str, names: Iterable[str]) -> list[str]:
    """Return which of the names of splits one means: itself where it is there, else those of its role.

    Example:
        >>> meant("validation", ["train", "val"]), meant("Train", ["train", "Train"]), meant("test", ["train", "val"])
        (['val'], ['Train'], [])
    """
    found, role = [*names], ROLES.get(split.lower())
    return (
        [split] if split in found else [name for name in found if role is not None and ROLES.get(name.lower()) == role]
    )


class HalfReplaced(NamedTuple):
    """Of splits of which some are new and some old: what is wrong, and the folder of the first new store that is not in place."""

    what: str
    pending: Path


def half_replaced(out: Path) -> HalfReplaced | None:
    """Say that of the splits which OUT is one of some are new and some old; None where it is not so."""
    root = Path(os.path.realpath(out))
    if not root.name:
        return None
    names = read_swapping(root) or read_swapping(_beside(root))
    old = [name for name in names if (_beside(root.with_name(name)) / FOLDER).is_dir()]
    if not old or len(old) == len(names):
        return None
    new = ", ".join(name for name in names if name not in old)
    what = f"{root.parent} is half replaced: {new} done, {', '.join(old)} not yet, and they do not belong together."
    return HalfReplaced(what, _beside(root.with_name(old[0])))


def read_swapping(folder: Path) -> list[str]:
    """Return the names of the splits whose stores the one in this folder takes its place with; [] where there are none."""
    try:
        with open_regular(folder / SWAPPING) as file:
            names = json.loads(file.read(_SWAPPING_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    is_ours = type(names) is list and all(type(name) is str and _SPLIT.fullmatch(name) for name in names)
    return names if is_ours else []


def _beside(store: Path) -> Path:
    """Name the folder in which what will replace a store is made."""
    return store.with_name(f".{store.name}.packing")
