"""Lists of images: paths on standard input, and tables (.csv, .tsv, .jsonl, .parquet). Order is theirs; no image is opened.

A line that cannot be understood ends the pack before it begins; a file that cannot be read is one reject. Both name the line.
"""

from __future__ import annotations

import codecs
import os
import select
from collections.abc import Callable, Iterator
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.listing import Listing, locate_inputs, root_of
from packer.inputs.samples import Column, Inputs
from packer.inputs.splits import split_folders
from packer.inputs.tables.columns import Table
from packer.inputs.tables.labels import Labels, name_targets
from packer.inputs.tables.reading import UTF16_MARKS, path_column, read_records
from packer.inputs.tables.target_columns import label_columns
from packer.inputs.tables.text_columns import take_texts
from packer.inputs.tree import STRAY, FileCounter
from packer.option_names import Option
from packer.options import InputOptions
from packer.progress import followed
from packer.sources.roots import NOWHERE
from packer.text import counted, some

# A pipe gives 64 kB at a time.
_READ_BYTES = 1 << 20
# Names that are split at once.
_SPLIT_BYTES = 1 << 16


def read_stdin(images: str, classes: tuple[str, ...] | None, options: InputOptions, count: FileCounter) -> Inputs:
    """Read paths from standard input, one a line ("-") or NUL-separated ("-0").

    With --root the class of an image is the first folder below that, as in a folder that is packed; else it is the folder that
    holds the image, and if all are in one folder, there are no classes.

    Raises:
        ScanError: nothing comes, or a line is empty.
    """
    if os.isatty(0):
        raise ScanError(
            f"{images} reads paths from standard input, which is a terminal. Expected: find ... | pack {images} OUT"
        )
    listing = Listing("standard input")
    names = _names(_read(count, images == "-0"), is_nul=images == "-0")
    for number, name in enumerate(followed("locate", names, count.seen), start=1):
        if not name:
            raise ScanError(f"line {number} of standard input is empty. Expected a path.")
        listing.add(number, os.fsdecode(name))
    if not listing.paths:
        raise ScanError(
            "no path came on standard input. Expected one a line, for example: find photos -name '*.jpg' | sort"
        )
    inputs = locate_inputs(listing, Path.cwd(), options, is_found=True)
    return with_labels(inputs, folder_labels(inputs, classes, listing.where, options))


def read_table(path: Path, classes: tuple[str, ...] | None, options: InputOptions, count: FileCounter) -> Inputs:
    """Read a .csv, .tsv, .jsonl or .parquet table: a column of paths, one of targets, and others that become extras.

    Raises:
        ScanError: it cannot be read, or a line is wrong; names the line.
    """
    listing, notes = Listing(str(path), "row" if path.suffix.lower() == ".parquet" else "line"), list[str]()
    column: str | None = None
    try:
        for line, record in read_records(path, options.path_column, notes):
            column = column or path_column(record, options.path_column)
            _add_record(listing, line, record, column or options.path_column or "path")
            count.add(1)
    except OSError as e:
        NOWHERE.check(str(path), e)
        raise ScanError(f"{path} cannot be read: {e.strerror or e}.") from None
    if not listing.paths:
        raise ScanError(f"{path} names no image. Expected a column 'path' and a line for each image.")
    inputs = locate_inputs(listing, path.absolute().parent, options, is_found=False)
    inputs.notes += notes
    inputs.labels["path_column"] = column
    inputs.texts = take_texts(listing.name, listing.columns, listing.where, options.text_column, inputs.notes)
    table = Table.of(listing.name, listing.columns, listing.where, options.missing, classes)
    return with_labels(inputs, label_columns(table, len(inputs), options.target_column, classes, options.classes))


def folder_labels(
    inputs: Inputs, classes: tuple[str, ...] | None, where: Callable[[int], str], options: InputOptions
) -> Labels:
    """Take a folder of each input as its class: with --root the first below that, else the one that holds the input.

    One folder that holds all, with no folder between it and the root, is no class, unless a class list has it. With --boxes the
    classes are those of the boxes, and folders are none.

    Raises:
        ScanError: a folder is not in the imposed list, or the folders below --root are splits.
    """
    if options.boxes is not None:
        return Labels(Column.of("int64", [-1] * len(inputs)))
    if options.root is not None and inputs.root == Path(root_of(options)) and any("/" in path for path in inputs.paths):
        return _labels_below_root(inputs, classes, where, options)
    # one text for all images of a folder
    folders = {path.rpartition("/")[0] for path in inputs.paths}
    known = {folder: folder.rpartition("/")[2] or inputs.root.name for folder in folders}
    names = [known[path.rpartition("/")[0]] for path in followed("label", inputs.paths, len(inputs))]
    if len(known) == 1 and names[0] not in (classes or ()):
        inputs.layout = "all images in one folder, no classes"
        return Labels(Column.of("int64", [-1] * len(inputs)), classes=classes or ())
    labels = name_targets(names, classes, where)
    inputs.layout = f"{counted(len(labels.classes), 'class', 'classes')}, the folders that hold the images"
    if not inputs.archives:
        labels.notes += _shared_names(folders)
    return labels


def with_labels(inputs: Inputs, labels: Labels) -> Inputs:
    """Give inputs their targets, extras and classes."""
    inputs.targets, inputs.target_kind, inputs.classes = labels.targets, labels.kind, labels.classes
    inputs.extras, inputs.further_targets = labels.extras, labels.further_targets
    inputs.notes += labels.notes
    if labels.target_column:
        inputs.labels["target_column"] = labels.target_column
    return inputs


# -- tables


def _add_record(listing: Listing, line: int, record: dict[str, object], path_column: str) -> None:
    """Take one line's path, and its other cells into their columns, where missing ones are None."""
    if path_column not in record:
        known = ", ".join(map(str, record)) or "none"
        raise ScanError(
            f"{listing.unit} {line} of {listing.name} has no column {path_column!r}. It has: {known}."
            f" {Option('path_column')} names another."
        )
    before = len(listing.paths)
    listing.add(line, record[path_column])
    for column, cells in listing.columns.items():
        cells.append(record.get(column))
    for column in record:
        if column != path_column and column not in listing.columns:
            listing.columns[column] = [None] * before + [record[column]]


# -- standard input


def _read(count: FileCounter, is_nul: bool) -> bytes:
    """Return all of standard input; what writes it may take minutes, so its lines are counted as they come."""
    data, end = bytearray(), b"\0" if is_nul else b"\n"
    with open(0, "rb", buffering=0, closefd=False) as file:
        while (piece := file.read(_READ_BYTES)) != b"":
            if piece is None:  # whoever gave it to us does not wait for reads: nothing is there yet
                select.select([file], [], [])
                continue
            data += piece
            count.add(piece.count(end))
    return bytes(data)


def _names(data: bytes, *, is_nul: bool) -> Iterator[bytes]:
    """Yield the names of a list; one made on Windows may be UTF-16, or begin with a mark, or end its lines by CR LF."""
    if is_nul:
        yield from _split(data, b"\0")
        return
    if data.startswith(UTF16_MARKS):
        try:
            data = data.decode("utf-16").encode()
        except UnicodeError as e:
            raise ScanError(f"standard input is not the UTF-16 that its first bytes say: {e}.") from None
    data = data.removeprefix(codecs.BOM_UTF8)
    # no name of ours ends so in every line; the last one may have no end at all
    lines = data.count(b"\n")
    is_windows = data.count(b"\r\n") == lines if lines else data.endswith(b"\r")
    data = data.removesuffix(b"\r") if is_windows else data
    for name in _split(data, b"\n"):
        yield name.removesuffix(b"\r") if is_windows else name


def _split(data: bytes, end: bytes) -> Iterator[bytes]:
    """Yield what is in front of each end, and behind the last one, if anything is; some at once, as a list of all is large."""
    start = 0
    while start < len(data):
        stop = data.find(end, start + _SPLIT_BYTES) + 1 or len(data)
        yield from data[start:stop].removesuffix(end).split(end)
        start = stop


def _labels_below_root(
    inputs: Inputs, classes: tuple[str, ...] | None, where: Callable[[int], str], options: InputOptions
) -> Labels:
    """Take the first folder below --root as the class of what is in it, as `packer.inputs.tree` does."""
    # one text for all images of a class
    shared = dict[str, str]()
    names = [
        shared.setdefault(folder := path.partition("/")[0], folder) if "/" in path else None
        for path in followed("label", inputs.paths, len(inputs))
    ]
    splits = split_folders({name for name in names if name is not None})
    if splits != [""]:
        raise ScanError(
            f"the folders below {Option('root', options.root)} are splits ({', '.join(splits)}), and a list makes one store."
            f" List one of them, with {Option('root', os.path.join(options.root or '', splits[0]))}."
        )
    for index, name in enumerate(names):
        if name is None:
            inputs.refused.setdefault(index, STRAY)
    labels = name_targets(names, classes, where)
    inputs.layout = f"{counted(len(labels.classes), 'class', 'classes')}, the first folders below {Option('root')}"
    if deeper := sum(path.count("/") > 1 for path in inputs.paths):
        inputs.layout += f", {counted(deeper, 'image', 'images')} in folders below those"
    return labels


def _shared_names(folders: set[str]) -> list[str]:
    """Report folders whose images get one class since their last names are alike."""
    by_name: dict[str, list[str]] = {}
    for folder in sorted(folders):
        by_name.setdefault(folder.rpartition("/")[2], []).append(folder)
    shared = {name: several for name, several in by_name.items() if len(several) > 1}
    if not shared:
        return []
    name, several = next(iter(shared.items()))
    are = "1 class is" if len(shared) == 1 else f"{len(shared)} classes are"
    return [
        f"{are} of several folders, such as {name!r} of {some(several)}: the folder that holds an image is its"
        f" class. With {Option('root')} it is the first folder below that."
    ]
