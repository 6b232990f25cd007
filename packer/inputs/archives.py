"""Tars and zips: which members are inputs, what they are called, their labels, and where their bytes lie.

A tar is read as WebDataset does: members with one key are one sample, wherever they stand. A zip is a folder that was zipped.
Nothing is unpacked: members are read at their place when their turn comes.
"""

from __future__ import annotations

import json
import os
import posixpath
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packer.errors import ScanError
from packer.inputs.columns import Table
from packer.inputs.labels import TARGET_COLUMNS, Labels, add_extras, target_names
from packer.inputs.lists import folder_labels, with_labels
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk, is_junk_file, is_split, junk_above, split_folders
from packer.inputs.target_columns import label_columns
from packer.inputs.tree import Counter, Tree, inputs_of, named_trees
from packer.options import InputOptions
from packer.sources.members import DEFLATED, RAW, STORED, Archive, Place
from packer.sources.roots import NOWHERE
from packer.text import counted

# members of these suffixes say something about the image of their key, and are no inputs
_LABEL_SUFFIXES = ("cls", "json", "txt")
_MOST_LABEL_BYTES = 16 << 20
_BLOCK_BYTES = 512

# Where a member lies, and why it cannot be read if it cannot.
_Member = tuple[Place, str | None]


@dataclass(slots=True)
class _Record:
    """What the label members of one key say, by column, and the suffixes of these members."""

    cells: dict[str, Any] = field(default_factory=dict)
    suffixes: list[str] = field(default_factory=list)

    def add(self, suffix: str, data: bytes, where: str) -> None:
        self.cells |= _tar_labels(suffix, data, where)
        self.suffixes.append(sys.intern(suffix))


def archive_kind(path: Path) -> str | None:
    """Tell by its first bytes whether a file is a "tar", a "zip", a "gzip", or none of them."""
    try:
        with open(path, "rb") as file:
            head = file.read(_BLOCK_BYTES)
    except OSError as e:
        NOWHERE.check(str(path), e)
        raise ScanError(f"{path} cannot be read: {e.strerror}.") from None
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "gzip"
    # POSIX ustar and GNU write it at 257; older tars do not, but there a checksum is right
    if head[257:262] == b"ustar" or (len(head) == _BLOCK_BYTES and _has_tar_checksum(head)):
        return "tar"
    return None


def read_tars(
    paths: list[Path], classes: tuple[str, ...] | None, options: InputOptions, count: Counter
) -> dict[str, Inputs]:
    """List the members of one or more tars, in their order.

    All but .cls, .json and .txt are inputs; those of hidden folders and of systems are left out. Their target is what the .cls,
    .json or .txt of their key says; where none says any, it is the folder in the tar, as for a list of paths. Where these
    folders are splits, the tars are listed as the folder that they unpack to.

    Raises:
        ScanError: a tar cannot be read, is cut short, a label makes no sense, or some samples have one and others none.
    """
    inputs, records, places = _empty(paths), list[_Record](), dict[str, _Member]()
    for number, path in enumerate(paths):
        for name, place, refusal, record in _tar_samples(path, number, count):
            places[name] = place, refusal
            if not _is_left_out(name):
                inputs.add_member(f"{inputs.archives[number].path}/{name}", place, refusal)
                records.append(record)
    left_out = Tree.of_names(filter(_is_left_out, places)).left_out_in_words()
    if not inputs.paths:
        besides = f" but what is left out: {left_out}" if left_out else ""
        raise ScanError(
            f"{', '.join(map(str, paths))} holds no image{besides} ({counted(count.seen, 'member', 'members')} seen)."
        )

    def where(index: int) -> str:
        """Name a sample as an error does: archives have no lines."""
        return f"the sample {inputs.paths[index]}"

    names = sorted({name for record in records for name in record.cells})
    columns = {name: [record.cells.get(name) for record in records] for name in names}
    table = Table.of(str(paths[0]), columns, where, options.missing, classes)
    target = options.target_column
    if target is None and "txt" in names and not target_names(table, None):
        target = "txt"
    targets, splits = target_names(table, target), _splits(places)
    if not targets and splits != [""]:
        found = _as_folder(_empty(paths), paths[0], places, classes, count, are_classes=options.boxes is None)
        next(iter(found.values())).notes += [_no_labels_note(table, "left out")] if names else []
        return found
    inputs.notes += [f"left out: {left_out}."] if left_out else []
    if not targets:
        return {"": with_labels(inputs, _labels_of_folders(table, inputs, classes, options))}
    _check_labels(inputs, records, targets)
    if splits != [""]:
        inputs.notes.append(
            f"{table.name} has labels beside its images: what lies in {', '.join(splits)} goes into one store, as no splits."
        )
    return {"": with_labels(inputs, label_columns(table, len(inputs), target, classes, options.classes))}


def _labels_of_folders(table: Table, inputs: Inputs, classes: tuple[str, ...] | None, options: InputOptions) -> Labels:
    """Take the folders of a tar as classes; what else its .json say becomes extras, as beside labels."""
    labels = folder_labels(inputs, classes, table.where, options)
    if not table.columns:
        return labels
    if max(labels.targets.values, default=-1) < 0:
        return label_columns(table, len(inputs), None, classes, options.classes)
    add_extras(labels, table, ())
    labels.notes.append(_no_labels_note(table, "no labels"))
    return labels


def _no_labels_note(table: Table, what: str) -> str:
    expected = ", ".join(TARGET_COLUMNS)
    return (
        f"the .json beside images of {table.name} have none of the columns {expected}: they are {what}, and the folders decide;"
        " --target-column names one."
    )


def _check_labels(inputs: Inputs, records: list[_Record], targets: list[str]) -> None:
    """Raise ScanError where some samples have a label and others none: a file was lost, or what others have is no label.

    A .json without the field beside others with it is no lost file, and its label is missing, as on a line of a .jsonl.
    """
    for name in targets:
        is_field = not any(name in record.suffixes for record in records)
        odd = next((i for i, record in enumerate(records) if not _says(record, name, is_field=is_field)), None)
        if odd is None:
            continue
        other = next(i for i, record in enumerate(records) if name in record.cells)
        folder, _, base = inputs.paths[other].rpartition("/")
        suffixes = records[other].suffixes
        suffix = name if name in suffixes else next(suffix for suffix in suffixes if suffix.endswith("json"))
        raise ScanError(
            f"the sample {inputs.paths[odd]} has no {name}, and another has one, in {folder}/{base.partition('.')[0]}.{suffix}."
            " Give each sample a label, an empty one where it has none; if that is no label, unpack the tar and pack the folder."
        )


def _says(record: _Record, name: str, *, is_field: bool) -> bool:
    """Whether a sample has a column, or a .json in which it is missing."""
    return name in record.cells or (is_field and any(suffix.endswith("json") for suffix in record.suffixes))


def read_zip(
    path: Path, classes: tuple[str, ...] | None, count: Counter, *, are_classes: bool = True
) -> dict[str, Inputs]:
    """List a zipped folder by the rules of a folder: class folders, images, or splits of those.

    Raises:
        ScanError: it cannot be read or holds no image.
    """
    blank = _empty([path])
    try:
        with zipfile.ZipFile(path) as file:
            members, notes = _zip_members(file)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as e:
        if isinstance(e, OSError):
            NOWHERE.check(str(path), e)
        raise ScanError(f"{path} cannot be read: {e}. Copy it again.") from None
    count.add(len(members))
    places = {name: _zip_place(member) for name, member in members.items()}
    found = _as_folder(blank, path, places, classes, count, are_classes=are_classes)
    next(iter(found.values())).notes += notes
    return found


def _as_folder(
    blank: Inputs,
    images: Path,
    places: dict[str, _Member],
    classes: tuple[str, ...] | None,
    count: Counter,
    *,
    are_classes: bool,
) -> dict[str, Inputs]:
    """List members, by name, as the folder would be that they were made of."""
    above = _common_above(places)
    trees = named_trees(name.removeprefix(above) for name in places)
    found = inputs_of(trees, images, classes, count, are_classes=are_classes)
    for split, listed in found.items():
        listed.root, listed.archives = blank.root, blank.archives
        for index, name in enumerate(listed.paths):
            inside = f"{above}{split}/{name}" if split else above + name
            place, refusal = places[inside]
            listed.places.values.extend(place)
            listed.paths[index] = f"{blank.archives[place.archive].path}/{inside}"
            if refusal:
                listed.refused[index] = refusal
    return found


def _splits(names: Iterable[str]) -> list[str]:
    """Return the splits that members are of, [""] where they are of none."""
    above = _common_above(names)
    below = (name.removeprefix(above) for name in names)
    return split_folders({name.partition("/")[0] for name in below if "/" in name})


def _is_left_out(name: str) -> bool:
    return bool(junk_above(name)) or is_junk_file(name.rpartition("/")[2])


def member_places(path: Path) -> dict[str, Place]:
    """Return where the members of a tar or zip lie, by the names that a store gives them."""
    if archive_kind(path) == "zip":
        with zipfile.ZipFile(path) as file:
            return {name: _zip_place(member)[0] for name, member in _zip_members(file)[0].items()}
    with tarfile.open(path, "r:") as tar:
        return {_inside(member.name): _tar_place(0, member) for member in tar}


def _empty(paths: list[Path]) -> Inputs:
    """Return Inputs without samples whose root is the folder that holds all the archives."""
    absolute = [Path(os.path.abspath(path)) for path in paths]
    root = Path(os.path.commonpath([path.parent for path in absolute]))
    archives = []
    for path in absolute:
        status = path.stat()
        archives.append(Archive(path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns))
    return Inputs(root, archives=tuple(archives))


def _inside(name: str) -> str:
    """Return a member's name without anything that would lead out of a folder: "/a/../b.jpg" -> "b.jpg"."""
    return posixpath.normpath(f"/{name}").lstrip("/")


# -- tars

_Sample = tuple[str, Place, str | None, _Record]


def _tar_samples(path: Path, number: int, count: Counter) -> Iterator[_Sample]:
    """Yield name, place, refusal and labels of each input, in the order of the members.

    Labels are complete at the tar's end: the members of a key may stand anywhere. Those without an image, such as
    annotations.json, are not read.
    """
    records: dict[str, _Record] = {}
    # labels whose image has not come
    waiting: dict[str, list[tuple[str, bytes, str]]] = {}
    checksums: dict[str, int] = {}
    for member, data in _tar_members(path):
        count.add(1)
        name = _inside(member.name)
        folder, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        key, label_name = f"{folder}/{stem}", f"{path}/{name}"
        if data is None:
            if key not in records:
                records[key] = _Record()
                for label in waiting.pop(key, ()):
                    records[key].add(*label)
            refusal = None if member.isreg() and not member.issparse() else "it is no plain file in its tar"
            yield name, _tar_place(number, member), refusal, records[key]
        elif not _is_left_out(name):
            if checksums.setdefault(name, zlib.crc32(data)) != zlib.crc32(data):
                raise ScanError(
                    f"{label_name} is there twice, with different labels. Give each sample a name of its own."
                )
            if key in records:
                records[key].add(suffix.lower(), data, label_name)
            else:
                waiting.setdefault(key, []).append((suffix.lower(), data, label_name))


def _tar_members(path: Path) -> Iterator[tuple[tarfile.TarInfo, bytes | None]]:
    """Yield each member that is no folder, with its bytes if it holds a label."""
    size_bytes, last = path.stat().st_size, "its beginning"
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
                last = member.name
                if member.offset_data + member.size > size_bytes and member.isreg():
                    raise tarfile.ReadError("the member's data are not all there")
                if member.isdir():
                    continue
                is_label = member.isreg() and member.name.lower().rpartition(".")[2] in _LABEL_SUFFIXES
                file = tar.extractfile(member) if is_label and member.size <= _MOST_LABEL_BYTES else None
                yield member, None if file is None else file.read()
            _check_end(path, tar.offset)
    except (OSError, tarfile.TarError, EOFError) as e:
        if isinstance(e, OSError):
            NOWHERE.check(str(path), e)
        raise ScanError(f"{path} is cut short or damaged at {last}: {e}. Copy it again.") from None


def _check_end(path: Path, offset: int) -> None:
    """Raise ReadError unless a tar ends at offset: tarfile takes a damaged header in the middle for the end."""
    with open(path, "rb") as file:
        file.seek(offset)
        block = file.read(_BLOCK_BYTES)
    if any(block) or 0 < len(block) < _BLOCK_BYTES:
        raise tarfile.ReadError("a header after it is damaged")


def _tar_place(number: int, member: tarfile.TarInfo) -> Place:
    return Place(number, member.offset_data, member.size, member.size, RAW, 0)


def _tar_labels(suffix: str, data: bytes, where: str) -> dict[str, Any]:
    """Return what a label member says, as columns: a JSON object's fields, else one under the member's suffix."""
    text = data.decode("utf-8-sig", "surrogateescape").strip()
    if suffix.rpartition(".")[2] != "json":
        return {suffix: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{where} is no JSON: {e}.") from None
    return value if isinstance(value, dict) else {"label": value}


def _has_tar_checksum(head: bytes) -> bool:
    try:
        expected = int(head[148:156].strip(b" \0"), 8)
    except ValueError:
        return False
    return expected == sum(head[:148]) + sum(head[156:]) + 8 * 32


# -- zips


def _zip_members(file: zipfile.ZipFile) -> tuple[dict[str, zipfile.ZipInfo], list[str]]:
    """Return the members of a zip that are no folders, by name; a backslash parts folders where the zip was made so."""
    members = file.infolist()
    # APPNOTE 4.4.17.1 wants slashes; .NET and others on Windows wrote backslashes, which Info-ZIP's unzip takes for slashes too
    has_slash = any("/" in member.filename for member in members)
    found, odd = {}, 0
    for member in members:
        name = member.filename
        if "\\" in name and "/" not in name and (member.create_system == 0 or not has_slash):
            name = name.replace("\\", "/")
        if not name.endswith("/"):
            found[_inside(name)] = member
            odd += name != member.filename
    what = f"{odd} members of {file.filename} have backslashes in their names, which are taken as slashes."
    return found, [what] if odd else []


def _common_above(members: Iterable[str]) -> str:
    """Return the folders that an archive wraps around all it holds, "photos/" or "": what systems add, and splits, are none."""
    above, names = "", [name for name in members if not is_junk(name.partition("/")[0])]
    while names:
        first = names[0][len(above) :].partition("/")
        folder = f"{above}{first[0]}/"
        if not first[1] or is_split(first[0]) or not all(name.startswith(folder) for name in names):
            break
        above = folder
    return above


def _zip_place(member: zipfile.ZipInfo) -> tuple[Place, str | None]:
    refusal = None
    if member.flag_bits & 1:
        refusal = "it is encrypted in its zip"
    elif member.compress_type not in (STORED, DEFLATED):
        refusal = f"its zip compresses it by method {member.compress_type}; stored and deflated can be read"
    numbers = member.header_offset, member.compress_size, member.file_size, member.compress_type, member.CRC
    return Place(0, *numbers), refusal
