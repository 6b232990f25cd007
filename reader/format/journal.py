"""The journal of an unfinished pack: what its lines say and how they are encoded. A header, then a line a block.

A line is the crc32 of its JSON as 8 hex digits, a space, and the JSON. Imports only the standard library and writes nothing;
`packer.store.journal` appends to journals and resumes by them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from reader.format.errors import StoreError
from reader.format.fields import BOOL, PLAIN_OBJECT, TEXT, TEXTS, Check, Json, check_fields, integer, list_of, optional
from reader.format.filesystem import error_path, open_regular
from reader.format.shown import brief

FOLDER = ".packing"
JOURNAL = f"{FOLDER}/journal"

# more than the longest line: 4,096 samples of about 300 bytes
_TAIL_BYTES = 8 << 20
# Of a line, in front of its JSON.
_CRC_BYTES = 9
_BLOCK_BEGIN = b' {"inputs_stop":'
_STOPS = re.compile(rb' \{"inputs_stop":(\d+),"rows_stop":(\d+)')
# Blocks have up to 4,096 inputs, whose sources, masks and lines are in one line.
_MOST_LINE_BYTES = 64 << 20

_PAIRS = list_of(list_of(integer(-1), "two integers"), "a list of pairs of integers")
# Bytes and time in ns: files may be dated before 1970, and after 2262, when 64 bits end.
_STATES = list_of(list_of(integer(-(1 << 127), 1 << 127), "two integers"), "a list of pairs of integers")
_HEADER = {
    "journal": integer(1),
    "inputs": integer(0),
    "listing": TEXT,
    "classes": TEXTS,
    "options": PLAIN_OBJECT,
    "decoders": PLAIN_OBJECT,
    "labels": optional(PLAIN_OBJECT),
    "block_inputs": integer(0),
    "images": TEXTS,
    "words": TEXTS,
    "split": TEXT,
    "further_targets": TEXTS,
    "update": BOOL,
    "span": optional(list_of(integer(0), "two integers")),
}
_STOP_KEYS = frozenset({"inputs_stop", "rows_stop"})
_REJECT = {"input": integer(0), "path": TEXT, "reason": TEXT}
_BLOCK = {
    **dict.fromkeys(
        ("inputs_stop", "rows_stop", "block", "inputs", "rows", "pixel_count", "size_bytes", "unpacked_bytes", "kept"),
        integer(0),
    ),
    **dict.fromkeys(("crc32", "unpacked_crc32"), integer(0, (1 << 32) - 1)),
    "frames": list_of(integer(1), "a list of integers of 1 or more"),
    **dict.fromkeys(("sums", "square_sums"), list_of(integer(0, 1 << 128), "a list of integers")),
    "samples": TEXTS,
    "content": list_of(list_of(integer(0), "four integers"), "a list of four integers each"),
    "rejects": list_of(Check("", lambda value: _is_reject(value)), "a list of objects with input, path and reason"),
    **dict.fromkeys(("sources", "mask_sources"), _STATES),
    "shapes": _PAIRS,
    "mask_values": list_of(integer(0, 255), "a list of integers from 0 to 255"),
    **dict.fromkeys(("source_bytes", "read_since_ns"), integer(0)),
}


@dataclass(frozen=True)
class Header:
    """The first line: what is packed and how. Field names are its keys, in this order.

    `images`, `words`, `split` and `update` serve the command that resumes the pack; a resume compares the others.
    """

    # version of the lines; block_inputs is how many inputs a block has
    journal: int = 2
    inputs: int = 0
    listing: str = ""
    classes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    decoders: Mapping[str, object] = field(default_factory=dict)
    # None: begun by pixpack 0.1
    labels: Mapping[str, object] | None = None
    block_inputs: int = 0
    # empty: a dataset is packed
    images: tuple[str, ...] = ("IMAGES",)
    words: tuple[str, ...] = ()
    split: str = ""
    further_targets: tuple[str, ...] = ()
    update: bool = False
    # which of the inputs are this part's: start and stop; None where it is no part
    span: tuple[int, int] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the line's object; what is optional and absent has no key."""
        values = {key.name: getattr(self, key.name) for key in fields(self)}
        optional = ("labels", "further_targets", "update", "span")
        return {name: value for name, value in values.items() if value or name not in optional or value == {}}

    @classmethod
    def from_json(cls, line: Mapping[str, object]) -> Header:
        """Return the header that an object says; keys of other versions are dropped.

        Raises:
            ValueError: a value is none that a header has.
        """
        check_fields("the header of the journal", line, _HEADER, may_lack=frozenset(_HEADER))
        known = {key.name for key in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in line.items() if name in known}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        return cls(**values)


@dataclass(frozen=True)
class RejectedInput:
    """An input of a block that became no row: its number in the pack, its path, and why. Field names are its keys."""

    input: int
    path: str
    reason: str

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> RejectedInput:
        """Return the one that a checked object says."""
        return cls(*(found[name] for name in _REJECT))


@dataclass(frozen=True)
class BlockLine:
    """A line behind the header: the totals of inputs and rows with this block, and what the packer knows of it."""

    inputs_stop: int
    rows_stop: int
    known: Mapping[str, Any]

    def to_json(self) -> dict[str, object]:
        """Return the line's object."""
        return {"inputs_stop": self.inputs_stop, "rows_stop": self.rows_stop, **self.known}

    @classmethod
    def from_json(cls, line: dict[str, Any]) -> BlockLine:
        """Return the block that an object says.

        Raises:
            ValueError: a value is none that a block has.
        """
        check_fields("a block of the journal", line, _BLOCK, may_lack=frozenset(_BLOCK) - _STOP_KEYS)
        return cls(line.pop("inputs_stop"), line.pop("rows_stop"), line)


def _is_reject(value: Json) -> bool:
    return type(value) is dict and all(name in value and check.holds(value[name]) for name, check in _REJECT.items())


def encode(line: Header | BlockLine) -> bytes:
    """Return the bytes of a line."""
    text = json.dumps(line.to_json(), ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def read_header(path: Path) -> tuple[Header, int] | None:
    """Return the header and the byte where its line ends; None where it is incomplete or damaged."""
    with _named(path):
        return next(((Header.from_json(line), end) for line, end in _read_lines(path)), None)


def read_block_lines(path: Path) -> Iterator[tuple[BlockLine, int]]:
    """Yield each block and the byte where its line ends, up to the first line that is incomplete or damaged."""
    lines = islice(_read_lines(path), 1, None)
    while True:
        with _named(path):
            found = next(((BlockLine.from_json(line), end) for line, end in lines), None)
        if found is None:
            return
        yield found


def read_progress(path: Path) -> tuple[Header, int, int]:
    """Return a journal's header, and how many inputs and rows its last complete line says are committed.

    Reads the first line and the end of the file: milliseconds, whatever the number of rows.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with open_regular(path) as file:
        header = Header.from_json(_parsed(file.readline(_MOST_LINE_BYTES)[_CRC_BYTES:]))
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return header, *_last_stops(file.read(_TAIL_BYTES))


def _read_lines(path: Path) -> Iterator[tuple[dict[str, object], int]]:
    end = 0
    with error_path(path), open_regular(path) as file:
        for line in iter(partial(file.readline, _MOST_LINE_BYTES), b""):
            text = line[_CRC_BYTES:-1]
            if not line.endswith(b"\n") or line[:_CRC_BYTES] != b"%08x " % zlib.crc32(text):
                return
            end += len(line)
            yield _parsed(text), end


def _parsed(text: bytes) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise StoreError(f"the journal has a line that is not JSON: {brief(text[:60])}.") from None


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as e:
        raise StoreError(f"{path}: {e} Start over with --overwrite.") from None


def _last_stops(lines: bytes) -> tuple[int, int]:
    """Return the totals of the last line that has them, found from the end: a journal has megabytes."""
    at = len(lines)
    while (at := lines.rfind(_BLOCK_BEGIN, 0, at)) >= 0:
        if stops := _STOPS.match(lines, at):
            return int(stops[1]), int(stops[2])
    return 0, 0
