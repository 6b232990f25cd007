"""The paths of a list: which line has each, and where they are below one root, so that no store holds a path of this machine.

Asks the file system what a path may mean, and opens nothing.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.paths import Paths
from packer.inputs.samples import Column, Inputs
from packer.inputs.splits import is_junk_file, junk_above
from packer.option_names import Option
from packer.options import InputOptions
from packer.progress import followed
from reader.format.fields import Json
from reader.format.filesystem import absolute_path, plain_path


@dataclass
class Listing:
    """What a list says, as it says it: paths, the line of each, and columns of cells."""

    name: str
    # what a number counts
    unit: str = "line"
    paths: Paths = field(default_factory=Paths)
    lines: array[int] = field(default_factory=lambda: array("q"))
    columns: dict[str, list[Json]] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """Name the line of an input."""
        return f"{self.unit} {self.lines[index]} of {self.name}"

    def add(self, line: int, path: object) -> None:
        """Append one input; raises ScanError where path cannot be the name of a file."""
        self.lines.append(line)
        if not isinstance(path, str) or not path:
            raise ScanError(f"{self.where(-1)} has {repr(path)[:80]} as path. Expected the path of an image.")
        try:
            if b"\0" in os.fsencode(path):
                raise ValueError
        except ValueError:
            raise ScanError(f"{self.where(-1)} has {path!r} as path, which no file can be called.") from None
        self.paths.append(path)


def locate_inputs(listing: Listing, start: Path, options: InputOptions, *, is_found: bool) -> Inputs:
    """Turn paths as listed into paths below one root, so that no store holds a path of this machine.

    Args:
        start: what relative paths start from, unless --root says it; of a table also the root.
        is_found: the list is one that `find` writes: folders of other lines are no inputs, and without --root the root is the
            last folder common to all.
    """
    suffix = options.extension or ""
    if suffix:
        listing.paths = Paths(path if path.endswith(suffix) else path + suffix for path in listing.paths)
    notes = _slashed(listing, start, options)
    base = _base(listing, start, options)
    first, has_absolute = listing.paths[0], any(map(os.path.isabs, listing.paths))
    absolute, folders = _absolute(listing.paths, base)
    listing.paths = Paths()
    if is_found:
        absolute, found = _without_folders(listing, absolute, folders)
        notes += found
        folders = {_folder(path) for path in absolute} if found else folders
    if options.root is not None and not has_absolute:
        _check_base(listing.name, first, base, folders, options.root)
    root = plain_path(start) if options.root is None else root_of(options)
    inside = os.path.join(root, "")
    outside = None
    if not all(folder.startswith(inside) for folder in folders):
        outside = next(i for i, path in enumerate(absolute) if not path.startswith(inside))
    if outside is not None or (is_found and options.root is None):
        if options.root is not None:
            notes.append(
                f"{listing.where(outside or 0)} is outside of {Option('root', options.root)}: paths are relative to the last"
                " folder that holds all images."
            )
        root = _common_folder(folders)
    if is_found:
        absolute, left_out = _without_junk(listing, absolute, folders, root)
        notes += left_out
        # of what is left, as if the others had not been listed
        if left_out and absolute and (outside is not None or options.root is None):
            root = _common_folder({_folder(path) for path in absolute})
    if not absolute:
        raise ScanError(f"{listing.name} names no image: {' '.join(notes)}")
    prefix = len(os.path.join(root, ""))
    paths = Paths(path[prefix:].replace(os.sep, "/") for path in _followed(absolute))
    inputs = Inputs(Path(root), paths=paths, lines=Column("int64", values=listing.lines))
    inputs.notes += notes
    return inputs


def _followed(paths: Paths) -> Iterator[str]:
    """Yield paths, and report how many of them are located."""
    return followed("locate", paths, len(paths))


def _absolute(paths: Paths, base: str) -> tuple[Paths, set[str]]:
    """Make paths absolute and plain, from a base on; returns them, and the folders that they are in."""
    found, odd, known = Paths(), set[str](), dict[str, str]()
    for path in _followed(paths):
        name = path[path.rfind(os.sep) + 1 :]
        if name in ("", ".", "..") or (os.altsep and os.altsep in name):
            found.append(plain_path(os.path.join(base, path)))
            odd.add(_folder(found[-1]))
            continue
        # files of one folder become plain alike: plain_path takes longer than all else
        head = path[: len(path) - len(name)]
        if (folder := known.get(head)) is None:
            folder = known[head] = _folder(plain_path(os.path.join(base, head, name)))
        found.append(folder + name)
    return found, odd.union(known.values())


def _folder(path: str) -> str:
    """Return the folder of a plain absolute path, with a separator behind it."""
    return path[: path.rfind(os.sep) + 1]


def root_of(options: InputOptions) -> str:
    """Return --root as an absolute path."""
    root = absolute_path(options.root or "")
    if not os.path.isdir(root):
        raise ScanError(f"{Option('root', options.root)} is not a folder.")
    return root


def _base(listing: Listing, start: Path, options: InputOptions) -> str:
    """Return what relative paths start from: --root, unless they begin with it already, as `find ROOT` writes them.

    Raises:
        ScanError: the first path is that of a file either way.
    """
    if options.root is None:
        return str(start)
    root, here = root_of(options), os.getcwd()
    inside = os.path.join(root, "")
    relative = (path for path in _followed(listing.paths) if not os.path.isabs(path))
    if root == here or not all(
        os.path.join(plain_path(os.path.join(here, path)), "").startswith(inside) for path in relative
    ):
        return root
    relative = (path for path in listing.paths if not os.path.isabs(path))
    first = next((path for path in relative if plain_path(os.path.join(here, path)) != root), "")
    is_below, is_here = (os.path.exists(os.path.join(base, first)) for base in (root, here))
    if first and is_below and is_here:
        raise ScanError(
            f"{first!r} of {listing.name} is a file both in the current folder and in {Option('root', options.root)}. Give"
            " absolute paths."
        )
    return root if is_below else here


def _check_base(name: str, first: str, base: str, folders: set[str], root: object) -> None:
    """Raise ScanError where --root is that of other paths: none of the folders that these name is below it."""
    folder = _common_folder(folders)
    if not os.path.isdir(folder):
        raise ScanError(
            f"the paths of {name}, {first!r} first, start from {base}, and there is no folder {folder}. Give"
            f" the {Option('root')} that they start from, or one that they begin with."
        )


def _slashed(listing: Listing, start: Path, options: InputOptions) -> list[str]:
    """Take the backslashes of a list made on Windows as slashes, where that is how the first such file is found."""
    first = next((path for path in listing.paths if "\\" in path), None)
    if first is None:
        return []
    bases = [str(start), os.getcwd(), *([] if options.root is None else [root_of(options)])]
    slashed = first.replace("\\", "/")
    if any(os.path.lexists(os.path.join(base, first)) for base in bases):
        return []
    if not any(os.path.exists(os.path.join(base, slashed)) for base in bases):
        return []
    listing.paths = Paths(path.replace("\\", "/") for path in listing.paths)
    return [f"the paths of {listing.name} are separated by backslashes, which are taken as slashes."]


def _without_folders(listing: Listing, absolute: Paths, folders: set[str]) -> tuple[Paths, list[str]]:
    """Skip lines that name a folder of other lines, as `find` without -type f writes them."""
    above: set[str] = set()
    for path in folders:
        while (path := os.path.dirname(path)) not in above:
            above.add(path)
    is_folder = bytearray(path in above for path in _followed(absolute))
    return _without(listing, absolute, is_folder, "name folders of other lines")


def _without_junk(listing: Listing, absolute: Paths, folders: set[str], root: str) -> tuple[Paths, list[str]]:
    """Skip what is in hidden folders and in those that systems make, as in a folder that is packed."""
    prefix = len(os.path.join(root, ""))
    junk = {folder for folder in folders if junk_above(folder[prefix:])}
    is_junk = bytearray(_folder(path) in junk or is_junk_file(os.path.basename(path)) for path in _followed(absolute))
    return _without(listing, absolute, is_junk, "name files of hidden folders, or of systems")


def _without(listing: Listing, absolute: Paths, is_odd: bytearray, what: str) -> tuple[Paths, list[str]]:
    """Skip some lines, and report how many."""
    if not any(is_odd):
        return absolute, []
    first, is_left = listing.lines[is_odd.index(True)], [not odd for odd in is_odd]
    note = f"{sum(is_odd)} lines of {listing.name} {what}, line {first} first, and are skipped."
    listing.lines = array("q", itertools.compress(listing.lines, is_left))
    return Paths(itertools.compress(absolute, is_left)), [note]


def _common_folder(folders: set[str]) -> str:
    """Return the last folder that holds all of these: what the first and the last of them in order have in common."""
    return os.path.commonpath([min(folders), max(folders)])
