"""Folders of images on a disk, listed as ImageFolder lists them; opens no image.

Symbolic links are followed; but not into a folder above them, and not twice into the same folder in one class: links among n
folders make up to n! paths. Hidden folders and those that systems make (see `splits.py`), which torchvision takes for classes,
are left out and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk, is_junk_file, split_folders
from packer.inputs.tree import IMAGE_SUFFIXES, FileCounter, Tree, inputs_of
from packer.sources.roots import NOWHERE, check_listed
from reader.format.manifest import MANIFEST

# Which folder it is, whatever its name: device and inode.
_Identity = tuple[int, int]


def scan_folder(
    images: Path, classes: tuple[str, ...] | None, count: FileCounter, *, are_classes: bool = True
) -> dict[str, Inputs]:
    """List a folder of class folders, a folder of images, or a folder of train, val, test folders of those.

    Args:
        are_classes: whether the folders are classes; else all targets are -1.

    Returns: split name ("" where there are no splits) -> Inputs; all splits share one class list.

    Raises:
        ScanError: images does not exist, cannot be read, or holds no image.
    """
    folders, files = _children(images)
    if MANIFEST in files and "_tensordict" in folders:
        raise ScanError(
            f"{images} is a store, packed already. Expected a folder of images; pack subset {images} OUT copies rows of a store."
        )
    splits = split_folders(folders, lambda name: _holds_image(images / name))
    try:
        above = _identity(images)
        trees = {split: _list_folder(images / split, count, above) for split in splits}
    except OSError as e:
        NOWHERE.check(str(e.filename), e)
        raise
    if splits != [""]:
        next(iter(trees.values())).leave_out_beside(splits, folders, files)
    return inputs_of(trees, images, classes, count, are_classes=are_classes)


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
        raise ScanError(f"{images} does not exist. Expected a folder of images, a table, a tar, or a zip.") from None
    except NotADirectoryError:
        raise ScanError(f"{images} is a file. Expected a folder of images; its parent folder can be packed.") from None
    except OSError as e:
        NOWHERE.check(str(images), e)
        raise ScanError(f"{images} cannot be listed: {e.strerror}.") from None


def _identity(folder: Path) -> _Identity:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def _list_folder(root: Path, count: FileCounter, above: _Identity) -> Tree:
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


def _walk(root: Path, name: str, roots: tuple[_Identity, ...], tree: Tree, count: FileCounter) -> Iterator[str]:
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
    """Say whether an image is below a folder; links are not followed, nor folders that are left out."""
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
