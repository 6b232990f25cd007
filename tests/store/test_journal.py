"""The lines of a journal: their bytes never change, and those of any version are read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from packer import JournalError
from packer.store.blocks import RejectedInput, Result
from packer.store.journal import (
    JOURNAL,
    Header,
    encode_block,
    header_end,
    header_of,
    read_blocks,
    read_header,
    read_progress,
)
from reader.format.errors import StoreError

HEADER = Header(
    inputs=3,
    listing="ab",
    classes=("a", "é"),
    options={"size": [2, 2]},
    decoders={"Pillow": "12"},
    labels={},
    block_inputs=8,
    images=("images",),
    words=("--size", "2"),
)
# as pixpack 0.1 to 0.3 wrote it
HEADER_BYTES = (
    b'c7efe6c8 {"journal":2,"inputs":3,"listing":"ab","classes":["a","\\u00e9"],"options":{"size":[2,2]},"decoders":'
    b'{"Pillow":"12"},"labels":{},"block_inputs":8,"images":["images"],"words":["--size","2"],"split":""}\n'
)
BLOCK = Result(
    0, 2, rows=1, crc32=7, sums=[3], samples=["{}\n"], rejects=[RejectedInput(0, "a.jpg", "the file is empty")]
)
BLOCK_BYTES = (
    b'373d60a4 {"inputs_stop":2,"rows_stop":1,"block":0,"inputs":2,"rows":1,"crc32":7,"pixel_count":0,"sums":[3],'
    b'"square_sums":[],"samples":["{}\\n"],"content":[],"rejects":[{"input":0,"path":"a.jpg","reason":"the file is empty"}],'
    b'"sources":[],"source_bytes":0,"read_since_ns":0,"size_bytes":0,"shapes":[],"frames":[],"unpacked_bytes":0,'
    b'"unpacked_crc32":0,"mask_sources":[],"mask_values":[],"kept":0}\n'
)
# a line of a version whose blocks had fewer keys
SHORT_BYTES = b'f8bfdd9b {"inputs_stop":2,"rows_stop":1,"block":0,"inputs":2,"rows":1}\n'


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Where the journal of tmp_path is."""
    (tmp_path / JOURNAL).parent.mkdir()
    return tmp_path / JOURNAL


def test_lines_have_the_same_bytes_in_every_version() -> None:
    assert HEADER.encode() == HEADER_BYTES
    assert encode_block(BLOCK, 2, 1) == BLOCK_BYTES


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({"labels": None}, b'"block_inputs":8,"images":["images"],"words":["--size","2"],"split":""}\n'),
        ({"further_targets": ("c: x",), "update": True, "span": (0, 2)}, None),
    ],
)
def test_what_is_optional_is_written_where_it_is_there(
    given: dict[str, object], end: bytes | None, journal: Path, tmp_path: Path
) -> None:
    header = Header(**{**HEADER.__dict__, **given})  # type: ignore[arg-type]
    assert header.encode().endswith(end or b'"split":"","further_targets":["c: x"],"update":true,"span":[0,2]}\n')
    journal.write_bytes(header.encode())
    assert read_header(tmp_path) == header


def test_lines_are_read_up_to_the_first_that_is_incomplete(journal: Path, tmp_path: Path) -> None:
    journal.write_bytes(HEADER_BYTES + SHORT_BYTES + BLOCK_BYTES + BLOCK_BYTES[:-1])
    assert read_header(tmp_path) == HEADER
    assert header_end(tmp_path) == len(HEADER_BYTES)
    ends = [len(HEADER_BYTES + SHORT_BYTES), len(HEADER_BYTES + SHORT_BYTES + BLOCK_BYTES)]
    assert list(read_blocks(tmp_path)) == [(Result(0, 2, rows=1), ends[0]), (BLOCK, ends[1])]
    assert read_progress(tmp_path) == (HEADER, 2, 1)


@pytest.mark.parametrize("content", [b"", HEADER_BYTES[:-1], b"x" + HEADER_BYTES])
def test_a_journal_without_a_header_has_not_started(content: bytes, journal: Path, tmp_path: Path) -> None:
    journal.write_bytes(content)
    assert header_of(tmp_path) is None
    with pytest.raises(JournalError, match="is empty or damaged"):
        read_header(tmp_path)


def test_keys_of_another_version_are_dropped() -> None:
    assert Header.from_json({"inputs": 1, "unheard_of": 2}) == Header(inputs=1)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        *(
            (
                {"rejects": [reject]},
                r"rejects = .*expected a list of objects with input, path and reason\. Choose another folder",
            )
            for reject in (5, {}, {"input": 0, "path": "a.jpg"}, {"input": -1, "path": "a.jpg", "reason": "x"})
        ),
        ({"block": None}, r"says block = None, expected an integer of 0 or more\. Choose another folder"),
        ({"samples": "x"}, r"says samples = 'x', expected a list of texts\. Choose another folder"),
    ],
)
def test_a_block_with_a_value_that_is_none_of_a_block_is_refused(
    known: dict[str, object], text: str, journal: Path, tmp_path: Path
) -> None:
    line = json.dumps({"inputs_stop": 1, "rows_stop": 0, "block": 0, "inputs": 1} | known).encode()
    journal.write_bytes(HEADER_BYTES + b"%08x %b\n" % (zlib.crc32(line), line))
    with pytest.raises(StoreError, match=text):
        list(read_blocks(tmp_path))


def test_a_block_without_its_number_is_refused(journal: Path, tmp_path: Path) -> None:
    line = b'{"inputs_stop":1,"rows_stop":0,"inputs":1}'
    journal.write_bytes(HEADER_BYTES + b"%08x %b\n" % (zlib.crc32(line), line))
    with pytest.raises(StoreError, match="lacks block, expected an integer of 0 or more"):
        list(read_blocks(tmp_path))
