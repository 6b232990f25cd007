"""Masks: which file of --masks belongs to which input. Opens none."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.annotations.box_labels import label_paths
from packer.inputs.class_lists import composed
from packer.inputs.samples import Inputs
from packer.option_names import Option
from packer.sources.roots import files_below
from packer.text import some

# formats that keep every value; a JPEG would not
_SUFFIXES = (".png", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True)
class MaskFiles:
    """The masks below a folder.

    Attributes:
        folder: of --masks.
        paths: relative path of an image without its extension, in Unicode NFC -> relative paths of its masks.
    """

    folder: Path
    paths: Mapping[str, list[str]]

    @classmethod
    def below(cls, folder: Path) -> MaskFiles:
        """List the masks below a folder.

        Raises:
            ScanError: there is no such folder, or it holds no mask.
        """
        if not folder.is_dir():
            raise ScanError(
                f"{Option('masks', folder)} is not a folder. Expected one with masks named as the images are: a.png"
                " for a.jpg."
            )
        paths: dict[str, list[str]] = {}
        for path in filter(_is_mask, files_below(folder)):
            paths.setdefault(_stem(path), []).append(path)
        if not paths:
            raise ScanError(f"{folder} holds no mask. Expected images named as those to pack, {', '.join(_SUFFIXES)}.")
        return cls(folder, paths)

    def give(self, splits: dict[str, Inputs]) -> None:
        """Give each input the mask of its own relative path; one without a mask, or with two, is refused."""
        used: set[str] = set()
        for split, inputs in splits.items():
            inputs.masks = []
            for index, name in enumerate(label_paths(split, inputs)):
                stem = _stem(name)
                own = self.paths.get(stem, [])
                used.add(stem)
                inputs.masks.append(own[0] if own else "")
                if len(own) != 1:
                    lacks = f"it has no mask {stem}.png"
                    reason = f"it has two masks, {own[0]} and {own[1]}" if own else lacks
                    inputs.refused.setdefault(index, reason)
        extra = sorted(set(self.paths) - used)
        if extra:
            named = some([self.paths[stem][0] for stem in extra])
            next(iter(splits.values())).notes.append(
                f"{len(extra)} masks of {self.folder} belong to no image: {named}."
            )


def _is_mask(path: str) -> bool:
    return path.lower().endswith(_SUFFIXES)


def _stem(path: str) -> str:
    """Return a path without its extension, in Unicode NFC."""
    return composed(posixpath.splitext(path)[0])
