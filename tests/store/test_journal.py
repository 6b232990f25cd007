"""The lines of a journal: a checksum and JSON each, read up to the first that is damaged."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import make_tree, store_bytes

from packer import pack, verify
from packer.store.journal import (
    JOURNAL,
    CommitLog,
    Header,
    encode_block,
    find_header,
    header_of,
    read_blocks,
    read_progress,
)
from packer.store.tasks import RejectedInput, Result
from reader.format.errors import StoreError
from reader.format.samples import MOST_LINE_BYTES

HEADER = Header(
    inputs=3,
    options={"size": [2, 2]},
    decoders={"Pillow": "12"},
    labels={"inputs": "ab", "é": 1},
    block_inputs=8,
    images=("images",),
    words=("--size", "2"),
)
HEADER_BYTES = HEADER.encode()
BLOCK = Result(
    0, 2, rows=1, crc32=7, sums=[3], samples=["{}\n"], rejects=[RejectedInput(0, "a.jpg", "the file is empty")]
)
BLOCK_BYTES = encode_block(BLOCK, 2, 1)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where the journal of tmp_path is."""
    (tmp_path / JOURNAL).parent.mkdir()
    return tmp_path / JOURNAL


def test_a_line_is_a_checksum_and_json(journal: Path, tmp_path: Path) -> None:
    header = replace(HEADER, command="update", max_rejects="1%")
    line = header.encode()
    assert line[:9] == b"%08x " % zlib.crc32(line[9:-1])
    assert line.endswith(b'"split":"","command":"update","max_rejects":"1%"}\n')
    journal.write_bytes(line)
    assert header_of(tmp_path) == header


def test_what_a_log_commits_is_read_and_continued(tmp_path: Path) -> None:
    checks = list[None]()
    (tmp_path / JOURNAL).parent.mkdir()
    (tmp_path / JOURNAL).write_bytes(BLOCK_BYTES)
    log = CommitLog(tmp_path, lambda: checks.append(None), ["tensors/rows", "tensors/masks"])
    log.begin(HEADER)
    log.commit([BLOCK, BLOCK])
    log.close()
    assert read_progress(tmp_path) == (HEADER, 4, 2)
    *_, (_, end) = read_blocks(tmp_path)
    with open(tmp_path / JOURNAL, "ab") as file:
        file.write(BLOCK_BYTES)
    log = CommitLog(tmp_path, lambda: checks.append(None))
    log.resume(end, 4, 2)
    log.commit([BLOCK])
    log.close()
    assert read_progress(tmp_path) == (HEADER, 6, 3)
    assert [block for block, _ in read_blocks(tmp_path)] == [BLOCK] * 3
    assert store_bytes(tmp_path / "tensors") == {"rows": b"", "masks": b""}
    assert len(checks) == 4


def test_lines_are_read_up_to_the_first_that_is_incomplete(journal: Path, tmp_path: Path) -> None:
    journal.write_bytes(HEADER_BYTES + BLOCK_BYTES + BLOCK_BYTES[:-1])
    assert header_of(tmp_path) == HEADER
    assert find_header(tmp_path) == (HEADER, len(HEADER_BYTES))
    assert list(read_blocks(tmp_path)) == [(BLOCK, len(HEADER_BYTES + BLOCK_BYTES))]
    assert read_progress(tmp_path) == (HEADER, 2, 1)


def test_a_block_may_be_longer_than_the_longest_line_of_a_row(journal: Path, tmp_path: Path) -> None:
    block = replace(BLOCK, samples=["x" * (MOST_LINE_BYTES + 1)])
    journal.write_bytes(HEADER_BYTES + encode_block(block, 2, 1))
    assert [found == block for found, _ in read_blocks(tmp_path)] == [True]


def test_an_input_whose_line_no_reader_takes_is_a_reject(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=2)
    captions = ["", "x" * MOST_LINE_BYTES]
    lines = [json.dumps({"path": f"images/class0/{n:03}.jpg", "caption": one}) for n, one in enumerate(captions)]
    (tmp_path / "list.jsonl").write_text("\n".join(lines))
    report = pack(tmp_path / "list.jsonl", tmp_path / "out", size=16, workers=1, max_rejects=1)
    reason = f"its line has {MOST_LINE_BYTES + 208} bytes, expected {MOST_LINE_BYTES} at most"
    assert (report.rows, report.reasons) == (1, {reason: 1})
    assert verify(tmp_path / "out").problems == []


@pytest.mark.parametrize("content", [b"", HEADER_BYTES[:-1], b"x" + HEADER_BYTES])
def test_a_journal_without_a_header_has_not_started(content: bytes, journal: Path, tmp_path: Path) -> None:
    journal.write_bytes(content)
    assert header_of(tmp_path) is None


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"rejects": 5}, "says rejects = 5, expected a list of objects"),
        ({"rejects": [5]}, "a block of the journal is 5, expected an object"),
        ({"rejects": [{"input": 0, "path": "a.jpg"}]}, "lacks reason, expected text"),
        ({"block": None}, "says block = None, expected an integer of 0 or more"),
        ({"samples": "x"}, "says samples = 'x', expected a list of texts"),
        ({"content": [[1, 2, 3]]}, r"says content = \[\[1, 2, 3\]\], expected a list of 4 integers each"),
        ({"sums": [0.5]}, r"says sums = \[0\.5\], expected a list of integers"),
    ],
)
def test_a_block_with_a_value_that_is_none_of_a_block_is_refused(
    known: dict[str, object], text: str, journal: Path, tmp_path: Path
) -> None:
    line = json.dumps(json.loads(BLOCK_BYTES[9:]) | known).encode()
    journal.write_bytes(HEADER_BYTES + b"%08x %b\n" % (zlib.crc32(line), line))
    with pytest.raises(StoreError, match=rf"{text}\. Choose another folder"):
        list(read_blocks(tmp_path))


def test_a_header_with_a_value_that_is_none_of_a_header_is_refused(journal: Path, tmp_path: Path) -> None:
    for known, text in (
        ({"inputs": "eight"}, "the header of the journal says inputs = 'eight', expected an integer of 0 or more"),
        (
            {"options": {"size": {1: {}}} | {"x": 1e999}},
            "the header of the journal says options = .*, expected an object of text, numbers",
        ),
        ({"words": "x"}, "the header of the journal says words = 'x', expected a list of texts"),
        ({}, "journal: the journal has a line that is not JSON: b'{'"),
        ({"split": 1}, "the header of the journal says split = 1, expected text"),
    ):
        line = json.dumps(json.loads(HEADER_BYTES[9:]) | known).encode() if known else b"{"
        journal.write_bytes(b"%08x %b\n" % (zlib.crc32(line), line))
        with pytest.raises(StoreError, match=rf"{text}.* Choose another folder"):
            header_of(tmp_path)
