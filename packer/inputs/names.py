"""Names as inputs, splits and classes: one rule for folders, lists, tars, zips and URLs.

Names with an image suffix are inputs, all others are counted. The first folders are splits, or else classes as in
torchvision's ImageFolder (0.28, `datasets/folder.py`). Lists nothing itself.
"""

from __future__ import annotations

import itertools
import os
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from packer.errors import ScanError
from packer.inputs.class_lists import composed, unknown_class
from packer.inputs.samples import Inputs
from packer.inputs.splits import split_folders
from packer.option_names import Option
from packer.progress import notify
from packer.report import Progress
from packer.text import counted, some
from reader.format.splits import ROLES

# torchvision's list, and other suffixes of photographs
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    *(".gif", ".jfif", ".jpe", ".mpo", ".avif", ".jp2", ".j2k", ".jpf", ".jpx"),
    # listed even without a decoder, so that none is skipped silently: a reject names the package to install
    *(".heic", ".heif", ".hif", ".jxl"),
)
# Folders that systems and tools put among images: thumbnails of Synology and QNAP, resource forks in zips of macOS, bins,
# lost files.
_JUNK = {"__macosx", "@eadir", "@recycle", "#recycle", "$recycle.bin", "system volume information", "lost+found"}
# AppleDouble: macOS writes such a file beside each file on foreign disks. ._a.jpg is not an image.
_JUNK_FILE = "._"
# the reason for an image outside the class folders
_STRAY = "it is beside the class folders and so has no class; move it into one"
_PROGRESS_EVERY = 10_000


def is_image(name: str) -> bool:
    """Whether a name has the suffix of an image."""
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_junk(folder: str) -> bool:
    """Whether a folder of this name is hidden or a system's, and so neither class nor split."""
    return folder.startswith(".") or folder.lower() in _JUNK


@dataclass
class NameFilter:
    """Selects the names of images, and counts all others.

    Attributes:
        seen: all names.
        ignored: names without an image suffix.
        left_out: hidden and system folders, and macOS files.
    """

    seen: int = 0
    ignored: int = 0
    left_out: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        notify(Progress("list", 0, 0))

    def count(self, more: int = 1) -> None:
        """Count names that were seen, and report every so often."""
        before, self.seen = self.seen, self.seen + more
        if before // _PROGRESS_EVERY != self.seen // _PROGRESS_EVERY:
            notify(Progress("list", self.seen, 0))

    def takes(self, name: str) -> bool:
        """Whether the file of this name, relative to IMAGES, is an input."""
        if not self.passes(name):
            return False
        if not is_image(name):
            self.ignored += 1
        return is_image(name)

    def passes(self, name: str) -> bool:
        """Whether a file is neither a system's nor in a hidden folder."""
        *folders, file = name.split("/")
        for depth, folder in enumerate(folders, start=1):
            if is_junk(folder):
                self.left_out.add("/".join(folders[:depth]))
                return False
        if file.startswith(_JUNK_FILE):
            self.left_out.add(name)
            return False
        return True

    def report(self, inputs: Inputs, images: object) -> None:
        """Note the counts; raises ScanError if no image is left."""
        inputs.ignored = self.ignored
        what = counted(len(self.left_out), "hidden folder or file", "hidden folders and files")
        left_out = f"{what} of systems: {some(sorted(self.left_out))}" if self.left_out else ""
        if not inputs.paths:
            raise ScanError(
                f"{images} holds no image{f' beside {left_out}' if left_out else ''} ({counted(self.seen, 'file', 'files')}"
                " seen). Expected <class>/<name>.jpg or <name>.jpg in it."
            )
        if left_out:
            inputs.notes.append(f"left out: {left_out}.")


def divided(inputs: Inputs, *, is_wrapped: bool = True, is_sorted: bool = False) -> tuple[dict[str, Inputs], str]:
    """Divide listed inputs by their split folders; returns the splits, and the folder around them, "a/" or "".

    Args:
        is_wrapped: a single folder around everything is not a class.
        is_sorted: sort the samples in ImageFolder's order; else they keep the listed order.
    """
    folders = folders_of(inputs)
    common = os.path.commonpath(folders) if is_wrapped else ""
    wrapped = itertools.takewhile(lambda part: part.lower() not in ROLES, common.split("/"))
    above = "".join(f"{part}/" for part in wrapped if part)
    first = {folder[len(above) :].partition("/")[0] for folder in folders}
    splits = split_folders(first - {""}, lambda _: True)
    if splits == [""] and not above and not is_sorted:
        return {"": inputs}, above
    found = dict[str, Inputs]()
    for split in splits:
        inside = f"{above}{split}/" if split else above
        chosen: Iterable[int] = (i for i, name in enumerate(inputs.paths) if name.startswith(inside))
        if is_sorted:
            names = inputs.paths
            chosen = sorted(chosen, key=lambda i: _folder_order(names[i][len(inside) :]))
        found[split] = inputs.chosen(array("q", chosen), below=len(inside))
        # one note for all
        inputs.notes, inputs.ignored = [], 0
    beside = len(inputs) - sum(map(len, found.values()))
    if beside:
        next(iter(found.values())).notes.append(f"left out: {counted(beside, 'image', 'images')} beside the splits.")
    return found, above


def folders_of(inputs: Inputs) -> set[str]:
    """Return the folders that inputs are in, relative to their root."""
    return {name.rpartition("/")[0] for name in inputs.paths}


def _folder_order(name: str) -> tuple[str, str, str]:
    folder, _, file = name.rpartition("/")
    return folder.partition("/")[0], folder, file


def take_folders(splits: dict[str, Inputs], images: object, classes: tuple[str, ...] | None) -> None:
    """Take the first folder of each path as the class, in all splits; images beside class folders are refused.

    Args:
        classes: the class list to impose; else it is the sorted names of the folders.

    Raises:
        ScanError: a folder is not in that list.
    """
    found = {composed(name) for inputs in splits.values() for name in set(first_folders(inputs)) if name}
    names = tuple(sorted(found)) if classes is None else classes
    if unknown := sorted(found.difference(names)):
        raise unknown_class(str(images), unknown[0], names)
    index = {name: number for number, name in enumerate(names)}
    for inputs in splits.values():
        numbers = {name: index.get(composed(name), -1) for name in set(first_folders(inputs))}
        for position, name in enumerate(first_folders(inputs)):
            inputs.targets.values[position] = numbers[name]
            if not name and len(numbers) > 1:
                inputs.refused.setdefault(position, _STRAY)
        inputs.classes = names


def first_folders(inputs: Inputs) -> Iterator[str]:
    """Yield the first folder of each path, or ""."""
    return (path.partition("/")[0] if "/" in path else "" for path in inputs.paths)


def note_folder_around(inputs: Inputs) -> None:
    """Note that one folder holds all images in sub-folders, perhaps the intended classes; as in ImageFolder, it is the class."""
    folders = {tuple(folder.split("/", 2)[:2]) for folder in folders_of(inputs)}
    if len({folder[0] for folder in folders}) == 1 and all(len(folder) == 2 for folder in folders):
        around, inner = next(iter(folders))[0], sorted(folder[1] for folder in folders)
        inputs.notes.append(
            f"all images are in {around}: if {some(inner)} in it are classes or splits, pack {around} alone."
        )


def check_lookalikes(names: Iterable[str], images: str) -> None:
    """Refuse folders that look like splits: seg_train and seg_test, trainA and testA, train and test1.

    The rest of both names must be equal, except for digits: train station and test tube are classes.

    Args:
        images: the folder around them; "": no folder can be packed by itself.

    Raises:
        ScanError: there are two such folders.
    """
    alike = dict[str, dict[int, str]]()
    for name in sorted(names):
        for part in re.findall("[A-Z]?[a-z]+|[A-Z]+", name):
            word = part.lower().removesuffix("set")
            if (role := ROLES.get(word)) is not None:
                beside = re.sub("[0-9]", "", name.lower().replace(word, "*"))
                alike.setdefault(beside, {})[role] = name
    if several := next(([roles[role] for role in sorted(roles)] for roles in alike.values() if len(roles) > 1), None):
        lines = [f"pack {images}/{name} {name}-store" for name in several]
        each = "; ".join([lines[0], *(f"{line} --classes {several[0]}-store" for line in lines[1:])])
        raise ScanError(
            f"{', '.join(several)} look like splits, not classes."
            f" {f'Pack each: {each}' if images else 'Rename them to train, val and test'}. If they are classes, list all in"
            f" a file and give {Option('classes')}."
        )
