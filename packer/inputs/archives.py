"""Tars and zips: which members are inputs, their names, their labels, and where their bytes are.

A tar is read as WebDataset does: members with one key are one sample, wherever they stand. A zip is a folder that was zipped.
Nothing is unpacked: members are read where they are when their turn comes.
"""

from __future__ import annotations

import functools
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

from packer.errors import ScanError
from packer.inputs.lists import folder_labels, with_labels
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk, is_junk_file, is_split, junk_above, split_folders
from packer.inputs.tables.columns import Table
from packer.inputs.tables.labels import TARGET_COLUMNS, Labels, add_extras, target_names
from packer.inputs.tables.target_columns import label_columns
from packer.inputs.tables.text_columns import take_texts
from packer.inputs.tree import FileCounter, Tree, inputs_of, named_trees
from packer.options import InputOptions
from packer.sources.members import DEFLATED, RAW, STORED, Archive, Member
from packer.sources.roots import NOWHERE
from packer.sources.tar_headers import ListedMember, listed
from packer.text import counted

# members of these suffixes say something about the image of their key, and are no inputs
_LABEL_SUFFIXES = ("cls", "json", "txt")
_MOST_LABEL_BYTES = 16 << 20
_BLOCK_BYTES = 512

# A member, and why it cannot be read if it cannot.
_Listed = tuple[Member, str | None]


@dataclass(slots=True)
class _SampleLabels:
    """What the label members of one key say, by column, and the suffixes of these members."""

    cells: dict[str, object] = field(default_factory=dict)
    suffixes: list[str] = field(default_factory=list)

    def add(self, suffix: str, data: bytes, where: str) -> None:
        """Add what a label member says; where names it in an error."""
        self.cells |= _tar_labels(suffix, data, where)
        self.suffixes.append(sys.intern(suffix))


def archive_kind(path: Path) -> str | None:
    """Return "tar", "zip" or "gzip", as a file's first bytes say, or None."""
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
    paths: list[Path], classes: tuple[str, ...] | None, options: InputOptions, count: FileCounter
) -> dict[str, Inputs]:
    """List the members of one or more tars, in their order.

    All but .cls, .json and .txt are inputs; those of hidden folders and of systems are left out. Their target is what the .cls,
    .json or .txt of their key says; where none says any, it is the folder in the tar, as for a list of paths. Where these
    folders are splits, the tars are listed as the folder that they unpack to.

    Raises:
        ScanError: a tar cannot be read, is cut short, a label makes no sense, or some samples have one and others none.
    """
    inputs, records, members = _empty(paths), list[_SampleLabels](), dict[str, _Listed]()
    for number, path in enumerate(paths):
        for name, member, refusal, record in _tar_samples(path, number, count):
            members[name] = member, refusal
            if not _is_left_out(name):
                inputs.add_member(f"{inputs.archives[number].path}/{name}", member, refusal)
                records.append(record)
    left_out = Tree.of_names(filter(_is_left_out, members)).left_out_in_words()
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
    inputs.texts = take_texts(str(paths[0]), columns, where, options.text_column, inputs.notes)
    for name in columns.keys() & {suffix for record in records for suffix in record.suffixes}:
        # of a label the line's end is no part; a text that is kept has it
        columns[name] = [cell.strip() if isinstance(cell, str) else cell for cell in columns[name]]
    names = sorted(columns)
    table = Table.of(str(paths[0]), columns, where, options.missing, classes)
    target = options.target_column
    if target is None and "txt" in names and not target_names(table, None):
        target = "txt"
    targets, splits = target_names(table, target), _splits(members)
    if not targets and splits != [""] and not inputs.texts:
        found = _as_folder(_empty(paths), paths[0], members, classes, count, are_classes=options.boxes is None)
        next(iter(found.values())).notes += [_no_labels_note(table, "left out")] if names else []
        return found
    inputs.notes += [f"left out: {left_out}."] if left_out else []
    if not targets:
        return {"": with_labels(inputs, _labels_of_folders(table, inputs, classes, options))}
    _check_labels(inputs, records, targets)
    if splits != [""]:
        inputs.notes.append(
            f"{table.name} has labels beside its images: what is in {', '.join(splits)} goes into one store, as no splits."
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


def _check_labels(inputs: Inputs, records: list[_SampleLabels], targets: list[str]) -> None:
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


def _says(record: _SampleLabels, name: str, *, is_field: bool) -> bool:
    """Whether a sample has a column, or a .json in which it is missing."""
    return name in record.cells or (is_field and any(suffix.endswith("json") for suffix in record.suffixes))


def read_zip(
    path: Path, classes: tuple[str, ...] | None, count: FileCounter, *, are_classes: bool = True
) -> dict[str, Inputs]:
    """List a zipped folder by the rules of a folder: class folders, images, or splits of those.

    Raises:
        ScanError: it cannot be read or holds no image.
    """
    blank = _empty([path])
    try:
        with zipfile.ZipFile(path) as file:
            infos, notes = _zip_members(file)
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as e:
        if isinstance(e, OSError):
            NOWHERE.check(str(path), e)
        raise ScanError(f"{path} cannot be read: {e}. Copy it again.") from None
    count.add(len(infos))
    members = {name: _zip_member(info) for name, info in infos.items()}
    found = _as_folder(blank, path, members, classes, count, are_classes=are_classes)
    next(iter(found.values())).notes += notes
    return found


def _as_folder(
    blank: Inputs,
    images: Path,
    members: dict[str, _Listed],
    classes: tuple[str, ...] | None,
    count: FileCounter,
    *,
    are_classes: bool,
) -> dict[str, Inputs]:
    """List members, by name, as the folder would be that they were made of."""
    above = _common_above(members)
    trees = named_trees(name.removeprefix(above) for name in members)
    found = inputs_of(trees, images, classes, count, are_classes=are_classes)
    for split, inputs in found.items():
        inputs.root, inputs.archives = blank.root, blank.archives
        for index, name in enumerate(inputs.paths):
            inside = f"{above}{split}/{name}" if split else above + name
            member, refusal = members[inside]
            inputs.members.values.extend(member)
            inputs.paths[index] = f"{blank.archives[member.archive].path}/{inside}"
            if refusal:
                inputs.refused[index] = refusal
    return found


def _splits(names: Iterable[str]) -> list[str]:
    """Return the splits that members are of, [""] where they are of none."""
    above = _common_above(names)
    below = (name.removeprefix(above) for name in names)
    return split_folders({name.partition("/")[0] for name in below if "/" in name})


def _is_left_out(name: str) -> bool:
    folder, slash, base = name.rpartition("/")
    return _is_junk_folder(folder + slash) or is_junk_file(base)


@functools.lru_cache(1024)
def _is_junk_folder(folder: str) -> bool:
    return bool(junk_above(folder))


def list_members(path: Path) -> dict[str, Member]:
    """Return where the members of a tar or zip are, by the names that a store gives them."""
    if archive_kind(path) == "zip":
        with zipfile.ZipFile(path) as file:
            return {name: _zip_member(info)[0] for name, info in _zip_members(file)[0].items()}
    with tarfile.open(path, "r:", tarinfo=ListedMember) as tar:
        return {_inside(info.name): _tar_member(0, info) for info in listed(tar)}


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

_Sample = tuple[str, Member, str | None, _SampleLabels]


def _tar_samples(path: Path, number: int, count: FileCounter) -> Iterator[_Sample]:
    """Yield name, member, refusal and labels of each input, in the order of the members.

    Labels are complete at the tar's end: the members of a key may stand anywhere. Those without an image are not read.
    """
    records: dict[str, _SampleLabels] = {}
    # labels whose image has not come
    waiting: dict[str, list[tuple[str, bytes, str]]] = {}
    checksums: dict[str, int] = {}
    for info, data in _tar_members(path):
        count.add(1)
        name = _inside(info.name)
        folder, _, base = name.rpartition("/")
        stem, _, suffix = base.partition(".")
        key, label_name = f"{folder}/{stem}", f"{path}/{name}"
        if data is None:
            if key not in records:
                records[key] = _SampleLabels()
                for label in waiting.pop(key, ()):
                    records[key].add(*label)
            refusal = None if info.isreg() and not info.issparse() else "it is no plain file in its tar"
            yield name, _tar_member(number, info), refusal, records[key]
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
    """Yield each member that is not a folder, with its bytes if it holds a label."""
    size_bytes, last = path.stat().st_size, "its beginning"
    try:
        with tarfile.open(path, "r:", tarinfo=ListedMember) as tar:
            for info in listed(tar):
                last = info.name
                if info.offset_data + info.size > size_bytes and info.isreg():
                    raise tarfile.ReadError("the member's data are not all there")
                if info.isdir():
                    continue
                is_label = info.isreg() and info.name.lower().rpartition(".")[2] in _LABEL_SUFFIXES
                file = tar.extractfile(info) if is_label and info.size <= _MOST_LABEL_BYTES else None
                yield info, None if file is None else file.read()
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


def _tar_member(number: int, info: tarfile.TarInfo) -> Member:
    return Member(number, info.offset_data, info.size, info.size, RAW, 0)


def _tar_labels(suffix: str, data: bytes, where: str) -> dict[str, object]:
    """Return what a label member says, as columns: a JSON object's fields, else one under the member's suffix."""
    text = data.decode("utf-8-sig", "surrogateescape")
    if suffix.rpartition(".")[2] != "json":
        return {suffix: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{where} is not JSON: {e}.") from None
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
    has_slash = any("/" in info.filename for info in members)
    found, odd = {}, 0
    for info in members:
        name = info.filename
        if "\\" in name and "/" not in name and (info.create_system == 0 or not has_slash):
            name = name.replace("\\", "/")
        if not name.endswith("/"):
            found[_inside(name)] = info
            odd += name != info.filename
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


def _zip_member(info: zipfile.ZipInfo) -> tuple[Member, str | None]:
    refusal = None
    if info.flag_bits & 1:
        refusal = "it is encrypted in its zip"
    elif info.compress_type not in (STORED, DEFLATED):
        refusal = f"its zip compresses it by method {info.compress_type}; stored and deflated can be read"
    numbers = info.header_offset, info.compress_size, info.file_size, info.compress_type, info.CRC
    return Member(0, *numbers), refusal
