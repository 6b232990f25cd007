"""Lists of images: paths on standard input, and .csv, .tsv and .jsonl manifests. Order is the list's; no image is opened.

A line that cannot be understood ends the pack before it begins; a file that cannot be read is one reject. Both name the line.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.folders import Counter
from packer.inputs import Column, Inputs, ScanError
from packer.labels import Labels, Table, name_targets
from packer.options import PackOptions
from packer.targets import label_columns

STDIN_NAMES = ("-", "-0")
MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl")

_DUPLICATES_NAMED = 3


@dataclass
class _Listing:
    """What a list says, as it says it: paths, the line of each, and columns of cells."""

    name: str
    paths: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    columns: dict[str, list[Any]] = field(default_factory=dict)

    def where(self, index: int) -> str:
        """Name the line of an input."""
        return f"line {self.lines[index]} of {self.name}"

    def add(self, line: int, path: Any) -> None:
        """Append one input; raises ScanError where path cannot be the name of a file."""
        self.lines.append(line)
        if not isinstance(path, str) or not path:
            raise ScanError(f"{self.where(-1)} has {path!r} as path. Expected the path of an image.")
        try:
            if b"\0" in os.fsencode(path):
                raise ValueError
        except ValueError:
            raise ScanError(f"{self.where(-1)} has {path!r} as path, which no file can be called.") from None
        self.paths.append(path)


def read_stdin(images: str, classes: tuple[str, ...] | None, options: PackOptions, count: Counter) -> Inputs:
    """Read paths from standard input, one a line ("-") or NUL-separated ("-0").

    The class of an image is the name of the folder that holds it; if all lie in one folder, there are no classes.

    Raises:
        ScanError: nothing comes, or a line is empty.
    """
    if os.isatty(0):
        raise ScanError(
            f"{images} reads paths from standard input, which is a terminal. Expected: find ... | pack {images} OUT"
        )
    with open(0, "rb", closefd=False) as file:
        data = file.read()
    listing, separator = _Listing("standard input"), b"\0" if images == "-0" else b"\n"
    names = data.split(separator)
    if not names[-1]:
        names.pop()
    # a list made on Windows: no name of ours ends so in every line
    is_dos = images == "-" and bool(names) and all(name.endswith(b"\r") for name in names)
    for number, name in enumerate(names, start=1):
        if not name:
            raise ScanError(f"line {number} of standard input is empty. Expected a path.")
        count.add(1)
        listing.add(number, os.fsdecode(name[:-1] if is_dos else name))
    if not listing.paths:
        raise ScanError(
            "no path came on standard input. Expected one a line, for example: find photos -name '*.jpg' | sort"
        )
    inputs = _located(listing, Path.cwd(), options, is_fixed=options.root is not None)
    return with_labels(inputs, folder_labels(inputs, classes, listing.where, options))


def read_manifest(path: Path, classes: tuple[str, ...] | None, options: PackOptions, count: Counter) -> Inputs:
    """Read a .csv, .tsv or .jsonl manifest: a column of paths, one of targets, and others that become extras.

    Raises:
        ScanError: it cannot be read, or a line is wrong; names the line.
    """
    listing = _Listing(str(path))
    records = _json_records if path.suffix.lower() == ".jsonl" else _csv_records
    try:
        for line, record in records(path, listing.name):
            _add_record(listing, line, record, options.path_column or "path")
            count.add(1)
    except OSError as e:
        raise ScanError(f"{path} cannot be read: {e.strerror}.") from None
    if not listing.paths:
        raise ScanError(f"{path} names no image. Expected a column 'path' and a line for each image.")
    inputs = _located(listing, path.absolute().parent, options, is_fixed=True)
    table = Table(listing.name, listing.columns, listing.where)
    return with_labels(inputs, label_columns(table, len(inputs), options.target_column, classes, options.classes))


def folder_labels(
    inputs: Inputs, classes: tuple[str, ...] | None, where: Callable[[int], str], options: PackOptions
) -> Labels:
    """Take the folder that holds an input as its class, unless that is one folder for all and no imposed class.

    With --boxes the classes are those of the boxes, and folders are none.
    """
    if options.boxes is not None:
        return Labels(Column.of("int64", [-1] * len(inputs)))
    folders = [path.rpartition("/")[0] for path in inputs.paths]
    names = [folder.rpartition("/")[2] or inputs.root.name for folder in folders]
    if len(set(folders)) == 1 and names[0] not in (classes or ()):
        return Labels(Column.of("int64", [-1] * len(inputs)), classes=classes or ())
    return name_targets(names, classes, where)


def with_labels(inputs: Inputs, labels: Labels) -> Inputs:
    """Give inputs their targets, extras and classes."""
    inputs.targets, inputs.target_kind, inputs.classes = labels.targets, labels.kind, labels.classes
    inputs.extras, inputs.further_targets = labels.extras, labels.further_targets
    inputs.notes += labels.notes
    return inputs


# -- manifests


def _csv_records(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each line's first number and its cells by column."""
    _refuse_utf16(path, name)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        reader = csv.reader(file, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for cells in reader:
                if cells and header is None:
                    header = cells
                    _check_header(header, line, name)
                elif cells and header is not None:
                    if len(cells) != len(header):
                        raise ScanError(f"line {line} of {name} has {len(cells)} cells, its header has {len(header)}.")
                    yield line, dict(zip(header, cells, strict=True))
                line = reader.line_num + 1
        except csv.Error as e:
            raise ScanError(f"line {line} of {name} is not as a {path.suffix[1:]} should be: {e}.") from None


def _check_header(header: list[str], line: int, name: str) -> None:
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise ScanError(f"line {line} of {name}, the header, names the column {twice!r} twice.")


def _json_records(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    _refuse_utf16(path, name)
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        for line, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as e:
                raise ScanError(f"line {line} of {name} is no JSON: {e}.") from None
            if not isinstance(record, dict):
                raise ScanError(f'line {line} of {name} is no JSON object. Expected {{"path": ..., ...}}.')
            yield line, record


def _refuse_utf16(path: Path, name: str) -> None:
    with open(path, "rb") as file:
        if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise ScanError(f"{name} is in UTF-16. Expected UTF-8: save it as that.")


def _add_record(listing: _Listing, line: int, record: dict[str, Any], path_column: str) -> None:
    """Take one line's path, and its other cells into their columns, where missing ones are None."""
    if path_column not in record:
        known = ", ".join(map(str, record)) or "none"
        raise ScanError(
            f"line {line} of {listing.name} has no column {path_column!r}. It has: {known}. --path-column names another."
        )
    before = len(listing.paths)
    listing.add(line, record[path_column])
    for column, cells in listing.columns.items():
        cells.append(record.get(column))
    for column in record:
        if column != path_column and column not in listing.columns:
            listing.columns[column] = [None] * before + [record[column]]


# -- where they lie


def _located(listing: _Listing, start: Path, options: PackOptions, *, is_fixed: bool) -> Inputs:
    """Turn paths as listed into paths below one root, so that no store holds a path of this machine.

    Args:
        start: what relative paths start from, unless --root says it.
        is_fixed: that folder is the root too, if all images lie in it; else the root is the last folder common to all.
    """
    base = start if options.root is None else Path(options.root).absolute()
    if options.root is not None and not base.is_dir():
        raise ScanError(f"--root {options.root} is no folder.")
    suffix = options.extension or ""
    whole = [_absolute(str(base), path if path.endswith(suffix) else path + suffix) for path in listing.paths]
    root = os.path.normpath(base)
    if not is_fixed or not all(path.startswith(os.path.join(root, "")) for path in whole):
        root = _common_folder(whole)
    prefix = len(os.path.join(root, ""))
    paths = [path[prefix:].replace(os.sep, "/") for path in whole]
    inputs = Inputs(Path(root), paths=paths, lines=Column.of("int64", listing.lines))
    inputs.notes += _duplicates(inputs, listing)
    return inputs


def _absolute(base: str, path: str) -> str:
    """Return an absolute path without dots; what stands before a .. is resolved first, as it may be a symbolic link."""
    joined = os.path.join(base, path)
    if ".." in joined.split(os.sep):
        folder, name = os.path.split(joined)
        joined = os.path.realpath(joined) if name in ("..", ".", "") else os.path.join(os.path.realpath(folder), name)
    return os.path.normpath(joined)


def _common_folder(paths: list[str]) -> str:
    """Return the last folder that holds all paths: what the first and the last of them in order have in common."""
    folders = {os.path.join(os.path.dirname(path), "") for path in paths}
    return os.path.commonpath([min(folders), max(folders)])


def _duplicates(inputs: Inputs, listing: _Listing) -> list[str]:
    """Name files that are listed more than once: each is packed as often, which may be meant, to weigh it more."""
    if len(set(inputs.paths)) == len(inputs.paths):
        return []
    first: dict[str, int] = {}
    again = [i for i, path in enumerate(inputs.paths) if first.setdefault(path, i) != i]
    named = [
        f"line {listing.lines[i]} names {inputs.paths[i]!r} as line {listing.lines[first[inputs.paths[i]]]} does"
        for i in again[:_DUPLICATES_NAMED]
    ]
    more = f", and {len(again) - len(named)} more" if len(again) > len(named) else ""
    what = f"{len(again)} of {len(inputs)} inputs of {listing.name} are duplicates, packed as often as they are listed"
    return [f"{what}: {'; '.join(named)}{more}."]
