"""The images of a folder as a tree of names: what is a class, a split or left out, and the order of the samples.

A tree is filled from a disk (`folders`), the members of a zip or the objects below a URL; classes, order and targets are
torchvision ImageFolder's (0.28, `datasets/folder.py`): classes are the sorted names of the sub-folders, files are sorted by
folder, then by name. Lists nothing itself.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.class_lists import one_spelling, spelling_note
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk_file, junk_above, split_folders
from packer.option_names import Option
from packer.pixels.formats.plugins import SUFFIXES
from packer.progress import notify
from packer.report import Progress
from packer.text import counted, some

# torchvision's list, and what else holds photographs under another name
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    *(".gif", ".jfif", ".jpe", ".mpo"),
    # so that none is skipped silently: where nothing can decode them they are rejected, with what to install
    *itertools.chain.from_iterable(SUFFIXES.values()),
)
# of an image that no class folder holds, where others have one
STRAY = "it is beside the class folders and so has no class; move it into one"
_PROGRESS_EVERY = 10_000


def named_trees(names: Iterable[str]) -> dict[str, Tree]:
    """Make the tree of each split of names that are known without a folder to list: a zip's members, objects below a URL."""
    every = list(names)
    folders = {name.partition("/")[0] for name in every if "/" in name}
    with_images = {
        name.partition("/")[0] for name in every if name.lower().endswith(IMAGE_SUFFIXES) and not junk_above(name)
    }
    splits = split_folders(folders, with_images.__contains__)
    if splits == [""]:
        return {"": Tree.of_names(every)}
    trees = {
        split: Tree.of_names(name[len(split) + 1 :] for name in every if name.startswith(f"{split}/"))
        for split in splits
    }
    next(iter(trees.values())).leave_out_beside(splits, folders, [name for name in every if "/" not in name])
    return trees


def inputs_of(
    trees: dict[str, Tree],
    images: Path | str,
    classes: tuple[str, ...] | None,
    count: FileCounter,
    *,
    are_classes: bool = True,
) -> dict[str, Inputs]:
    """Order the samples of each split, which all share one class list; the root of each is IMAGES/<split>.

    Raises:
        ScanError: a split holds no image, or a class that is not in the imposed list.
    """
    check_images(trees, images, count)
    imposed = class_list(trees, images, classes) if are_classes else None
    found = {split: tree.inputs(Path(images) / split, imposed) for split, tree in trees.items()}
    if classes is None and imposed:
        # what is trained on; a list that is given may have more classes, and so may validation images have fewer
        first = next(iter(trees))
        found[first].notes += trees[first].notes_of_missing(imposed, first)
    layout = _layout(trees, imposed)
    for inputs in found.values():
        inputs.layout = layout
    return found


def _layout(trees: dict[str, Tree], classes: tuple[str, ...] | None) -> str:
    """Say what the folders were taken for: "2 splits (train, val), 1,000 classes"."""
    texts = [] if "" in trees else [f"{counted(len(trees), 'split', 'splits')} ({', '.join(trees)})"]
    if classes is None:
        texts.append(f"classes from {Option('boxes')}, not from folders")
    elif any(tree.has_classes() for tree in trees.values()):
        texts.append(counted(len(classes), "class", "classes"))
        deeper = sum(
            path.count("/") > 1 for tree in trees.values() for paths in tree.classes.values() for path in paths
        )
        if deeper:
            texts.append(f"{counted(deeper, 'image', 'images')} in folders below those of the classes")
    else:
        texts.append("no class folders")
    return ", ".join(texts)


def check_images(trees: dict[str, Tree], images: Path | str, count: FileCounter) -> None:
    """Raise ScanError where a split holds no image."""
    if not any(tree.has_image() for tree in trees.values()):
        left_out = next(
            (f" but in folders that are left out, such as {n}" for t in trees.values() for n in t.left_out), ""
        )
        raise ScanError(
            f"{images} holds no image{left_out} ({counted(count.seen, 'file', 'files')} seen)."
            f" Expected {images}/<class>/<name>.jpg or {images}/<name>.jpg."
        )
    for split, tree in trees.items():
        if not tree.has_image():
            raise ScanError(f"{images}/{split} holds no image. Fill it or remove it: every split becomes a store.")


def class_list(trees: dict[str, Tree], images: Path | str, classes: tuple[str, ...] | None) -> tuple[str, ...]:
    """Return the class list of all splits together: the imposed one, or the sorted names of the class folders.

    Raises:
        ScanError: a class is not in the imposed list.
    """
    names = sorted({name for tree in trees.values() if tree.has_classes() for name in tree.classes})
    one = one_spelling(names, classes or ())
    names = sorted({one.get(name, name) for name in names})
    imposed = tuple(names) if classes is None else classes
    known = set(imposed)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ScanError(
            f"{images} has the class {unknown[0]!r} that {Option('classes')} does not list ({len(imposed)} classes)."
        )
    return imposed


class FileCounter:
    """Counts files seen and reports every now and then."""

    def __init__(self) -> None:
        self.seen = 0
        notify(Progress("list", 0, 0))

    def add(self, count: int) -> None:
        """Count entries that were listed, and report every so often."""
        before, self.seen = self.seen, self.seen + count
        if before // _PROGRESS_EVERY != self.seen // _PROGRESS_EVERY:
            notify(Progress("list", self.seen, 0))


@dataclass
class Tree:
    """One folder, listed: images straight inside it, and those of each sub-folder, as paths relative to it."""

    top: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    ignored: int = 0
    # folders that were not looked into though they may hold images: name -> how many have it; and files likewise
    left_out: Counter[str] = field(default_factory=Counter)
    junk_files: int = 0
    images_beside: int = 0

    @classmethod
    def of_names(cls, names: Iterable[str]) -> Tree:
        """Make the tree of names that are known without a folder to list: those of a zip's members."""
        tree = cls()
        nested: list[tuple[str, str]] = []
        junk = set[str]()
        for name in sorted(names):
            if above := junk_above(name):
                junk.add(above)
            elif is_junk_file(name.rpartition("/")[2]):
                tree.junk_files += 1
            elif not name.lower().endswith(IMAGE_SUFFIXES):
                tree.ignored += 1
            elif "/" in name:
                folder, _, file = name.rpartition("/")
                nested.append((folder, file))
            else:
                tree.top.append(name)
        for folder, file in sorted(nested):
            tree.classes.setdefault(folder.partition("/")[0], []).append(f"{folder}/{file}")
        tree.left_out.update(folder.rpartition("/")[2] for folder in junk)
        return tree

    def leave_out_beside(self, splits: list[str], folders: Iterable[str], files: Iterable[str]) -> None:
        """Count what is beside the splits, and belongs to none of them."""
        self.left_out.update(sorted(set(folders) - set(splits)))
        for name in files:
            if is_junk_file(name):
                self.junk_files += 1
            elif name.lower().endswith(IMAGE_SUFFIXES):
                self.images_beside += 1
            else:
                self.ignored += 1

    def left_out_in_words(self) -> str:
        """Say what was left out: "the folder .git, 3 files named ._*"; "" where nothing was."""
        texts = [
            f"{count:,} folders {name}" if count > 1 else f"the folder {name}"
            for name, count in sorted(self.left_out.items())
        ]
        if self.images_beside:
            texts.append(counted(self.images_beside, "image", "images") + " beside the splits")
        if self.junk_files:
            texts.append(counted(self.junk_files, "file", "files") + " named ._*")
        return ", ".join(texts)

    def has_image(self) -> bool:
        """Whether anything could be packed: an image at the top that is not refused, or one in a class folder."""
        return any(p not in self.refusals for p in self.top) or self.has_classes()

    def has_classes(self) -> bool:
        """Whether a class folder holds an image; empty ones do not count."""
        return any(self.classes.values())

    def notes_of_missing(self, classes: tuple[str, ...], split: str) -> list[str]:
        """Name the classes of a list of which a split has no image, where it has class folders at all."""
        one = one_spelling(self.classes, classes)
        known = {one.get(name, name) for name, paths in self.classes.items() if paths}
        missing = [name for name in classes if known and name not in known]
        have, keep = ("has", "It keeps its number") if len(missing) == 1 else ("have", "They keep their numbers")
        of_all = f"{len(missing):,} of {counted(len(classes), 'class', 'classes')} {have} no image"
        note = f"{of_all}{f' in {split}' if split else ''}: {some(missing)}. {keep}, as with ImageFolder's allow_empty=True."
        return [note] if missing else []

    def inputs(self, root: Path, classes: tuple[str, ...] | None) -> Inputs:
        """Order the samples as ImageFolder does; images beside the class folders have no class and are refused.

        Args:
            classes: the class list; None: folders are no classes, all targets are -1.
        """
        found = Inputs(root, classes or (), ignored=self.ignored)
        if texts := self.left_out_in_words():
            found.notes.append(f"left out: {texts}.")
        nested = self.has_classes() and classes is not None
        index = {name: i for i, name in enumerate(classes or ())}
        one = one_spelling(self.classes, classes or ()) if nested else {}
        found.notes += spelling_note(one)
        for path in self.top:
            # a sub-folder with an image's name is a class in a tree of classes
            if nested and path in self.classes:
                continue
            found.add(path, -1, self.refusals.get(path, STRAY if nested else None))
        for name in sorted(self.classes):
            for path in self.classes[name]:
                found.add(path, index.get(one.get(name, name), -1), self.refusals.get(path))
        return found
