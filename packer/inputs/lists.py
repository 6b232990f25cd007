"""Lists of paths on standard input; the paths of lists and tables, made relative to one root. No image is opened.

No store holds a path of this machine: paths become relative to --root, or to the deepest folder that holds all.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Sequence
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.names import NameFilter, divided, folders_of, is_image
from packer.inputs.samples import Column, Inputs, Paths
from packer.option_names import Option
from packer.options import InputOptions
from reader.format.filesystem import absolute_path, plain_path


def read_list(images: str, options: InputOptions) -> dict[str, Inputs]:
    """Read paths from standard input, one a line ("-") or NUL-separated ("-0"), in their order; returns split -> Inputs.

    Raises:
        ScanError: the input, or a line of it, is empty.
    """
    if os.isatty(0):
        raise ScanError(
            f"{images} reads paths from standard input, which is a terminal. Expected: find ... | pack {images} OUT"
        )
    name_filter, names = NameFilter(), Paths()
    with open(0, "rb", closefd=False) as file:
        data = file.read() if images == "-0" else b""
        for number, line in enumerate(data.removesuffix(b"\0").split(b"\0") if data else file, start=1):
            name = line if data else line.removesuffix(b"\n").removesuffix(b"\r")
            names.append(check_path(os.fsdecode(name), f"line {number} of standard input"))
            name_filter.count()
    lines = array("q", range(1, len(names) + 1))
    inputs, _ = listed(names, lines, Path.cwd(), options, name_filter, "line", "standard input")
    if options.root is None and (common := os.path.commonpath(folders_of(inputs))):
        inputs = inputs.chosen(range(len(inputs)), below=len(common) + 1)
        inputs.root /= common
    found, _ = divided(inputs, is_wrapped=False)
    for split, one in found.items():
        one.root = inputs.root / split
    return found


def check_path(path: object, where: str) -> str:
    """Return a listed path; raises ScanError if no file can have it."""
    try:
        if isinstance(path, str) and b"\0" not in os.fsencode(path) and path.rpartition("/")[2] not in ("", ".", ".."):
            return path
    except ValueError:  # an escape of half a character in a .jsonl
        pass
    raise ScanError(f"{where} has {str(path)[:80]!a} as path. Expected the path of an image.")


def listed(
    names: Paths,
    lines: array[int],
    start: Path,
    options: InputOptions,
    name_filter: NameFilter,
    unit: str,
    images: str,
) -> tuple[Inputs, Sequence[int]]:
    """Make inputs from listed paths; returns them, and the indices of those paths, as only images become inputs.

    Args:
        lines: the line number of each path.
        start: the folder that relative paths start from, without --root. It is the root if it holds all paths, else the
            deepest folder that does.
        unit: "line" or "row", for messages; images: the name of the list.

    Raises:
        ScanError: --root is no folder, a path is outside of it, or no path is that of an image.
    """
    taken = _taken(names, lines, options, unit, images)
    if len(taken) < len(names):
        name_filter.ignored += len(names) - len(taken)
        names = Paths(map(names.__getitem__, taken))
    root = absolute_path(start if options.root is None else options.root)
    if not os.path.isdir(root):
        raise ScanError(f"{Option('root', options.root)} is not a folder.")
    inside = os.path.join(root, "")
    folders = _folders(names, root)
    if not all(folder.startswith(inside) for folder in folders.values()):
        if options.root is not None:
            outside = next(i for i, name in enumerate(names) if not folders[_folder_of(name)].startswith(inside))
            raise ScanError(
                f"{unit} {lines[taken[outside]]} of {images} names {names[outside]!r}, which is not in"
                f" {Option('root', options.root)}. Give a folder that holds all images."
            )
        inside = os.path.join(os.path.commonpath([min(folders.values()), max(folders.values())]), "")
    below = {key: folder[len(inside) :] for key, folder in folders.items()}
    paths = Paths(f"{below[_folder_of(name)]}{_file_of(name, options.extension or '')}" for name in names)
    inputs = Inputs(Path(inside), paths=paths, lines=Column("int64", values=lines).chosen(taken))
    passed = array("q", (index for index, path in enumerate(paths) if name_filter.passes(path)))
    if len(passed) < len(paths):
        inputs, taken = inputs.chosen(passed), array("q", map(taken.__getitem__, passed))
    inputs.targets = Column("int64", values=array("q", [-1]) * len(taken))
    name_filter.report(inputs, images)
    return inputs, taken


def _taken(names: Paths, lines: array[int], options: InputOptions, unit: str, images: str) -> array[int]:
    """Return the indices of paths with an image suffix; raises ScanError if there is none."""
    if not names:
        raise ScanError(f"{images} names no image. Expected the path of one on each line.")
    taken = array("q", (index for index, name in enumerate(names) if options.extension or is_image(name)))
    if not taken and (path := next(filter(is_image, re.split(r"[\s,;]", names[0])), "")):
        raise ScanError(
            f"the lines of {images} are taken for paths, and {names[0]!r} looks like the path {path!r} and a label."
            " Give labels in a .csv file whose first line is path,label."
        )
    if not taken:
        raise ScanError(
            f"{unit} {lines[0]} of {images} has {names[0]!r}, and no line has the path of an image. Expected names that end in"
            f" .jpg or the like; {Option('extension')} adds a missing suffix."
        )
    return taken


def _folders(names: Paths, root: str) -> dict[str, str]:
    """Map listed folders to absolute ones without dots, each with a slash at its end."""
    found = dict[str, str]()
    for name in names:
        # once per folder: plain_path takes longer than all other steps
        if (folder := _folder_of(name)) not in found:
            found[folder] = os.path.join(plain_path(os.path.join(root, folder)), "")
    return found


def _folder_of(name: str) -> str:
    head = name.rpartition("/")[0]
    return head + "/" if name.startswith("/") else head


def _file_of(name: str, extension: str) -> str:
    file = name.rpartition("/")[2]
    return file if file.endswith(extension) else file + extension
