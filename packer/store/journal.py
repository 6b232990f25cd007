"""The record of a pack under way, in OUT/.packing: which blocks are safely on disk, and who holds OUT.

One line a block, appended only after the block's rows are synced; the longest prefix of whole lines is what a resume
keeps. Line: 8 hex digits of crc32, a space, JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packer.errors import JournalError
from packer.store.blocks import Result
from packer.store.files import sync_folder
from packer.system import BINARY
from reader.format.filesystem import naming, or_again

FOLDER = ".packing"
JOURNAL = f"{FOLDER}/journal"


class Journal:
    """Append-only; `append` returns when its lines are on disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @classmethod
    def create(cls, out: Path, header: dict[str, Any]) -> Journal:
        """Begin a journal; the header says what is packed and how."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | BINARY, 0o666))
        journal._append([header])
        sync_folder(path.parent)
        return journal

    @classmethod
    def reopen(cls, out: Path, keep_bytes: int) -> Journal:
        """Go on after the first keep_bytes of a journal; the rest is cut off."""
        path = out / JOURNAL
        journal = cls(path, os.open(path, os.O_RDWR | os.O_APPEND | BINARY))
        with naming(path):
            os.ftruncate(journal._descriptor, keep_bytes)
            # before other rows take the place of those that were cut off
            os.fsync(journal._descriptor)
        # whoever made it may have been killed before it did this
        sync_folder(path.parent)
        return journal

    def append(self, results: list[Result], inputs_stop: int, rows_stop: int) -> None:
        """Record blocks whose rows are on disk; the stops are the totals after the last of them."""
        lines = []
        for result in reversed(results):
            head = {"inputs_stop": inputs_stop, "rows_stop": rows_stop}
            lines.append(head | {field.name: getattr(result, field.name) for field in dataclasses.fields(result)})
            inputs_stop, rows_stop = inputs_stop - result.inputs, rows_stop - result.rows
        self._append(lines[::-1])

    def close(self) -> None:
        """Let the file go; it stays for a resume or until the store is sealed."""
        with naming(self.path):
            os.close(self._descriptor)

    def _append(self, lines: list[dict[str, Any]]) -> None:
        data = memoryview(b"".join(_encode(line) for line in lines))
        with naming(self.path):
            while len(data):
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)


def discard(out: Path) -> None:
    """Remove OUT's journal, if it has one, for certain: what it names may be overwritten after this."""
    (out / JOURNAL).unlink(missing_ok=True)
    sync_folder(out / FOLDER)


def read_header(out: Path) -> dict[str, Any]:
    """Return the first line of OUT's journal.

    Raises:
        JournalError: it has none.
    """
    for header, _ in _whole_lines(out / JOURNAL):
        return header
    raise JournalError(f"{out / JOURNAL} is empty or damaged. Start anew with --overwrite.")


def has_begun(out: Path) -> bool:
    """Whether OUT holds a pack that can be resumed: a journal with a whole header.

    Raises:
        OSError: there is a journal that cannot be read; what it records must not be taken for lost.
    """
    try:
        return or_again(out / JOURNAL, lambda: any(True for _ in _whole_lines(out / JOURNAL)))
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_blocks(out: Path) -> Iterator[tuple[Result, int]]:
    """Yield each recorded block and the byte where its line ends, up to the first torn line."""
    lines = _whole_lines(out / JOURNAL)
    next(lines, None)
    known = {field.name for field in dataclasses.fields(Result)}
    for line, end in lines:
        yield Result(**{key: value for key, value in line.items() if key in known}), end


def header_end(out: Path) -> int:
    """Return the byte where the journal's header ends."""
    return next((end for _, end in _whole_lines(out / JOURNAL)), 0)


def _encode(line: dict[str, Any]) -> bytes:
    text = json.dumps(line, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _whole_lines(path: Path) -> Iterator[tuple[dict[str, Any], int]]:
    end = 0
    with naming(path), open(path, "rb") as file:
        for line in file:
            text = line[9:-1]
            if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(text):
                return
            end += len(line)
            yield json.loads(text), end
