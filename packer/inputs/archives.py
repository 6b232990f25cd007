"""Tars and zips: their members as inputs, with labels and the positions of their bytes. Nothing is unpacked.

A tar may have WebDataset's labels: a.cls beside a.jpg is the label, a.json and a.txt are kept in samples.jsonl.
Splits and classes follow the folders in the archive.
"""

from __future__ import annotations

import json
import os
import posixpath
import tarfile
import zipfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, cast

from packer.errors import ScanError
from packer.inputs.labels import give_labels
from packer.inputs.names import NameFilter, divided
from packer.inputs.samples import Inputs, Paths
from packer.inputs.tables import Cells
from packer.option_names import Option
from packer.options import InputOptions
from packer.sources.base import DEFLATED, RAW, STORED, Archive, Member
from packer.sources.roots import check_system
from reader.format.filesystem import absolute_path
from reader.format.values import Json

# suffixes of an image's label files in a tar
_LABELS = ("cls", "json", "txt")
_READ_BYTES = 256 << 10
_MOST_LABEL_BYTES = 16 << 20


def archive_kind(path: Path) -> str | None:
    """Return "tar", "zip" or "gzip" by a file's first bytes, or None."""
    try:
        with open(path, "rb") as file:
            head = file.read(tarfile.BLOCKSIZE)
    except OSError as e:
        check_system(str(path), e)
        raise ScanError(f"{path} cannot be read: {e.strerror}.") from None
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return "zip"
    if head.startswith((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")):
        return "gzip"
    # its place in a member's header by POSIX ustar and GNU
    return "tar" if head[257:262] == b"ustar" else None


def read_tars(paths: list[Path], classes: tuple[str, ...] | None, options: InputOptions) -> dict[str, Inputs]:
    """List the members of one or more tars, in their order.

    Raises:
        ScanError: a tar cannot be read or is cut short, or a label is invalid.
    """
    inputs, name_filter, cells = (
        _empty(paths),
        NameFilter(),
        Cells(str(paths[0]), options.target_column or "cls", is_optional=True),
    )
    for number, path in enumerate(paths):
        _add_tar(inputs, name_filter, cells, number, path)

    def where(index: int) -> str:
        """Name a sample for an error: archives have no lines."""
        return f"the sample {inputs.paths[index]} of {paths[inputs.members[index][0]]}"

    inputs.cells = cells.further if any(cell != "{}" for cell in cells.further) else Paths()
    if options.target_column is not None and not cells.targets:
        raise ScanError(f"no .json of {paths[0]} has {options.target_column!r}, which {Option('target_column')} names.")
    if cells.targets:
        give_labels(inputs, cells.targets, where, classes, options.label_separator)
        for name, column in cells.targets.items():
            for index in (index for index, cell in enumerate(column) if cell is None):
                inputs.refused.setdefault(index, f"it has no {name}, and others of its tar have one")
    name_filter.report(inputs, ", ".join(map(str, paths)))
    return _as_folder(inputs)


def _add_tar(inputs: Inputs, name_filter: NameFilter, cells: Cells, number: int, path: Path) -> None:
    """Add the images of a tar, the number-th of all, and the columns of each."""
    labels, before = dict[str, dict[str, bytes]](), len(inputs)
    for name, offset, size, label, refusal in _members(path, _LABELS):
        name_filter.count()
        inside = _inside(name)
        if label is not None and name_filter.passes(inside):
            stem, _, suffix = inside.rpartition(".")
            if labels.setdefault(stem, {}).setdefault(suffix.lower(), label) != label:
                raise ScanError(f"{path}/{inside} is there twice, with different contents. Give each sample a name.")
        elif name_filter.takes(inside):
            inputs.add(inside, refusal)
            inputs.members.values.extend((number, offset, size, size, RAW, 0))
    stems = {stem for name in inputs.paths[before:] for stem in _stems(name)}
    name_filter.ignored += sum(len(found) for stem, found in labels.items() if stem not in stems)
    for name in inputs.paths[before:]:
        cells.add(_record(name, labels, path))


def _members(path: Path, suffixes: Collection[str]) -> Iterator[tuple[str, int, int, bytes | None, str | None]]:
    """Yield a tar's members except folders, in order: name, offset and size of the data, label data, reason.

    The label data is that of a label file; the reason is given if the member cannot be an input.

    Raises:
        ScanError: it is cut short, damaged, or several tars in one file.
        SourceError: its disk cannot be read now.
    """
    size_bytes, name = path.stat().st_size, "its beginning"
    try:
        with tarfile.open(path, "r:") as tar:
            file = cast(IO[bytes], tar.fileobj)
            while (info := tar.next()) is not None:
                # tarfile would keep all members
                tar.members = []  # type: ignore[attr-defined]
                name, label = info.name, None
                # after a negative size, this member would come again, forever
                if info.size < 0 or (info.isreg() and info.offset_data + info.size > size_bytes):
                    raise tarfile.ReadError("the member's data are not all there")
                if info.isdir():
                    continue
                is_plain = info.isreg() and not info.issparse()
                if is_plain and name.lower().rpartition(".")[2] in suffixes and info.size <= _MOST_LABEL_BYTES:
                    file.seek(info.offset_data)
                    label = file.read(info.size)
                yield name, info.offset_data, info.size, label, None if is_plain else "it is no plain file in its tar"
            _check_end(file, tar.offset)
    # tarfile raises the last four for records, sizes and chains of headers that no program writes
    except (OSError, tarfile.TarError, EOFError, ValueError, OverflowError, MemoryError, RecursionError) as e:
        if isinstance(e, OSError):
            check_system(str(path), e)
        raise ScanError(f"{path} is cut short or damaged at {name}: {e}. Copy it again.") from None


def _check_end(file: IO[bytes], offset: int) -> None:
    """Raise ReadError if a tar continues after its end: tarfile takes a damaged header for the end, and `cat` joins tars."""
    file.seek(offset)
    while data := file.read(_READ_BYTES):
        if any(data):
            raise tarfile.ReadError("a header after it is damaged, or another tar follows")


def _record(name: str, labels: dict[str, dict[str, bytes]], path: Path) -> dict[str, Json]:
    """Return the columns of an image: the fields of its .json, and its .cls and .txt under those names."""
    found: dict[str, Json] = {}
    for suffix, data in next((labels[stem] for stem in _stems(name) if stem in labels), {}).items():
        text = data.decode("utf-8-sig", "surrogateescape")
        try:
            value = json.loads(text) if suffix == "json" else text.strip() if suffix == "cls" else text
        except (ValueError, RecursionError) as e:
            raise ScanError(f"the .json of {name} in {path} is not JSON: {e}.") from None
        found |= value if isinstance(value, dict) else {suffix: value}
    return found


def _stems(name: str) -> tuple[str, str]:
    """Return the stems that an image may share with its label, the full one first: "c/a 1.0.jpg" -> "c/a 1.0", "c/a 1"."""
    folder, slash, file = name.rpartition("/")
    return name.rpartition(".")[0], folder + slash + file.partition(".")[0]


def read_zip(path: Path) -> dict[str, Inputs]:
    """List a zipped folder by the rules of a folder: class folders, images, or splits of those.

    Raises:
        ScanError: it cannot be read or holds no image.
    """
    inputs, name_filter = _empty([path]), NameFilter()
    try:
        with zipfile.ZipFile(path) as file:
            for info in file.infolist():
                name_filter.count(not info.is_dir())
                name = _inside(info.filename)
                if not info.is_dir() and name_filter.takes(name):
                    inputs.add(name, _zip_refusal(info))
                    sizes = info.compress_size, info.file_size
                    inputs.members.values.extend((0, info.header_offset, *sizes, info.compress_type, info.CRC))
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as e:
        if isinstance(e, OSError):
            check_system(str(path), e)
        raise ScanError(f"{path} cannot be read: {e}. Copy it again.") from None
    name_filter.report(inputs, path)
    return _as_folder(inputs, is_sorted=True)


def _as_folder(inputs: Inputs, *, is_sorted: bool = False) -> dict[str, Inputs]:
    """Divide members by splits, by the rules of a folder; `name_members` puts the archive's name back."""
    found, above = divided(inputs, is_sorted=is_sorted)
    for split, one in found.items():
        one.above = above + (f"{split}/" if split else "")
    return found


def name_members(inputs: Inputs) -> None:
    """Put the name of its archive before the path of each input."""
    names, archives = inputs.paths, [archive.path for archive in inputs.archives]
    numbers = inputs.members.values[:: len(Member._fields)]
    inputs.paths = Paths(
        f"{archives[number]}/{inputs.above}{name}" for number, name in zip(numbers, names, strict=True)
    )


def _empty(paths: list[Path]) -> Inputs:
    """Return Inputs without samples; their root is the folder that holds all the archives."""
    absolute = [Path(absolute_path(path)) for path in paths]
    root = Path(os.path.commonpath([path.parent for path in absolute]))
    archives = []
    for path in absolute:
        status = path.stat()
        archives.append(
            Archive(path.relative_to(root).as_posix(), status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        )
    return Inputs(root, archives=tuple(archives))


def _inside(name: str) -> str:
    """Return a member's name without parts that lead out of a folder: "/a/../b.jpg" -> "b.jpg"."""
    # no file system has a NUL in a name; a tar may
    return posixpath.normpath(f"/{name}").lstrip("/").replace("\0", "?")


def _zip_refusal(info: zipfile.ZipInfo) -> str | None:
    if info.flag_bits & 1:
        return "it is encrypted in its zip"
    if info.compress_type not in (STORED, DEFLATED):
        return f"its zip compresses it by method {info.compress_type}; stored and deflated can be read"
    return None
