"""The journal in .packing lists the blocks that are safely on disk: a header, then a line a block.

A line is the crc32 of its JSON as 8 hex digits, a space, and the JSON. It is appended only after the block's rows are synced; a
resume keeps the longest prefix of complete lines.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from packer.store.files import sync_folder, sync_names
from packer.store.tasks import Result, read_result
from reader.format.errors import StoreError
from reader.format.filesystem import error_path, open_regular, retry_missing
from reader.format.shown import brief
from reader.format.splits import FOLDER
from reader.format.values import Json, integer, is_plain, text, texts, value_in

JOURNAL = f"{FOLDER}/journal"

# more than the longest line: 4,096 samples of about 300 bytes
_TAIL_BYTES = 8 << 20
# Bytes of a line before its JSON.
_CRC_BYTES = 9
_STOPS = re.compile(rb' \{"inputs_stop":(\d+),"rows_stop":(\d+)')
_PLAIN = "an object of text, numbers, true, false, null, and lists and objects of them"


@dataclass(frozen=True)
class Header:
    """The first line: inputs and options. Field names are its keys, in this order.

    `images`, `words`, `split` and `command` serve the command that resumes the pack; a resume compares the others.
    """

    inputs: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    decoders: Mapping[str, object] = field(default_factory=dict)
    labels: Mapping[str, object] = field(default_factory=dict)
    # inputs per block
    block_inputs: int = 0
    # empty: a dataset is packed
    images: tuple[str, ...] = ("IMAGES",)
    words: tuple[str, ...] = ()
    split: str = ""
    # the command's word; "": pack
    command: str = ""
    # for a part: how many of all inputs may be rejected; else empty
    max_rejects: str = ""

    def encode(self) -> bytes:
        """Return the line."""
        return _encoded(vars(self))

    @classmethod
    def from_json(cls, line: Json) -> Header:
        """Return the header from a JSON object.

        Raises:
            StoreError: a value is invalid in a header.
        """
        what = "the header of the journal"
        # by the type of a field's default
        readers: dict[type, Callable[[str], Any]] = {
            int: lambda name: integer(what, line, name, 0),
            str: lambda name: text(what, line, name),
            tuple: lambda name: texts(what, line, name),
            dict: lambda name: value_in(what, line, name, lambda v: type(v) is dict and is_plain(v), _PLAIN),
        }
        return cls(**{name: readers[type(default)](name) for name, default in vars(cls()).items()})


class CommitLog:
    """Appends blocks to a store's journal: a committed block outlives a crash.

    Args:
        store: the folder.
        check: called before each commit; raises if the folder was renamed or removed.
        rows: the files of rows in it, synced before each commit; () if they are durable already.
    """

    def __init__(self, store: Path, check: Callable[[], None], rows: Sequence[str] = ()) -> None:
        self.store, self.check = store, check
        self._rows = [store / name for name in rows]
        # descriptors of the files of rows, opened at the first commit
        self._opened: list[int] = []
        self._path, self._descriptor = store / JOURNAL, -1
        self._inputs_stop = self._rows_stop = 0

    def begin(self, header: Header) -> None:
        """Create the files of rows, then the journal."""
        self.check()
        for path in self._rows:
            path.parent.mkdir(exist_ok=True)
            with error_path(path):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
        for path in reversed(self._rows):
            sync_folder(path.parent)
        sync_folder(self.store)
        sync_names(self.store)
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
        self._write(header.encode())
        sync_folder(self._path.parent)

    def resume(self, keep_bytes: int, inputs_stop: int, rows_stop: int) -> None:
        """Continue after the journal's first keep_bytes; the rest is cut off.

        Args:
            inputs_stop, rows_stop: the inputs and rows committed by these bytes.
        """
        self.check()
        self._inputs_stop, self._rows_stop = inputs_stop, rows_stop
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND)
        with error_path(self._path):
            os.ftruncate(self._descriptor, keep_bytes)
            # before other rows overwrite the truncated ones
            os.fsync(self._descriptor)
        # its creator may have been killed before this step
        sync_folder(self._path.parent)

    def commit(self, results: list[Result]) -> None:
        """Make blocks durable: their rows, then their lines, which are on disk when it returns."""
        self.check()
        # sync rows before the lines that record them
        self._opened = self._opened or [os.open(path, os.O_RDWR) for path in self._rows]
        for path, descriptor in zip(self._rows, self._opened, strict=True):
            with error_path(path):
                getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has none
        lines = b""
        for result in results:
            self._inputs_stop, self._rows_stop = self._inputs_stop + result.inputs, self._rows_stop + result.rows
            lines += encode_block(result, self._inputs_stop, self._rows_stop)
        self._write(lines)

    def close(self) -> None:
        """Close the files; the journal stays for a resume, or until the store is published."""
        for path, descriptor in [*zip(self._rows, self._opened, strict=False), (self._path, self._descriptor)]:
            if descriptor >= 0:
                with error_path(path):
                    os.close(descriptor)

    def _write(self, lines: bytes) -> None:
        data = memoryview(lines)
        with error_path(self._path):
            while len(data):
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)


def encode_block(result: Result, inputs_stop: int, rows_stop: int) -> bytes:
    """Return the line of a block; the stops are the totals of inputs and rows with it."""
    rejects = [vars(reject) for reject in result.rejects]
    return _encoded({"inputs_stop": inputs_stop, "rows_stop": rows_stop, **vars(result), "rejects": rejects})


def discard(out: Path) -> None:
    """Remove OUT's journal durably: the blocks that it names may be overwritten after this."""
    (out / JOURNAL).unlink(missing_ok=True)
    sync_folder(out / FOLDER)


def header_of(out: Path) -> Header | None:
    """Return the header of OUT's journal; None without a complete header, if nothing can be resumed.

    Raises:
        OSError: the journal cannot be read; the blocks that it records must not count as lost.
    """
    try:
        found = retry_missing(out / JOURNAL, lambda: find_header(out))
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found and found[0]


def find_header(out: Path) -> tuple[Header, int] | None:
    """Return the header of OUT's journal and the byte where its line ends; None if it is incomplete or damaged."""
    with _named(out):
        return next(((Header.from_json(line), end) for line, end in _read_lines(out / JOURNAL)), None)


def read_blocks(out: Path) -> Iterator[tuple[Result, int]]:
    """Yield each recorded block and the end of its line in bytes, up to the first incomplete or damaged line."""
    with _named(out):
        for line, end in islice(_read_lines(out / JOURNAL), 1, None):
            yield read_result(line), end


def read_progress(out: Path) -> tuple[Header, int, int]:
    """Return the header of OUT's journal, and how many inputs and rows its last complete line says are committed.

    Reads the first line and the end of the file: milliseconds for any number of rows.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    with open_regular(out / JOURNAL) as file:
        header = Header.from_json(_parsed(file.readline()[_CRC_BYTES:]))
        file.seek(max(file.tell(), os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        for line in reversed(file.read(_TAIL_BYTES).split(b"\n")[:-1]):
            if stops := _STOPS.match(line, _CRC_BYTES - 1):
                return header, int(stops[1]), int(stops[2])
    return header, 0, 0


def _encoded(line: Mapping[str, object]) -> bytes:
    text = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _read_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    end = 0
    with error_path(path), open_regular(path) as file:
        for line in file:
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
def _named(out: Path) -> Iterator[None]:
    try:
        yield
    except StoreError as e:
        raise StoreError(f"{out / JOURNAL}: {e} Choose another folder, or remove {out} and start over.") from None
