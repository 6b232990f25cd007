"""The paths of a list: which line has each, and where they are below one root, so that no store holds a path of this machine.

Asks the file system what a path may mean, and opens nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.samples import Column, Inputs
from packer.inputs.splits import is_junk_file, junk_above
from packer.options import InputOptions
from reader.format.fields import Json
from reader.format.filesystem import absolute_path, plain_path

_NAMED = 3


@dataclass
class Listing:
    """What a list says, as it says it: paths, the line of each, and columns of cells."""

    name: str
    # what a number counts
    unit: str = "line"
    paths: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
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
    listing.paths = [path if path.endswith(suffix) else path + suffix for path in listing.paths]
    notes = _slashed(listing, start, options)
    base = _base(listing, start, options)
    absolute = [plain_path(os.path.join(base, path)) for path in listing.paths]
    if is_found:
        absolute, found = _without_folders(listing, absolute)
        notes += found
    _check_base(listing, base, absolute, options)
    root = plain_path(start) if options.root is None else root_of(options)
    outside = next((i for i, path in enumerate(absolute) if not path.startswith(os.path.join(root, ""))), None)
    if outside is not None or (is_found and options.root is None):
        if options.root is not None:
            notes.append(
                f"{listing.where(outside or 0)} is outside of --root {options.root}: paths are relative to the last folder"
                " that holds all images."
            )
        root = _common_folder(absolute)
    if is_found:
        absolute, left_out = _without_junk(listing, absolute, root)
        notes += left_out
        # of what is left, as if the others had not been listed
        root = (
            _common_folder(absolute)
            if left_out and absolute and (outside is not None or options.root is None)
            else root
        )
    if not absolute:
        raise ScanError(f"{listing.name} names no image: {' '.join(notes)}")
    prefix = len(os.path.join(root, ""))
    paths = [path[prefix:].replace(os.sep, "/") for path in absolute]
    inputs = Inputs(Path(root), paths=paths, lines=Column.of("int64", listing.lines))
    inputs.notes += notes + _duplicates(inputs, listing)
    return inputs


def root_of(options: InputOptions) -> str:
    """Return --root as an absolute path."""
    root = absolute_path(options.root or "")
    if not os.path.isdir(root):
        raise ScanError(f"--root {options.root} is not a folder.")
    return root


def _base(listing: Listing, start: Path, options: InputOptions) -> str:
    """Return what relative paths start from: --root, unless they begin with it already, as `find ROOT` writes them.

    Raises:
        ScanError: the first path is that of a file either way.
    """
    if options.root is None:
        return str(start)
    root, here = root_of(options), os.getcwd()
    relative = [path for path in listing.paths if not os.path.isabs(path)]
    inside = os.path.join(root, "")
    if root == here or not all(
        os.path.join(plain_path(os.path.join(here, path)), "").startswith(inside) for path in relative
    ):
        return root
    first = next((path for path in relative if plain_path(os.path.join(here, path)) != root), "")
    is_below, is_here = (os.path.exists(os.path.join(base, first)) for base in (root, here))
    if first and is_below and is_here:
        raise ScanError(
            f"{first!r} of {listing.name} is a file both in the current folder and in --root {options.root}. Give absolute paths."
        )
    return root if is_below else here


def _check_base(listing: Listing, base: str, absolute: list[str], options: InputOptions) -> None:
    """Raise ScanError where --root is that of other paths: none of the folders that these name is below it."""
    if options.root is None or any(map(os.path.isabs, listing.paths)):
        return
    folder = _common_folder(absolute)
    if not os.path.isdir(folder):
        raise ScanError(
            f"the paths of {listing.name}, {listing.paths[0]!r} first, start from {base}, and there is no folder {folder}. Give"
            " the --root that they start from, or one that they begin with."
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
    listing.paths = [path.replace("\\", "/") for path in listing.paths]
    return [f"the paths of {listing.name} are separated by backslashes, which are taken as slashes."]


def _without_folders(listing: Listing, absolute: list[str]) -> tuple[list[str], list[str]]:
    """Skip lines that name a folder of other lines, as `find` without -type f writes them."""
    folders: set[str] = set()
    for path in absolute:
        while (path := os.path.dirname(path)) not in folders:
            folders.add(path)
    return _without(listing, absolute, [path in folders for path in absolute], "name folders of other lines")


def _without_junk(listing: Listing, absolute: list[str], root: str) -> tuple[list[str], list[str]]:
    """Skip what is in hidden folders and in those that systems make, as in a folder that is packed."""
    prefix = len(os.path.join(root, ""))
    is_junk = [bool(junk_above(path[prefix:])) or is_junk_file(os.path.basename(path)) for path in absolute]
    return _without(listing, absolute, is_junk, "name files of hidden folders, or of systems")


def _without(listing: Listing, absolute: list[str], is_odd: list[bool], what: str) -> tuple[list[str], list[str]]:
    """Skip some lines, and report how many."""
    if not any(is_odd):
        return absolute, []
    others = [index for index, odd in enumerate(is_odd) if not odd]
    first = listing.lines[is_odd.index(True)]
    note = f"{sum(is_odd)} lines of {listing.name} {what}, line {first} first, and are skipped."
    listing.lines = [listing.lines[index] for index in others]
    return [absolute[index] for index in others], [note]


def _common_folder(paths: list[str]) -> str:
    """Return the last folder that holds all paths: what the first and the last of them in order have in common."""
    folders = {os.path.join(os.path.dirname(path), "") for path in paths}
    return os.path.commonpath([min(folders), max(folders)])


def _duplicates(inputs: Inputs, listing: Listing) -> list[str]:
    """Name files that are listed more than once: each is packed as often, which may be meant, to weigh it more."""
    if len(set(inputs.paths)) == len(inputs.paths):
        return []
    first: dict[str, int] = {}
    again = [i for i, path in enumerate(inputs.paths) if first.setdefault(path, i) != i]
    named = [
        f"line {listing.lines[i]} names {inputs.paths[i]!r} as line {listing.lines[first[inputs.paths[i]]]} does"
        for i in again[:_NAMED]
    ]
    more = f" and {len(again) - len(named)} more" if len(again) > len(named) else ""
    what = f"{len(again)} of {len(inputs)} inputs of {listing.name} are duplicates, packed as often as they are listed"
    return [f"{what}: {'; '.join(named)}{more}."]
