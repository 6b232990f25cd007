"""Masks: which file belongs to which input, or what outlines it is drawn of; and its values in the row, of the nearest pixels."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.class_lists import composed
from packer.inputs.samples import Inputs
from packer.sources.roots import check_listed

# formats that keep every value; a JPEG would not
_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")
_NAMED = 3


def give_masks(parts: dict[str, Inputs], folder: Path) -> None:
    """Give each input the mask of its own relative path but for the suffix; one without a mask, or with two, is refused.

    Raises:
        ScanError: there is no such folder, it holds no mask, or the inputs have a column of that name.
    """
    if not folder.is_dir():
        raise ScanError(
            f"--masks {folder} is no folder. Expected one with masks named as the images are: a.png for a.jpg."
        )
    found = _files(folder)
    if not found:
        raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_SUFFIXES)}.")
    used: set[str] = set()
    for split, inputs in parts.items():
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
        named = ", ".join(found[stem][0] for stem in extra[:_NAMED]) + (" and others" if len(extra) > _NAMED else "")
        next(iter(parts.values())).notes.append(f"{len(extra)} masks of {folder} belong to no image: {named}.")


def check_no_masks(inputs: Inputs) -> None:
    """Raise ScanError where a column has the name that masks will have."""
    if "masks" in inputs.extras:
        raise ScanError("the inputs have a column 'masks' already. Rename it, or leave out --masks.")


def _files(folder: Path) -> dict[str, list[str]]:
    """List the masks below a folder: relative path without suffix, in Unicode NFC -> relative paths."""
    found: dict[str, list[str]] = {}
    for root, _, files in os.walk(folder, followlinks=True, onerror=check_listed):
        inside = os.path.relpath(root, folder).replace(os.sep, "/")
        for file in sorted(files):
            if file.lower().endswith(_SUFFIXES):
                path = posixpath.normpath(f"{inside}/{file}")
                found.setdefault(composed(posixpath.splitext(path)[0]), []).append(path)
    return found
