"""Lines of samples.jsonl and rejected.jsonl are read to values that give the same bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from reader.format.samples import Reject, Sample, read_paths, read_rejects, read_samples

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
