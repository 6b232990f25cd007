"""Folders of images on a disk, listed in ImageFolder's order; opens no image.

Symbolic links are followed, but never twice into one folder: links among n folders make up to n! paths.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.names import NameFilter, is_image, is_junk
from packer.inputs.samples import Inputs
from packer.inputs.splits import split_folders
from packer.sources.roots import check_system, files_below
from reader.format.manifest import MANIFEST


def list_folder(images: Path) -> dict[str, Inputs]:
    """List a folder of class folders, a folder of images, or a folder of train, val, test folders of those.

    Returns: split name ("" without splits) -> Inputs.

    Raises:
        ScanError: images does not exist, cannot be read, or a split holds no image.
    """
    name_filter = NameFilter()
    folders, files = _children(images, "", name_filter)
    if MANIFEST in files and "_tensordict" in folders:
        raise ScanError(
            f"{images} is a store, packed already. Expected a folder of images; pack subset {images} OUT copies rows of a store."
        )
    splits = split_folders(folders, lambda name: any(map(is_image, files_below(images / name))))
    found = {split: Inputs(images / split) for split in splits}
    for split, inputs in found.items():
        for name, refusal in _walk(images / split, name_filter, _identity(images)):
            inputs.add(name, refusal)
        if split and not inputs.paths:
            raise ScanError(f"{images}/{split} holds no image. Fill it or remove it: every split becomes a store.")
    first = next(iter(found.values()))
    if beside := sorted({*folders, *filter(is_image, files)}.difference(splits)) if splits != [""] else []:
        first.notes.append(f"left out beside the splits: {', '.join(beside)}.")
    name_filter.report(first, images)
    return found


def _children(root: Path, folder: str, name_filter: NameFilter) -> tuple[list[str], list[str]]:
    """List the sub-folders (links last) and the files of root/folder, without those of systems."""
    folders, links, files = list[str](), list[str](), list[str]()
    try:
        with os.scandir(root / folder) as entries:
            for entry in entries:
                if _is_folder(entry):
                    if is_junk(entry.name):
                        name_filter.left_out.add(os.path.join(folder, entry.name))
                    else:
                        (links if entry.is_symlink() else folders).append(entry.name)
                else:
                    files.append(entry.name)
    except OSError as e:
        if not folder and isinstance(e, FileNotFoundError):
            raise ScanError(f"{root} does not exist. Expected a folder of images, a table, a tar, or a zip.") from None
        raise _unlisted(root / folder, e) from None
    name_filter.count(len(folders) + len(links) + len(files))
    return sorted(folders) + sorted(links), sorted(files)


def _walk(root: Path, name_filter: NameFilter, above: tuple[int, int]) -> Iterator[tuple[str, str | None]]:
    """Yield (path, None) of the images below root in ImageFolder's order, or (folder, reason) of a folder that is left out.

    above: the folder of all splits, to which a link may lead back.
    """
    folders, files = _children(root, "", name_filter)
    yield from ((name, None) for name in files if name_filter.takes(name))
    for top in folders:
        found, seen, pending = list[tuple[str, str, str | None]](), {above, _identity(root)}, [top]
        while pending:
            folder = pending.pop()
            parent, _, last = folder.rpartition("/")
            if (identity := _identity(root / folder)) in seen:
                found.append((parent, last, "by a symbolic link it is a folder that is listed already"))
                continue
            seen.add(identity)
            children, files = _children(root, folder, name_filter)
            found += [(folder, file, None) for file in files if name_filter.takes(file)]
            pending += [f"{folder}/{name}" for name in reversed(children)]
        for parent, name, refusal in sorted(found, key=lambda one: one[:2]):
            yield f"{parent}/{name}" if parent else name, refusal


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as e:
        check_system(entry.path, e)
        return False  # a link to itself: reading it will raise the error


def _identity(folder: Path) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError as e:
        raise _unlisted(folder, e) from None
    return status.st_dev, status.st_ino


def _unlisted(folder: Path, error: OSError) -> ScanError:
    """Return the error of a folder that cannot be listed: leaving it out would renumber the classes after it."""
    check_system(str(folder), error)
    return ScanError(f"{folder} cannot be listed: {error.strerror}. Allow it, or move that folder away.")
