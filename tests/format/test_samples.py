"""Lines of samples.jsonl and rejected.jsonl are read to values that give the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from packer.sample_lines import (
    Reject,
    Sample,
    read_paths,
    read_rejects,
    read_samples,
    read_samples_with_offsets,
)
from reader.format.errors import StoreError

SHA256 = "0123456789abcdef" * 4
OF_FILE = Sample("a/é.jpg", 1, 12, SHA256, 4, 3, {"decoder": "Pillow", "format": "PNG"})
OF_DATASET = Sample("7", [0, 1], None, None, 4, 3, {"decoder": "dataset"})
LINES = (
    '{"path":"a/\\u00e9.jpg","target":1,"bytes":12,"sha256":"'
    + SHA256
    + '","width":4,"height":3,"decoder":"Pillow","format":"PNG"}\n'
    '{"path":"7","target":[0,1],"width":4,"height":3,"decoder":"dataset"}\n'
)
REJECT_LINES = (
    '{"path":"b.jpg","reason":"the file is empty","line":3}\n{"path":"c.jpg","reason":"the file is missing"}\n'
)


def test_lines_have_the_same_bytes_in_every_version(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text(LINES, "ascii")
    (tmp_path / "rejected.jsonl").write_text(REJECT_LINES, "ascii")
    assert list(read_samples(tmp_path)) == [OF_FILE, OF_DATASET]
    assert OF_FILE.encode() + OF_DATASET.encode() == LINES
    rejects = list(read_rejects(tmp_path))
    assert rejects == [Reject("b.jpg", "the file is empty", 3), Reject("c.jpg", "the file is missing")]
    assert "".join(reject.encode() for reject in rejects) == REJECT_LINES
    assert read_paths(tmp_path) == ["a/é.jpg", "7", "b.jpg", "c.jpg"]


@pytest.mark.parametrize("line", ["", "{}", "3", '"path"', "[1]", '{"path":"a"}\n', OF_FILE.encode() + "x", b"\xff"])
def test_a_line_that_is_none_is_an_error(line: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"is not a line of samples\.jsonl|Expecting value|can't decode"):
        Sample.decode(line)


@pytest.mark.parametrize(
    "path", ["a/1.jpg", 'a/"1".jpg', "a\\1.jpg", "caf\u00e9.jpg", "\udce9.jpg", "\x7f.jpg", "a, b.jpg"]
)
@pytest.mark.parametrize("target", [0, -1, 999, 2**62, [0.5, 1.0], [0, 1]])
def test_a_line_is_read_as_it_is_written(tmp_path: Path, path: str, target: Any) -> None:
    samples = [Sample(name, target, 512, "0f" * 32, 8, 6, {"decoder": "Pillow"}) for name in ("first.jpg", path)]
    lines = [sample.encode() for sample in samples]
    (tmp_path / "samples.jsonl").write_text("".join(lines))
    assert [*read_samples_with_offsets(tmp_path)] == [(0, samples[0]), (len(lines[0]), samples[1])]


def test_a_line_of_another_start_is_refused_with_its_row(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text('{"target":1,"path":"a"}\n')
    with pytest.raises(StoreError, match="row 0: "):
        next(read_samples_with_offsets(tmp_path))
