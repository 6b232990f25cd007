"""Names of splits, and what a split of each name is for: val, valid and validation are one."""

from __future__ import annotations

from collections.abc import Iterable

# The role of a split, by its name in lower case. Stores are made, and listed, in the order of the roles.
ROLES = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}


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
