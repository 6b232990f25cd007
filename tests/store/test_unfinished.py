"""Of a folder whose store is not finished, commands say how far it came and what resumes it."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from packer.cli.app import run

BEGUN = (
    '{"journal":1,"inputs":50}',
    '{"inputs_stop":12,"rows_stop":12,"block":1}',
    '{"inputs_stop":24,"rows_stop":23,"block":2}',
)


@pytest.mark.parametrize("words", [("info",), ("info", "--brief"), ("verify",), ("show",)])
@pytest.mark.parametrize(
    ("journal", "expected"),
    [
        (
            BEGUN,
            "its pack was interrupted at 24 of 50 images, 23 rows written. Resume with: pack IMAGES {out} --resume\n",
        ),
        (
            BEGUN[:1],
            "its pack was interrupted at 0 of 50 images, 0 rows written. Resume with: pack IMAGES {out} --resume\n",
        ),
        ((), "its pack was interrupted at its very start. Resume with: pack IMAGES {out} --resume\n"),
    ],
    ids=["blocks", "header", "empty"],
)
def test_a_command_says_how_far_an_unfinished_pack_came(
    words: tuple[str, ...], journal: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".packing").mkdir()
    text = "".join(f"{zlib.crc32(line.encode()):08x} {line}\n" for line in journal)
    (tmp_path / ".packing/journal").write_text(text + '00000000 {"inputs_stop":36,"rows_s')
    assert run([*words, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"pack: {tmp_path} is incomplete: {expected.format(out=tmp_path)}"
