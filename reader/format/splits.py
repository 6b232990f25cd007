"""Roles of splits by their names, and the folders of unfinished stores.

Imports only the standard library, and opens no file.
"""

from __future__ import annotations

import os
from pathlib import Path

# The role of a split, by its name in lower case. Stores are packed, and listed, in the order of the roles.
ROLES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}

# The working folder in a store's folder while it is packed; and the suffix of that folder, beside OUT.
FOLDER = ".packing"


def staging_path(out: Path) -> Path:
    """Return the folder beside OUT where it is packed."""
    return out.with_name(f"{out.name}{FOLDER}")


def is_stage(folder: Path) -> bool:
    """Return whether OUT is being packed in a folder, or below it: finished stores in it may not belong together yet."""
    return any(os.path.isdir(stage / FOLDER) for stage in (folder / FOLDER, *([folder] * folder.name.endswith(FOLDER))))


def stages(root: Path) -> list[Path]:
    """List the folders where the store at root may be unfinished: itself, or the stage of OUT, or of the split of an OUT."""
    own = root if root.name else root.absolute()
    places = [root]
    if own.name:
        places += [staging_path(own), own / FOLDER]
    if own.parent.name:
        places += [stage / own.name for stage in (staging_path(own.parent), own.parent / FOLDER)]
    return places
