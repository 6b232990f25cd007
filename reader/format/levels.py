"""Levels: the rows of a store again at half their size, and a quarter, each a store of its own in a folder within it.

Knows their names and files; what a store says of its rows is `manifest`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reader.format.errors import StoreError
from reader.format.head import LEVELS
from reader.format.shown import brief

LEVELS_FOLDER = "levels"
# By what the sides of rows are divided.
FACTORS = (2, 4)

_FILES = ("manifest.json", "samples.jsonl", "rejected.jsonl", "meta.json", "_tensordict/meta.json")
# Of all that a row of the store has, a level has these.
_TENSORS = ("pixels", "targets", "content", "offsets", "shapes", "frames")


def level_name(factor: int) -> str:
    """Return the folder of a level, by its path in the store."""
    return f"{LEVELS_FOLDER}/{factor}"


def level_path(out: Path, factor: int) -> Path:
    """Return the folder of a level."""
    return out / LEVELS_FOLDER / str(factor)


def level_files(levels: Sequence[int], tensors: Sequence[str], features: Sequence[str]) -> list[str]:
    """Return the files of all levels, by their paths in the store.

    Args:
        levels: the factors that the manifest names.
        tensors: names of all tensors of the store.
        features: its reader features.

    Raises:
        StoreError: they are no levels, or the feature and any of them are not together.
    """
    if tuple(levels) not in ((), *(FACTORS[: n + 1] for n in range(len(FACTORS)))) or bool(levels) != (
        LEVELS in features
    ):
        raise StoreError(
            f"the manifest says levels = {brief(list(levels))}, expected [2] or [2, 4] where it names {LEVELS}."
        )
    own = [*_FILES, *(f"_tensordict/{name}.memmap" for name in tensors if name in _TENSORS)]
    return [f"{level_name(factor)}/{name}" for factor in levels for name in own]


def is_of_level(name: str) -> bool:
    """Whether a file of a store is that of a level."""
    return name.startswith(f"{LEVELS_FOLDER}/")
