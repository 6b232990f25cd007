"""Parts of one pack, on any hosts that share OUT's folder: the inputs of each, and its folder.

A part is a separate store, .packing/parts/2-of-4 in the stage of OUT, made like any other. `packer.packing.parts` joins them.
The recorded options of a part, or of any store, are untrusted and checked.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packer.errors import OptionsError
from packer.options import RowOptions
from packer.store.journal import FOLDER, Header, header_of, read_progress
from reader.format.errors import StoreError
from reader.format.filesystem import refresh_names
from reader.format.manifest import MANIFEST, REJECTED, Manifest, read_manifest
from reader.format.splits import staging_path
from reader.format.values import Json, value_in

PARTS = f"{FOLDER}/parts"
# The key, in the labels, of the digest of the sources, by path, size, mtime and ctime.
SOURCES = "sources"
# Keys of a part: the numbers of parts and of all inputs; and the sums that sealing adds up.
DIVISION, TOTALS = "parts", "totals"
_ADDED = {"pixel_count", "sums", "square_sums", "max_rejects"}
_NAME = re.compile(rf"([1-9]\d*)-of-([1-9]\d*)(?:{re.escape(FOLDER)})?")


@dataclass(frozen=True, order=True)
class Part:
    """The number-th of count equal parts, from 1; written 2/4."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read "2/4", which the options have checked."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def span(self, inputs: int) -> range:
        """Return the span of inputs of this part.

        Example:
            >>> [Part(number, 3).span(inputs=10) for number in (1, 2, 3)]
            [range(0, 3), range(3, 6), range(6, 10)]
        """
        return range(inputs * (self.number - 1) // self.count, inputs * self.number // self.count)

    def folder(self, store: Path) -> Path:
        """Name the folder of this part of a store that is made in a folder of the stage."""
        return store / PARTS / f"{self.number}-of-{self.count}"

    def recorded(self, store: Path) -> Header | None:
        """Return the part's recorded inputs and options, from its journal or its manifest; None without both.

        Raises:
            StoreError: its record is damaged.
        """
        folder = self.folder(store)
        if header := header_of(staging_path(folder)):
            check_recorded(header)
            return header
        refresh_names(folder / MANIFEST)  # another host may have just finished it
        if not (folder / MANIFEST).exists():
            return None
        manifest = read_manifest(folder)
        check_recorded(manifest)
        labels = {name: value for name, value in manifest.labels.items() if name not in (SOURCES, TOTALS)}
        return Header(
            inputs=manifest.inputs,
            options=manifest.options,
            decoders=manifest.decoders,
            labels=labels,
            max_rejects=manifest.labels[TOTALS]["max_rejects"],
        )

    def is_packed(self, store: Path) -> bool:
        """Whether this part is finished: a store, or a complete journal of rejects alone."""
        stage = staging_path(self.folder(store))
        with contextlib.suppress(FileNotFoundError):  # another process has just finished it
            if header := header_of(stage):
                is_complete = read_progress(stage)[1:] == (header.inputs, 0) and (stage / REJECTED).is_file()
                return is_complete and (stage / REJECTED).read_bytes().count(b"\n") == header.inputs
        return self.recorded(store) is not None


def named_parts(store: Path) -> list[Part]:
    """List the parts of a store that have a folder, in order."""
    try:
        names = os.listdir(store / PARTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted({Part(int(match[1]), int(match[2])) for match in map(_NAME.fullmatch, names) if match})


def started_parts(store: Path) -> Iterator[Part]:
    """Yield the parts of a store that are packed or have a journal, in order."""
    return (part for part in named_parts(store) if part.recorded(store))


def wanted_parts(store: Path) -> list[Part]:
    """List the parts that have inputs, by the record of a started part; [] if none has started.

    Raises:
        StoreError: its record is damaged.
    """
    recorded: Header | None = next(filter(None, (part.recorded(store) for part in named_parts(store))), None)
    division: Any = recorded and recorded.labels.get(DIVISION)
    count, inputs = division or (0, 0)
    return [part for part in (Part(number, count) for number in range(1, count + 1)) if part.span(inputs)]


def check_recorded(manifest: Manifest | Header) -> None:
    """Check the options of rows, and the labels by which parts are joined; others may be any plain values.

    Raises:
        StoreError: one is invalid for `pack`.
    """
    try:
        RowOptions.pick_from(manifest.options)
    except OptionsError as e:
        raise StoreError(f"options of the manifest: {e}") from None
    for name, (holds, expected) in _LABELS.items():
        if name in manifest.labels:
            value_in("labels of the manifest", manifest.labels, name, holds, expected)


def _is_division(value: Json) -> bool:
    return type(value) is list and len(value) == 2 and all(type(each) is int and each > 0 for each in value)


_LABELS = {
    SOURCES: (lambda value: type(value) is str, "text"),
    DIVISION: (_is_division, "two integers of 1 or more"),
    TOTALS: (lambda value: type(value) is dict and value.keys() == _ADDED, f"an object of {', '.join(sorted(_ADDED))}"),
}
