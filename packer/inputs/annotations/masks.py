"""Masks: which file of --masks belongs to which input. Opens none."""

from __future__ import annotations

import posixpath
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.class_lists import composed
from packer.inputs.samples import Inputs
from packer.sources.roots import files_below
from packer.text import some

# formats that keep every value; a JPEG would not
_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")


def give_masks(splits: dict[str, Inputs], folder: Path) -> None:
    """Give each input the mask of its own relative path but for the suffix; one without a mask, or with two, is refused.

    Raises:
        ScanError: there is no such folder, it holds no mask, or the inputs have a column of that name.
    """
    if not folder.is_dir():
        raise ScanError(
            f"--masks {folder} is not a folder. Expected one with masks named as the images are: a.png for a.jpg."
        )
    found = _files(folder)
    if not found:
        raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_SUFFIXES)}.")
    used: set[str] = set()
    for split, inputs in splits.items():
        check_no_masks(inputs)
        inputs.masks = []
        for index, name in enumerate(label_paths(split, inputs)):
            stem = composed(posixpath.splitext(name)[0])
            own = found.get(stem, [])
            used.add(stem)
            inputs.masks.append(own[0] if own else "")
            if len(own) != 1:
                reason = f"it has two masks, {own[0]} and {own[1]}" if own else f"it has no mask {stem}.png"
                inputs.refused.setdefault(index, reason)
    extra = sorted(set(found) - used)
    if extra:
        named = some([found[stem][0] for stem in extra])
        next(iter(splits.values())).notes.append(f"{len(extra)} masks of {folder} belong to no image: {named}.")


def check_no_masks(inputs: Inputs) -> None:
    """Raise ScanError where a column has the name that masks will have."""
    if "masks" in inputs.extras:
        raise ScanError("the inputs have a column 'masks' already. Rename it, or leave out --masks.")


def _files(folder: Path) -> dict[str, list[str]]:
    """List the masks below a folder: relative path without suffix, in Unicode NFC -> relative paths."""
    found: dict[str, list[str]] = {}
    for path in files_below(folder):
        if path.lower().endswith(_SUFFIXES):
            found.setdefault(composed(posixpath.splitext(path)[0]), []).append(path)
    return found
