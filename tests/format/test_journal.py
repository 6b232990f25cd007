"""The lines of a journal: their bytes never change, and those of any version are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from reader.format.errors import StoreError
from reader.format.journal import BlockLine, Header, RejectedInput, encode, read_block_lines, read_header, read_progress

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
BLOCK = BlockLine(2, 1, {"block": 0, "inputs": 2, "rows": 1})
BLOCK_BYTES = b'f8bfdd9b {"inputs_stop":2,"rows_stop":1,"block":0,"inputs":2,"rows":1}\n'


def test_lines_have_the_same_bytes_in_every_version() -> None:
    assert encode(HEADER) == HEADER_BYTES
    assert encode(BLOCK) == BLOCK_BYTES


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({"labels": None}, b'"block_inputs":8,"images":["images"],"words":["--size","2"],"split":""}\n'),
        ({"further_targets": ("c: x",), "update": True, "span": (0, 2)}, None),
    ],
)
def test_what_is_optional_is_written_where_it_is_there(
    given: dict[str, object], end: bytes | None, tmp_path: Path
) -> None:
    header = Header(**{**HEADER.__dict__, **given})  # type: ignore[arg-type]
    assert encode(header).endswith(end or b'"split":"","further_targets":["c: x"],"update":true,"span":[0,2]}\n')
    (tmp_path / "journal").write_bytes(encode(header))
    found = read_header(tmp_path / "journal")
    assert found is not None
    assert found[0] == header


def test_lines_are_read_up_to_the_first_that_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(HEADER_BYTES + BLOCK_BYTES + BLOCK_BYTES[:-1])
    assert read_header(path) == (HEADER, len(HEADER_BYTES))
    assert list(read_block_lines(path)) == [(BLOCK, len(HEADER_BYTES + BLOCK_BYTES))]
    assert read_progress(path) == (HEADER, 2, 1)


def test_keys_of_another_version_are_dropped() -> None:
    assert Header.from_json({"inputs": 1, "unheard_of": 2}) == Header(inputs=1)


@pytest.mark.parametrize(
    "reject", [5, {}, {"input": 0, "path": "a.jpg"}, {"input": -1, "path": "a.jpg", "reason": "x"}]
)
def test_a_reject_that_lacks_its_input_path_or_reason_is_refused(reject: object, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(HEADER_BYTES + encode(BlockLine(1, 0, {"block": 0, "inputs": 1, "rejects": [reject]})))
    with pytest.raises(
        StoreError, match=r"rejects = .*expected a list of objects with input, path and reason\. Start over"
    ):
        list(read_block_lines(path))


def test_a_reject_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = {"block": 0, "inputs": 1, "rejects": [vars(RejectedInput(0, "a.jpg", "the file is empty"))]}
    line = encode(BlockLine(1, 0, known))
    assert line.endswith(b'"rejects":[{"input":0,"path":"a.jpg","reason":"the file is empty"}]}\n')
    (tmp_path / "journal").write_bytes(HEADER_BYTES + line)
    ((block, _),) = read_block_lines(tmp_path / "journal")
    (reject,) = block.known["rejects"]
    assert RejectedInput.from_json(reject) == RejectedInput(0, "a.jpg", "the file is empty")
