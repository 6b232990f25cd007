"""Tars and zips: which members are inputs, their names, their labels, and where their bytes are.

A tar is read as WebDataset does: members with one key are one sample, wherever they stand. A zip is a folder that was zipped.
Nothing is unpacked: members are read where they are when their turn comes.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.lists import folder_labels, with_labels
from packer.inputs.paths import Paths
from packer.inputs.samples import Inputs
from packer.inputs.splits import is_junk, is_split, split_folders
from packer.inputs.tables.columns import Table
from packer.inputs.tables.labels import TARGET_COLUMNS, Labels, add_extras, target_names
from packer.inputs.tables.target_columns import label_columns
from packer.inputs.tables.text_columns import take_texts
from packer.inputs.tar_samples import (
    ListedMember,
    SampleLabels,
    Samples,
    check_kinds,
    inside,
    is_left_out,
    read_samples,
)
from packer.inputs.tree import FileCounter, Tree, inputs_of, named_trees
from packer.option_names import Option
from packer.options import InputOptions
from packer.sources.members import DEFLATED, RAW, STORED, Archive, Member
from packer.sources.roots import NOWHERE
from packer.sources.tar_headers import is_header, listed_all
from packer.text import counted
from reader.format.filesystem import absolute_path


def archive_kind(path: Path) -> str | None:
    """Return "tar", "zip" or "gzip", as a file's first bytes say, or None."""
    try:
        with open(path, "rb") as file:
            head = file.read(tarfile.BLOCKSIZE)
    except OSError as e:
        NOWHERE.check(str(path), e)
        raise ScanError(f"{path} cannot be read: {e.strerror}.") from None
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "gzip"
    return "tar" if is_header(head) else None


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
    inputs, records = _empty(paths), list[SampleLabels]()
    tars = list[Samples]()
    for number, path in enumerate(paths):
        tars.append(read_samples(path, number, count))
        records += _add_samples(inputs, tars[-1], number)
        inputs.notes += tars[-1].notes
    members = [name for tar in tars for name in tar.names]
    left_out = Tree.of_names(filter(is_left_out, members)).left_out_in_words()
    if not inputs.paths:
        besides = f" but what is left out: {left_out}" if left_out else ""
        raise ScanError(
            f"{', '.join(map(str, paths))} holds no image{besides} ({counted(count.seen, 'member', 'members')} seen)."
        )

    def where(index: int) -> str:
        """Name a sample as an error does: archives have no lines."""
        return f"the sample {inputs.paths[index]}"

    # those of one key are one
    distinct = {id(record): record for record in records}.values()
    check_kinds(str(paths[0]), distinct)
    names = sorted({name for record in distinct for name in record.cells})
    columns = {name: [record.cells.get(name) for record in records] for name in names}
    inputs.texts = take_texts(str(paths[0]), columns, where, options.text_column, inputs.notes)
    for name in columns.keys() & {suffix for record in distinct for suffix in record.suffixes}:
        # of a label the line's end is no part; a text that is kept has it
        columns[name] = [cell.strip() if isinstance(cell, str) else cell for cell in columns[name]]
    names = sorted(columns)
    table = Table.of(str(paths[0]), columns, where, options.missing, classes)
    target = options.target_column
    if target is None and "txt" in names and not target_names(table, None):
        target = "txt"
    targets, splits = target_names(table, target), _splits(members)
    if not targets and splits != [""] and not inputs.texts:
        every: dict[str, list[ListedMember]] = {}
        for name, one in (listed for tar in tars for listed in tar.listed()):
            every.setdefault(name, []).append(one)
        found = _as_folder(_empty(paths), paths[0], every, classes, count, are_classes=options.boxes is None)
        next(iter(found.values())).notes += inputs.notes + ([_no_labels_note(table, "left out")] if names else [])
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


def _add_samples(inputs: Inputs, tar: Samples, number: int) -> list[SampleLabels]:
    """Append the members of a tar but those that are left out; returns the labels of each."""
    every, above, start = range(len(tar.names)), inputs.archives[number].path, len(inputs)
    chosen = [index for index in every if not is_left_out(tar.names[index])]
    are_all, records = len(chosen) == len(every), tar.records()
    inputs.paths.extend(f"{above}/{tar.names[index]}" for index in chosen)
    inputs.targets.values.extend([-1] * len(chosen))
    inputs.members.values.extend(tar.numbers.chosen(every if are_all else chosen).values)
    inputs.refused |= {n: tar.refused[index] for n, index in enumerate(chosen, start) if index in tar.refused}
    return records if are_all else [records[index] for index in chosen]


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
        f" {Option('target_column')} names one."
    )


def _check_labels(inputs: Inputs, records: list[SampleLabels], targets: list[str]) -> None:
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


def _says(record: SampleLabels, name: str, *, is_field: bool) -> bool:
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
    members = {name: [_zip_member(info) for info in same] for name, same in infos.items()}
    count.add(sum(map(len, members.values())))
    found = _as_folder(blank, path, members, classes, count, are_classes=are_classes)
    next(iter(found.values())).notes += notes
    return found


def _as_folder(
    blank: Inputs,
    images: Path,
    members: dict[str, list[ListedMember]],
    classes: tuple[str, ...] | None,
    count: FileCounter,
    *,
    are_classes: bool,
) -> dict[str, Inputs]:
    """List members, by name, as the folder would be that they were made of; of one name each is a sample, in their order."""
    above = _common_above(members)
    trees = named_trees(name.removeprefix(above) for name, same in members.items() for _ in same)
    found = inputs_of(trees, images, classes, count, are_classes=are_classes)
    for split, inputs in found.items():
        inputs.root, inputs.archives = blank.root, blank.archives
        names, inputs.paths = inputs.paths, Paths()
        for index, name in enumerate(names):
            inside = f"{above}{split}/{name}" if split else above + name
            member, refusal = members[inside].pop(0)
            inputs.members.values.extend(member)
            inputs.paths.append(f"{blank.archives[member.archive].path}/{inside}")
            if refusal:
                inputs.refused[index] = refusal
    return found


def _splits(names: Iterable[str]) -> list[str]:
    """Return the splits that members are of, [""] where they are of none."""
    above = _common_above(names)
    below = (name.removeprefix(above) for name in names)
    return split_folders({name.partition("/")[0] for name in below if "/" in name})


def list_members(path: Path) -> dict[str, list[Member]]:
    """Return where the members of a tar or zip are, by the names that a store gives them; some may have one name."""
    if archive_kind(path) == "zip":
        with zipfile.ZipFile(path) as file:
            infos = _zip_members(file)[0]
        return {name: [_zip_member(info)[0] for info in same] for name, same in infos.items()}
    with tarfile.open(path, "r:") as tar:
        every = [member for member, _ in listed_all(tar, path, [])]
    found: dict[str, list[Member]] = {}
    for name, offset, size, _ in every:
        found.setdefault(inside(name), []).append(Member(0, offset, size, size, RAW, 0))
    return found


def _empty(paths: list[Path]) -> Inputs:
    """Return Inputs without samples whose root is the folder that holds all the archives."""
    absolute = [Path(absolute_path(path)) for path in paths]
    root = Path(os.path.commonpath([path.parent for path in absolute]))
    archives = []
    for path in absolute:
        status = path.stat()
        archives.append(
            Archive(path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        )
    return Inputs(root, archives=tuple(archives))


# -- zips


def _zip_members(file: zipfile.ZipFile) -> tuple[dict[str, list[zipfile.ZipInfo]], list[str]]:
    """Return the members of a zip that are no folders, by name; a backslash parts folders where the zip was made so."""
    members = file.infolist()
    # APPNOTE 4.4.17.1 wants slashes; .NET and others on Windows wrote backslashes, which Info-ZIP's unzip takes for slashes too
    has_slash = any("/" in info.filename for info in members)
    found: dict[str, list[zipfile.ZipInfo]] = {}
    odd = 0
    for info in members:
        name = info.filename
        if "\\" in name and "/" not in name and (info.create_system == 0 or not has_slash):
            name = name.replace("\\", "/")
        if not name.endswith("/"):
            found.setdefault(inside(name), []).append(info)
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
