"""The samples of one tar, as WebDataset has them: members by their key, and what its labels say.

The key is the name up to its first dot after the last slash; wherever they stand, members with one key are one sample. Decides
nothing about classes, targets or columns.
"""

from __future__ import annotations

import functools
import json
import posixpath
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packer.errors import ScanError
from packer.inputs.samples import Column
from packer.inputs.splits import is_junk_file, junk_above
from packer.inputs.tree import FileCounter
from packer.sources.members import RAW, Member
from packer.sources.tar_headers import read_members

# members of these suffixes say something about the image of their key, and are no inputs
_LABEL_SUFFIXES = ("cls", "json", "txt")
# Each is a column of all rows. Samples have a few; more are parts of names, as in a.0001.txt.
_MOST_KINDS = 256

# A member, and why it cannot be read if it cannot.
ListedMember = tuple[Member, str | None]


@dataclass(slots=True)
class SampleLabels:
    """What the label members of one key say, by column, and the suffixes of these members, in their order."""

    cells: dict[str, object] = field(default_factory=dict)
    suffixes: dict[str, None] = field(default_factory=dict)

    def add(self, suffix: str, data: bytes, where: str) -> None:
        """Add what a label member says; where names it in an error."""
        found = _said(suffix, data, where)
        for name in found.keys() & self.cells.keys():
            # 3 in a .json is "3" in a .cls
            mine, other = (str(value).strip() for value in (found[name], self.cells[name]))
            if mine != other:
                raise ScanError(
                    f"{where} says {mine[:80]!r} as {name}, another label of its sample {other[:80]!r}: the name of a"
                    " sample ends at its first dot. Give each sample a name without dots, or unpack the tar and pack the folder."
                )
        self.cells |= found
        self.suffixes[sys.intern(suffix)] = None


@dataclass
class Samples:
    """The members of a tar that hold no label, and no folder, in their order; the bytes of its labels, by name."""

    path: Path
    names: list[str] = field(default_factory=list)
    numbers: Column = field(default_factory=lambda: Column("int64", len(Member._fields)))
    refused: dict[int, str] = field(default_factory=dict)
    labels: dict[str, bytes] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, name: str, numbers: tuple[int, ...], refusal: str | None) -> None:
        """Append one; numbers are those of a Member."""
        if refusal is not None:
            self.refused[len(self.names)] = refusal
        self.names.append(name)
        self.numbers.values.extend(numbers)

    def add_label(self, name: str, data: bytes) -> None:
        """Add what a label member says of its key; raises ScanError where one of its name says something else."""
        if not is_left_out(name) and self.labels.setdefault(name, data) != data:
            raise ScanError(
                f"{self.path}/{name} is there twice, with different labels. Give each sample a name of its own."
            )

    def listed(self) -> Iterator[tuple[str, ListedMember]]:
        """Yield the name of each and what is known of it."""
        for index, name in enumerate(self.names):
            yield name, (Member(*self.numbers[index]), self.refused.get(index))

    def records(self) -> list[SampleLabels]:
        """Return what the labels of each say, and forget their bytes; those of a key without an image are not read.

        Raises:
            ScanError: a label makes no sense, or another of its sample says something else.
        """
        if not self.labels:
            return [SampleLabels()] * len(self.names)
        found = {_key(name): SampleLabels() for name in self.names}
        for name in list(self.labels):
            data, record = self.labels.pop(name), found.get(_key(name))
            if record is not None:
                record.add(name.rpartition("/")[2].partition(".")[2].lower(), data, f"{self.path}/{name}")
        return [found[_key(name)] for name in self.names]


def read_samples(path: Path, number: int, count: FileCounter) -> Samples:
    """List what is in a tar, the number-th of a pack, but folders. Labels are complete at its end.

    Raises:
        ScanError: it cannot be read, is cut short, or has one label twice.
    """
    found = Samples(path)
    for (name, offset, size, _), label, refusal in read_members(path, _LABEL_SUFFIXES, found.notes):
        count.add(1)
        if label is not None:
            found.add_label(inside(name), label)
        else:
            found.add(inside(name), (number, offset, size, size, RAW, 0), refusal)
    return found


def check_kinds(name: str, records: Collection[SampleLabels]) -> None:
    """Refuse labels of so many kinds that their names must be meant otherwise; a .json is of one kind, by whatever name.

    Raises:
        ScanError: there are too many.
    """
    kinds = {kind for record in records for kind in record.suffixes if kind.rpartition(".")[2] != "json"}
    if len(kinds) > _MOST_KINDS:
        raise ScanError(
            f"{name} has labels of {len(kinds)} kinds, such as .{min(kinds)} and .{max(kinds)}, expected {_MOST_KINDS} at most:"
            " the name of a sample ends at its first dot. Give each sample a name without dots, or unpack the tar and pack the"
            " folder."
        )


def inside(name: str) -> str:
    """Return a member's name without anything that would lead out of a folder: "/a/../b.jpg" -> "b.jpg"."""
    folder, _, base = name.rpartition("/")
    return _above(folder) + base if base.strip(".") else posixpath.normpath(f"/{name}").lstrip("/")


def is_left_out(name: str) -> bool:
    """Whether a member is a system's, or in a folder that is hidden or a system's."""
    folder, slash, base = name.rpartition("/")
    return _is_junk_folder(folder + slash) or is_junk_file(base)


@functools.lru_cache(1024)
def _above(folder: str) -> str:
    """Return what stands before the name of a file in a folder: "./a" -> "a/"."""
    return f"{posixpath.normpath(f'/{folder}')}/".lstrip("/")


@functools.lru_cache(1024)
def _is_junk_folder(folder: str) -> bool:
    return bool(junk_above(folder))


def _key(name: str) -> str:
    """Return what the members of one sample have in common: "a/b.seg.png" -> "a/b"."""
    folder, _, base = name.rpartition("/")
    return f"{folder}/{base.partition('.')[0]}"


def _said(suffix: str, data: bytes, where: str) -> dict[str, object]:
    """Return what a label member says, as columns: a JSON object's fields, else one under the member's suffix."""
    text = data.decode("utf-8-sig", "surrogateescape")
    if suffix.rpartition(".")[2] != "json":
        return {suffix: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise ScanError(f"{where} is not JSON: {e}.") from None
    return value if isinstance(value, dict) else {"label": value}
