"""Masks: which file of --masks belongs to which input. Opens none."""

from __future__ import annotations

import posixpath
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.box_labels import label_paths
from packer.inputs.class_lists import composed
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.sources.roots import files_below
from packer.text import some

# formats that keep every value; a JPEG would not
_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")


def give_masks(splits: dict[str, Inputs], folder: Path) -> None:
    """Give each input the mask of its own relative path; one without a mask, or with two, is refused.

    Raises:
        ScanError: there is no such folder, or it holds no mask.
    """
    if not folder.is_dir():
        raise ScanError(
            f"{Option('masks', folder)} is not a folder. Expected one with masks named as the images are: a.png for a.jpg."
        )
    # relative path of an image without its extension -> relative paths of its masks
    paths: dict[str, list[str]] = {}
    for path in files_below(folder):
        if path.lower().endswith(_SUFFIXES):
            paths.setdefault(_stem(path), []).append(path)
    if not paths:
        raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_SUFFIXES)}.")
    used: set[str] = set()
    for split, inputs in splits.items():
        inputs.masks = []
        for index, stem in enumerate(map(_stem, label_paths(split, inputs))):
            own = paths.get(stem, [])
            used.add(stem)
            inputs.masks.append(own[0] if own else "")
            if len(own) != 1:
                reason = f"it has two masks, {own[0]} and {own[1]}" if own else f"it has no mask {stem}.png"
                inputs.refused.setdefault(index, reason)
    if extra := [paths[stem][0] for stem in sorted(paths.keys() - used)]:
        note = f"{len(extra)} masks of {folder} belong to no image: {some(extra)}."
        next(iter(splits.values())).notes.append(note)


def _stem(path: str) -> str:
    """Return a path without its extension, in Unicode NFC."""
    return composed(posixpath.splitext(path)[0])
