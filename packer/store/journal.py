"""The record of a pack in progress, in OUT/.packing: which blocks are safely on disk.

One line a block, appended only after the block's rows are synced; a resume keeps the longest prefix of complete
lines. The lines themselves: `reader.format.journal`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from packer.errors import JournalError
from packer.store.blocks import Result
from packer.store.files import sync_folder
from packer.system import BINARY
from reader.format import journal as lines
from reader.format.filesystem import error_path, retry_missing
from reader.format.journal import FOLDER, JOURNAL, BlockLine, Header, RejectedInput

_OF_RESULT = tuple(field.name for field in dataclasses.fields(Result))


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
        journal._append([header])
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
            known = {name: getattr(result, name) for name in _OF_RESULT}
            known["rejects"] = list(map(vars, result.rejects))
            blocks.append(BlockLine(inputs_stop, rows_stop, known))
            inputs_stop, rows_stop = inputs_stop - result.inputs, rows_stop - result.rows
        self._append(blocks[::-1])

    def close(self) -> None:
        """Let the file go; it stays for a resume or until the store is sealed."""
        with error_path(self.path):
            os.close(self._descriptor)

    def _append(self, added: Sequence[Header | BlockLine]) -> None:
        data = memoryview(b"".join(map(lines.encode, added)))
        with error_path(self.path):
            while len(data):
                data = data[os.write(self._descriptor, data) :]
            os.fsync(self._descriptor)


def discard(out: Path) -> None:
    """Remove OUT's journal, if it has one, for certain: what it names may be overwritten after this."""
    (out / JOURNAL).unlink(missing_ok=True)
    sync_folder(out / FOLDER)


def read_header(out: Path) -> Header:
    """Return the first line of OUT's journal.

    Raises:
        JournalError: it has none.
    """
    if found := lines.read_header(out / JOURNAL):
        return found[0]
    raise JournalError(f"{out / JOURNAL} is empty or damaged. Start over with --overwrite.")


def has_started(out: Path) -> bool:
    """Whether OUT holds a pack that can be resumed: a journal with a complete header.

    Raises:
        OSError: there is a journal that cannot be read; what it records must not be taken for lost.
    """
    try:
        return retry_missing(out / JOURNAL, lambda: lines.read_header(out / JOURNAL) is not None)
    except (FileNotFoundError, NotADirectoryError):
        return False


def read_blocks(out: Path) -> Iterator[tuple[Result, int]]:
    """Yield each recorded block and the byte where its line ends, up to the first torn line."""
    for line, end in lines.read_block_lines(out / JOURNAL):
        known = {name: value for name, value in line.known.items() if name in _OF_RESULT}
        known["rejects"] = list(map(RejectedInput.from_json, known.get("rejects", ())))
        yield Result(**known), end


def header_end(out: Path) -> int:
    """Return the byte where the journal's header ends."""
    found = lines.read_header(out / JOURNAL)
    return 0 if found is None else found[1]
