"""Folders of images: which inputs there are, in which order, with which target. Lists; opens no image.

Classes, order and targets of class folders are torchvision ImageFolder's (0.28, `datasets/folder.py`): classes are the
sorted names of the sub-folders, files are sorted by folder, then by name, symbolic links are followed; but not into a folder
above them, and not twice into the same folder in one class: links among n folders make up to n! paths. Hidden folders and those
that systems make (see `splits.py`), which torchvision takes for classes, are left out and counted.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter as CounterOf
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.class_lists import one_spelling, spelling_note
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk, is_junk_file, junk_above, split_folders
from packer.pixels.formats.plugins import SUFFIXES
from packer.sources.roots import NOWHERE, check_listed
from packer.text import counted

# torchvision's list, and what else holds photographs under another name
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    *(".gif", ".jfif", ".jpe", ".mpo"),
    # so that none is passed over in silence: where nothing can decode them they are rejected, with what to install
    *itertools.chain.from_iterable(SUFFIXES.values()),
)
# of an image that no class folder holds, where others have one
STRAY = "it lies beside the class folders and so has no class; move it into one"
_PROGRESS_EVERY = 10_000

Listed = Callable[[int], None]
# Which folder it is, whatever its name: device and inode.
_Identity = tuple[int, int]


def scan_folder(
    images: Path, classes: tuple[str, ...] | None, count: Counter, *, are_classes: bool = True
) -> dict[str, Inputs]:
    """List a folder of class folders, a folder of images, or a folder of train, val, test folders of those.

    Args:
        are_classes: whether the folders are classes; else all targets are -1.

    Returns: split name ("" where there are no splits) -> Inputs; all splits share one class list.

    Raises:
        ScanError: images does not exist, cannot be read, or holds no image.
    """
    folders, files = _children(images)
    parts = split_folders(folders, lambda name: _holds_image(images / name))
    try:
        above = _identity(images)
        trees = {split: _list_folder(images / split, count, above) for split in parts}
    except OSError as e:
        NOWHERE.check(str(e.filename), e)
        raise
    if parts != [""]:
        next(iter(trees.values())).leave_out_beside(parts, folders, files)
    return inputs_of(trees, images, classes, count, are_classes=are_classes)


def named_trees(names: Iterable[str]) -> dict[str, Tree]:
    """Make the tree of each split of names that are known without a folder to list: a zip's members, objects below a URL."""
    every = list(names)
    folders = {name.partition("/")[0] for name in every if "/" in name}
    with_images = {
        name.partition("/")[0] for name in every if name.lower().endswith(IMAGE_SUFFIXES) and not junk_above(name)
    }
    parts = split_folders(folders, with_images.__contains__)
    if parts == [""]:
        return {"": Tree.of_names(every)}
    trees = {
        split: Tree.of_names(name[len(split) + 1 :] for name in every if name.startswith(f"{split}/"))
        for split in parts
    }
    next(iter(trees.values())).leave_out_beside(parts, folders, [name for name in every if "/" not in name])
    return trees


def inputs_of(
    trees: dict[str, Tree],
    images: Path | str,
    classes: tuple[str, ...] | None,
    count: Counter,
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
    layout = _layout(trees, imposed)
    for inputs in found.values():
        inputs.layout = layout
    return found


def _layout(trees: dict[str, Tree], classes: tuple[str, ...] | None) -> str:
    """Say what the folders were taken for: "2 splits (train, val), 1,000 classes"."""
    said = [] if "" in trees else [f"{counted(len(trees), 'split', 'splits')} ({', '.join(trees)})"]
    if classes is None:
        said.append("classes from --boxes, not from folders")
    elif any(tree.has_classes() for tree in trees.values()):
        said.append(counted(len(classes), "class", "classes"))
        deeper = sum(
            path.count("/") > 1 for tree in trees.values() for paths in tree.classes.values() for path in paths
        )
        if deeper:
            said.append(f"{counted(deeper, 'image', 'images')} in folders below those of the classes")
    else:
        said.append("no class folders")
    return ", ".join(said)


def check_images(trees: dict[str, Tree], images: Path | str, count: Counter) -> None:
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
        raise ScanError(f"{images} has the class {unknown[0]!r} that --classes does not list ({len(imposed)} classes).")
    return imposed


class Counter:
    """Counts files seen and tells a listener every now and then."""

    def __init__(self, listed: Listed | None) -> None:
        self.seen = 0
        self._listed = listed

    def add(self, count: int) -> None:
        """Count entries that were listed, and tell every so often."""
        before, self.seen = self.seen, self.seen + count
        if self._listed is not None and before // _PROGRESS_EVERY != self.seen // _PROGRESS_EVERY:
            self._listed(self.seen)


@dataclass
class Tree:
    """One folder, listed: images straight inside it, and those of each sub-folder, as paths relative to it."""

    top: list[str] = field(default_factory=list)
    classes: dict[str, list[str]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    ignored: int = 0
    # folders that were not looked into though they may hold images: name -> how many have it; and files likewise
    left_out: CounterOf[str] = field(default_factory=CounterOf)
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
        """Count what lies beside the splits, and belongs to none of them."""
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
        said = [
            f"{count:,} folders {name}" if count > 1 else f"the folder {name}" for name, count in self.left_out.items()
        ]
        if self.images_beside:
            said.append(counted(self.images_beside, "image", "images") + " beside the splits")
        if self.junk_files:
            said.append(counted(self.junk_files, "file", "files") + " named ._*")
        return ", ".join(said)

    def has_image(self) -> bool:
        """Whether anything could be packed: an image at the top that is not refused, or one in a class folder."""
        return any(p not in self.refusals for p in self.top) or self.has_classes()

    def has_classes(self) -> bool:
        """Whether a class folder holds an image; empty ones do not count."""
        return any(self.classes.values())

    def inputs(self, root: Path, classes: tuple[str, ...] | None) -> Inputs:
        """Order the samples as ImageFolder does; images beside the class folders have no class and are refused.

        Args:
            classes: the class list; None: folders are no classes, all targets are -1.
        """
        found = Inputs(root, classes or (), ignored=self.ignored)
        if said := self.left_out_in_words():
            found.notes.append(f"left out: {said}.")
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


def _children(images: Path) -> tuple[list[str], list[str]]:
    """Name the sub-folders and the files of IMAGES, or say why it cannot be packed."""
    folders: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(images) as entries:
            for entry in entries:
                (folders if _is_folder(entry) else files).append(entry.name)
        return folders, files
    except FileNotFoundError:
        raise ScanError(f"{images} does not exist. Expected a folder of images, a manifest, a tar, or a zip.") from None
    except NotADirectoryError:
        raise ScanError(f"{images} is a file. Expected a folder of images; its parent folder can be packed.") from None
    except OSError as e:
        NOWHERE.check(str(images), e)
        raise ScanError(f"{images} cannot be listed: {e.strerror}.") from None


def _identity(folder: Path) -> _Identity:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _list_folder(root: Path, count: Counter, above: _Identity) -> Tree:
    tree, roots = Tree(), (above, _identity(root))
    with os.scandir(root) as entries:
        top = sorted(entries, key=lambda entry: entry.name)
    count.add(len(top))
    for entry in top:
        is_image = entry.name.lower().endswith(IMAGE_SUFFIXES)
        if _is_left_out(entry, tree):
            continue
        if _is_folder(entry):
            tree.classes[entry.name] = list(_walk(root, entry.name, roots, tree, count))
            if is_image:
                tree.top.append(entry.name)
                tree.refusals[entry.name] = "it is a directory, not an image"
        elif is_image:
            tree.top.append(entry.name)
        else:
            tree.ignored += 1
    return tree


def _walk(root: Path, name: str, roots: tuple[_Identity, ...], tree: Tree, count: Counter) -> Iterator[str]:
    """Yield the images below root/name as ImageFolder orders them: by folder path, then by file name."""
    found: list[tuple[str, str]] = []
    pending, walked = _Pending(name, roots), dict[_Identity, str]()
    while pending:
        folder, above, by_link = pending.pop()
        parent, _, last = folder.rpartition("/")
        try:
            identity = _identity(root / folder)
            if identity in above:
                raise OSError(0, "a symbolic link to a folder above it (a loop)")
            if by_link and identity in walked:
                raise OSError(0, f"by symbolic links it is {walked[identity]}, which is listed already")
            files, children, links = _list_one(root, folder, tree)
        except OSError as e:
            NOWHERE.check(str(root / folder), e)
            tree.refusals[folder] = f"the folder cannot be listed: {e.strerror}"
            found.append((parent, last))
            continue
        walked.setdefault(identity, folder)
        count.add(len(files) + len(children) + len(links))
        found += [(folder, file) for file in files]
        pending.add(folder, children, links, (*above, identity), by_link)
    # os.walk joins with the system's separator; sorting by it keeps ImageFolder's order
    for folder, file in sorted(found, key=lambda pair: (pair[0].replace("/", os.sep), pair[1])):
        yield f"{folder}/{file}" if folder else file


class _Pending:
    """Folders of a class still to be listed: (path, identities above it, whether a link leads there).

    What a link leads to comes last, so that a folder is listed under its own name where it has one in the class.
    """

    def __init__(self, name: str, above: tuple[_Identity, ...]) -> None:
        self._own: list[tuple[str, tuple[_Identity, ...], bool]] = [(name, above, False)]
        self._linked: list[tuple[str, tuple[_Identity, ...], bool]] = []

    def __bool__(self) -> bool:
        return bool(self._own or self._linked)

    def pop(self) -> tuple[str, tuple[_Identity, ...], bool]:
        """Take the next folder; those below links wait until no other is left."""
        return (self._own or self._linked).pop()

    def add(
        self, folder: str, children: list[str], links: list[str], above: tuple[_Identity, ...], by_link: bool
    ) -> None:
        """Add sub-folders, in an order that the file system has no say in."""
        own = self._linked if by_link else self._own
        self._linked += [(f"{folder}/{name}", above, True) for name in sorted(links, reverse=True)]
        own += [(f"{folder}/{name}", above, by_link) for name in sorted(children, reverse=True)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as e:
        NOWHERE.check(entry.path, e)
        return False  # a link that leads back to itself: reading it will say so


def _holds_image(folder: Path) -> bool:
    """Say whether an image lies below a folder; links are not followed, nor folders that are left out."""
    for _, folders, files in os.walk(folder, onerror=check_listed):
        if any(name.lower().endswith(IMAGE_SUFFIXES) and not is_junk_file(name) for name in files):
            return True
        folders[:] = sorted(name for name in folders if not is_junk(name))
    return False


def _is_left_out(entry: os.DirEntry[str], tree: Tree) -> bool:
    """Say whether an entry is never looked into; counts it."""
    if is_junk_file(entry.name) and not _is_folder(entry):
        tree.junk_files += 1
        return True
    if is_junk(entry.name) and _is_folder(entry):
        tree.left_out[entry.name] += 1
        return True
    return False


def _list_one(root: Path, folder: str, tree: Tree) -> tuple[list[str], list[str], list[str]]:
    """List one folder: names that look like images (a directory among them is refused), sub-folders, and links to folders."""
    files: list[str] = []
    children: list[str] = []
    links: list[str] = []
    with os.scandir(root / folder) as entries:
        for entry in entries:
            if _is_left_out(entry, tree):
                continue
            is_image, is_folder = entry.name.lower().endswith(IMAGE_SUFFIXES), _is_folder(entry)
            if is_folder:
                (links if entry.is_symlink() else children).append(entry.name)
            if is_image:
                files.append(entry.name)
            if is_image and is_folder:
                tree.refusals[f"{folder}/{entry.name}"] = "it is a directory, not an image"
            tree.ignored += not is_image and not is_folder
    return files, children, links
