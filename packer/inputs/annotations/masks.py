"""Masks: which file of --masks belongs to which input. Opens none."""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
        suffix: of --mask-suffix: what their names add to those of images.
        paths: relative path of an image without its extension, in Unicode NFC -> relative paths of its masks.
    """

    folder: Path
    suffix: str
    paths: Mapping[str, list[str]]

    @classmethod
    def below(cls, folder: Path, suffix: str) -> MaskFiles:
        """List the masks below a folder.

        Raises:
            ScanError: there is no such folder, or it holds no mask.
        """
        if not folder.is_dir():
            raise ScanError(
                f"{Option('masks', folder)} is not a folder. Expected one with masks named as the images are: a{suffix}.png"
                " for a.jpg."
            )
        paths: dict[str, list[str]] = {}
        for path in filter(functools.partial(_is_mask, suffix), files_below(folder)):
            paths.setdefault(_stem(path).removesuffix(suffix), []).append(path)
        if not paths:
            behind = f", with {suffix} behind that" if suffix else ""
            raise ScanError(
                f"{folder} holds no mask. Expected images named as those to pack{behind}, {', '.join(_SUFFIXES)}."
            )
        return cls(folder, suffix, paths)

    def left_out(self, inputs: Inputs) -> Inputs:
        """Return the inputs without the masks among them: of images that have theirs beside them, named by --mask-suffix.

        Raises:
            ScanError: there is nothing else.
        """
        is_beside = not inputs.url and inputs.root.resolve().is_relative_to(self.folder.resolve())
        if not self.suffix or inputs.archives or not is_beside:
            return inputs
        images = [number for number, path in enumerate(inputs.paths) if not _is_mask(self.suffix, path)]
        if not images:
            raise ScanError(
                f"{inputs.root} holds no image but the masks that {Option('mask_suffix', self.suffix)} names. Expected a.jpg"
                f" beside a{self.suffix}.png, or give {Option('masks')} their folder and IMAGES another."
            )
        return replace(inputs.chosen(images), ignored=inputs.ignored + len(inputs) - len(images))

    def give(self, splits: dict[str, Inputs]) -> None:
        """Give each input the mask of its own relative path, with suffix; one without a mask, or with two, is refused.

        Raises:
            ScanError: the inputs have a column of that name.
        """
        used: set[str] = set()
        for split, inputs in splits.items():
            check_no_masks(inputs)
            inputs.masks = []
            for index, name in enumerate(label_paths(split, inputs)):
                stem = _stem(name)
                own = self.paths.get(stem, [])
                used.add(stem)
                inputs.masks.append(own[0] if own else "")
                if len(own) != 1:
                    lacks = f"it has no mask {stem}{self.suffix}.png"
                    reason = f"it has two masks, {own[0]} and {own[1]}" if own else lacks
                    inputs.refused.setdefault(index, reason)
        extra = sorted(set(self.paths) - used)
        if extra:
            named = some([self.paths[stem][0] for stem in extra])
            next(iter(splits.values())).notes.append(
                f"{len(extra)} masks of {self.folder} belong to no image: {named}."
            )


def check_no_masks(inputs: Inputs) -> None:
    """Raise ScanError where a column has the name that masks will have."""
    if "masks" in inputs.extras:
        raise ScanError(f"the inputs have a column 'masks' already. Rename it, or leave out {Option('masks')}.")


def _is_mask(suffix: str, path: str) -> bool:
    return path.lower().endswith(_SUFFIXES) and _stem(path).endswith(suffix)


def _stem(path: str) -> str:
    """Return a path without its extension, in Unicode NFC."""
    return composed(posixpath.splitext(path)[0])
