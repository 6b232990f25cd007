"""The record of a pack in progress, in OUT/.packing: which blocks are safely on disk. A header, then a line a block.

A line is the crc32 of its JSON as 8 hex digits, a space, and the JSON. It is appended only after the block's rows are synced; a
resume keeps the longest prefix of complete lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from packer.errors import JournalError
from packer.store.blocks import Result
from packer.store.files import sync_folder
from packer.system import BINARY
from reader.format.errors import StoreError
from reader.format.fields import (
    BOOL,
    PLAIN_OBJECT,
    TEXT,
    TEXTS,
    Json,
    check_fields,
    integer,
    key,
    optional,
    read_record,
    record,
    tuple_of,
    write_record,
)
from reader.format.filesystem import error_path, open_regular, retry_missing
from reader.format.shown import brief
from reader.format.splits import FOLDER

JOURNAL = f"{FOLDER}/journal"

# more than the longest line: 4,096 samples of about 300 bytes
_TAIL_BYTES = 8 << 20
# Of a line, in front of its JSON.
_CRC_BYTES = 9
_BLOCK_BEGIN = b' {"inputs_stop":'
_STOPS = re.compile(rb' \{"inputs_stop":(\d+),"rows_stop":(\d+)')
# Blocks have up to 4,096 inputs, whose sources, masks and lines are in one line.
_MOST_LINE_BYTES = 64 << 20

_BLOCK = "a block of the journal"
_STOP_KEYS = dict.fromkeys(("inputs_stop", "rows_stop"), integer(0))
_SPAN = optional(tuple_of(integer(0), "two integers", count=2))


@record()
class Header:
    """The first line: what is packed and how. Field names are its keys, in this order.

    `images`, `words`, `split`, `update` and `command` serve the command that resumes the pack; a resume compares the others.
    """

    # version of the lines; block_inputs is how many inputs a block has
    journal: int = key(integer(1), default=2)
    inputs: int = key(integer(0), default=0)
    listing: str = key(TEXT, default="")
    classes: tuple[str, ...] = key(TEXTS, default=())
    options: Mapping[str, Any] = key(PLAIN_OBJECT, default_factory=dict)
    decoders: Mapping[str, object] = key(PLAIN_OBJECT, default_factory=dict)
    # None: begun by pixpack 0.1
    labels: Mapping[str, object] | None = key(optional(PLAIN_OBJECT), where_given=True, default=None)
    block_inputs: int = key(integer(0), default=0)
    # empty: a dataset is packed
    images: tuple[str, ...] = key(TEXTS, default=("IMAGES",))
    words: tuple[str, ...] = key(TEXTS, default=())
    split: str = key(TEXT, default="")
    further_targets: tuple[str, ...] = key(TEXTS, where_given=True, default=())
    update: bool = key(BOOL, where_given=True, default=False)
    # what is done with them, a word of the command; "": they are packed
    command: str = key(TEXT, where_given=True, default="")
    # which of the inputs are this part's: start and stop; None where it is no part
    span: tuple[int, int] | None = key(_SPAN, where_given=True, default=None)

    def encode(self) -> bytes:
        """Return the line."""
        return _encoded(write_record(self))

    @classmethod
    def from_json(cls, line: Json) -> Header:
        """Return the header that an object says; keys of other versions are dropped.

        Raises:
            StoreError: a value is none that a header has.
        """
        return read_record(cls, "the header of the journal", line, of_any_version=True)


class Journal:
    """Append-only; `append` returns when its lines are on disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, out: Path, header: Header) -> Journal:
        """Create a journal; the header describes what is packed and how."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | BINARY, 0o666))
        journal._append(header.encode())
        sync_folder(path.parent)
        return journal

    @classmethod
    def reopen(cls, out: Path, keep_bytes: int) -> Journal:
        """Open a journal to append after its first keep_bytes; the rest is cut off."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_APPEND | BINARY))
        with error_path(path):
            os.ftruncate(journal._descriptor, keep_bytes)
            # before other rows overwrite the truncated ones
            os.fsync(journal._descriptor)
        # its creator may have been killed before this step
        sync_folder(path.parent)
        return journal

    def append(self, results: list[Result], inputs_stop: int, rows_stop: int) -> None:
        """Record blocks whose rows are on disk; the stops are the totals after the last of them."""
        blocks = []
        for result in reversed(results):
            blocks.append(encode_block(result, inputs_stop, rows_stop))
            inputs_stop, rows_stop = inputs_stop - result.inputs, rows_stop - result.rows
        self._append(b"".join(blocks[::-1]))

    def close(self) -> None:
        """Let the file go; it stays for a resume or until the store is sealed."""
        with error_path(self.path):
            os.close(self._descriptor)

    def _append(self, lines: bytes) -> None:
        data = memoryview(lines)
        with error_path(self.path):
            while len(data):
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)


def encode_block(result: Result, inputs_stop: int, rows_stop: int) -> bytes:
    """Return the line of a block; the stops are the totals of inputs and rows with it."""
    return _encoded({"inputs_stop": inputs_stop, "rows_stop": rows_stop, **write_record(result)})


def discard(out: Path) -> None:
    """Remove OUT's journal, if it has one, for certain: what it names may be overwritten after this."""
    (out / JOURNAL).unlink(missing_ok=True)
    sync_folder(out / FOLDER)


def read_header(out: Path) -> Header:
    """Return the first line of OUT's journal.

    Raises:
        JournalError: it has none.
    """
    if found := find_header(out):
        return found[0]
    raise JournalError(f"{out / JOURNAL} is empty or damaged. Start over with --overwrite.")


def has_started(out: Path) -> bool:
    """Whether OUT holds a pack that can be resumed: a journal with a complete header.

    Raises:
        OSError: there is a journal that cannot be read; what it records must not be taken for lost.
    """
    try:
        return retry_missing(out / JOURNAL, lambda: find_header(out) is not None)
    except (FileNotFoundError, NotADirectoryError):
        return False


def header_end(out: Path) -> int:
    """Return the byte where the journal's header ends."""
    found = find_header(out)
    return 0 if found is None else found[1]


def find_header(out: Path) -> tuple[Header, int] | None:
    """Return the header of OUT's journal and the byte where its line ends; None where it is incomplete or damaged."""
    path = out / JOURNAL
    with _named(path):
        return next(((Header.from_json(line), end) for line, end in _read_lines(path)), None)


def read_blocks(out: Path) -> Iterator[tuple[Result, int]]:
    """Yield each recorded block and the byte where its line ends, up to the first line that is incomplete or damaged."""
    path = out / JOURNAL
    lines = islice(_read_lines(path), 1, None)
    while True:
        with _named(path):
            found = next(((_block(line), end) for line, end in lines), None)
        if found is None:
            return
        yield found


def read_progress(out: Path) -> tuple[Header, int, int]:
    """Return the header of OUT's journal, and how many inputs and rows its last complete line says are committed.

    Reads the first line and the end of the file: milliseconds, whatever the number of rows.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with open_regular(out / JOURNAL) as file:
        header = Header.from_json(_parsed(file.readline(_MOST_LINE_BYTES)[_CRC_BYTES:]))
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return header, *_last_stops(file.read(_TAIL_BYTES))


def _block(line: Json) -> Result:
    """Return the block that an object says; keys of other versions are dropped."""
    check_fields(_BLOCK, line, _STOP_KEYS)
    return read_record(Result, _BLOCK, line, of_any_version=True)


def _encoded(line: Mapping[str, object]) -> bytes:
    text = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _read_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
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
