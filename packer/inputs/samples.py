"""The inputs of a pack as plain values: their names, targets, and the places of their bytes.

Flat buffers and arrays, not one object per input: a million images are about 60 MB of paths. Reads nothing.
"""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from packer.sources.base import Archive, Member
from reader.format.values import Json

if TYPE_CHECKING:
    from packer.inputs.boxes import Boxes

# dtype of the store -> typecode of the standard library's array; a bool is a byte
_CODES = {"int64": "q", "int32": "i", "float32": "f", "float64": "d", "uint8": "B", "bool": "B"}
# Paths that a loop decodes at once.
_TOGETHER = 1024
# Keeps the bytes of names that are not UTF-8.
_ERRORS = "surrogatepass"


class Paths(Sequence[str]):
    """Paths in one buffer, each ended by a NUL.

    Example:
        >>> paths = Paths(["a/1.jpg", "b/2.jpg"])
        >>> paths[1], paths[:1], bytes(paths.encoded)
        ('b/2.jpg', ['a/1.jpg'], b'a/1.jpg\\x00b/2.jpg\\x00')
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._data, self._ends = bytearray(), array("Q")
        for path in paths:
            self.append(path)

    def append(self, path: str) -> None:
        """Add a path."""
        self._data += path.encode("utf-8", _ERRORS)
        self._data.append(0)
        self._ends.append(len(self._data))

    @property
    def encoded(self) -> bytearray:
        """All paths in UTF-8, each ended by a NUL; read only."""
        return self._data

    def escaped_bytes(self) -> int:
        """Return the most bytes that all paths take in a journal."""
        # non-ASCII text is escaped twice: "é" is \\\\u00e9
        return len(self._data) * (1 if self._data.isascii() else 7)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        end = self._ends[index]
        number = index + len(self) if index < 0 else index
        begin = self._ends[number - 1] if number else 0
        return self._data[begin : end - 1].decode("utf-8", _ERRORS)

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _TOGETHER):
            begin, stop = self._ends[start - 1] if start else 0, min(start + _TOGETHER, len(self))
            yield from self._data[begin : self._ends[stop - 1] - 1].decode("utf-8", _ERRORS).split("\0")


@dataclass
class Column:
    """Numbers of every input: one, or `count` of them (rows of the tensor are then one-dimensional)."""

    dtype: str
    count: int | None = None
    values: array[Any] = field(default_factory=lambda: array("q"))

    @classmethod
    def from_rows(cls, dtype: str, rows: Iterable[Any], count: int | None = None, *, code: str = "") -> Column:
        """Collect one number per input, or a sequence of count numbers; code: the array's typecode, if not that of dtype."""
        flat = rows if count is None else (number for row in rows for number in row)
        return cls(dtype, count, array(code or _CODES[dtype], flat))

    @classmethod
    def multi_hot(cls, labels: Iterable[Collection[int]], count: int) -> Column:
        """Collect the classes of each input as count numbers 0 or 1: a byte each in memory, float32 in the store."""
        return cls.from_rows("float32", ([int(k in row) for k in range(count)] for row in labels), count, code="B")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one input's numbers: () or (count,)."""
        return () if self.count is None else (self.count,)

    def __getitem__(self, index: int) -> Json:
        if self.count is None:
            return self.values[index]
        return self.values[index * self.count : (index + 1) * self.count].tolist()

    def tolist(self, start: int = 0, stop: int | None = None) -> list[Json]:
        """Return the numbers of inputs [start, stop); a list for each input if count is given."""
        if self.count is None:
            return self.values[start:stop].tolist()
        stop = len(self.values) // self.count if stop is None else stop
        return [self[index] for index in range(start, stop)]

    def chosen(self, indices: Sequence[int]) -> Column:
        """Return the column of these inputs, in this order."""
        width = self.count or 1
        if indices and isinstance(indices, range) and indices.step == 1:
            return Column(self.dtype, self.count, self.values[indices.start * width : indices.stop * width])
        taken = array(self.values.typecode)
        for index in indices:
            taken.extend(self.values[index * width : (index + 1) * width])
        return Column(self.dtype, self.count, taken)

    def encoded(self) -> bytes:
        """Return the numbers as the store holds them: little-endian, without gaps."""
        values = array(_CODES[self.dtype], self.values)
        if sys.byteorder == "big":
            values.byteswap()
        return values.tobytes()


@dataclass
class Inputs:
    """Samples in input order. Paths are relative to root; a member's is its archive's path, "/", and its name."""

    root: Path
    classes: tuple[str, ...] = ()
    paths: Paths = field(default_factory=Paths)
    targets: Column = field(default_factory=lambda: Column("int64"))
    target_kind: str = "class"
    # only for copied rows: further tensors
    extras: dict[str, Column] = field(default_factory=dict)
    # only for tables and tars: the further columns of each input, as a JSON object
    cells: Paths = field(default_factory=Paths)
    refused: dict[int, str] = field(default_factory=dict)
    ignored: int = 0
    # only with --boxes
    boxes: Boxes | None = None
    # only with --masks: each input's mask, relative to that folder
    masks: list[str] | None = None
    # only for a list or table: the line that names each input
    lines: Column = field(default_factory=lambda: Column("int64"))
    # only for archives: a Member for each input
    archives: tuple[Archive, ...] = ()
    members: Column = field(default_factory=lambda: Column("int64", len(Member._fields)))
    # the folder around all members of an archive, and the split's: "photos/train/"
    above: str = ""
    # only for a dataset, whose targets are unknown before its items are read: its first item, which identifies it
    identity: str = ""
    # how targets, classes and boxes were read, as the manifest records it: names of columns, digests, no path
    labels: dict[str, object] = field(default_factory=dict)
    # sentences for the user about valid inputs
    notes: list[str] = field(default_factory=list)
    # IMAGES as the user named it, for the command that resumes a pack; () for a dataset
    images: tuple[str, ...] = ()
    # only for object storage, instead of root: the URL; and the listed size and version of each input, and 0
    url: str = ""
    states: Column = field(default_factory=lambda: Column("int64", 3))
    # the folders and archives of inputs and masks; () for object storage
    roots: tuple[str, ...] = ()

    @property
    def base(self) -> str:
        """The start of the paths: root, or a URL."""
        return self.url or str(self.root)

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, path: str, refusal: str | None = None) -> None:
        """Append one sample without a label; with a refusal it is rejected without being opened."""
        if refusal is not None:
            self.refused[len(self.paths)] = refusal
        self.paths.append(path)
        self.targets.values.append(-1)

    def line(self, index: int) -> int | None:
        """Return the line number of an input in its list, or None."""
        return self.lines[index] if self.lines.values else None

    def columns(self) -> dict[str, Column]:
        """Return the numeric columns of the inputs, by name."""
        # these names are in the listing's digest, by which a resume knows its inputs
        return {"targets": self.targets, "lines": self.lines, "members": self.members}

    def shuffled(self, seed: int) -> Inputs:
        """Return the same samples in an order fixed by seed (Python documents that `random()` keeps its sequence)."""
        draw = random.Random(seed).random
        return self.chosen(sorted(range(len(self)), key=[draw() for _ in range(len(self))].__getitem__))

    def chosen(self, order: Sequence[int], *, below: int = 0) -> Inputs:
        """Return these samples, in this order; below: the number of characters to cut from the start of each path."""

        def moved(column: Column) -> Column:
            """Reorder the rows of a column; an empty one stays empty."""
            return column.chosen(order if column.values else ())

        return replace(
            self,
            paths=Paths(self.paths[index][below:] for index in order),
            cells=Paths(self.cells[index] for index in order if self.cells),
            refused={new: self.refused[old] for new, old in enumerate(order) if old in self.refused},
            boxes=self.boxes and self.boxes.chosen(order),
            masks=self.masks and [self.masks[index] for index in order],
            targets=moved(self.targets),
            lines=moved(self.lines),
            members=moved(self.members),
            states=moved(self.states),
            labels={**self.labels},
            notes=[*self.notes],
        )
