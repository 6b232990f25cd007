"""Of a folder whose store is not finished, commands say how far it came and what resumes it."""

from __future__ import annotations

import json
import re
import shutil
import zlib
from pathlib import Path

import pytest
from conftest import ffmpeg_or_skip, interrupted

from packer import pack, update
from packer.cli.app import run
from packer.store.journal import JOURNAL

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


def test_of_a_store_that_is_replaced_info_says_how_far_that_is(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    pack(images, out, size=16)
    for change, options, command in (
        (pack, {"size": 32, "overwrite": True}, f"pack {images} {out} --size 32 --resume"),
        (update, {}, "the same pack update with --resume"),
    ):
        interrupted(change, images, out, **options, workers=1)
        assert run(["info", str(tmp_path / "out.packing")]) == 1
        said = capsys.readouterr().err
        assert f"{out} holds a store whose replacement was interrupted at" in said
        assert said.endswith(f"Continue with: {command}\n")
        shutil.rmtree(tmp_path / "out.packing")
    assert run(["info", str(out), "--brief"]) == 0


def _damaged(stage: Path, header: dict[str, object]) -> None:
    (stage / ".packing").mkdir(parents=True)
    text = json.dumps(header).encode()
    (stage / JOURNAL).write_bytes(b"%08x %b\n" % (zlib.crc32(text), text))


@pytest.mark.parametrize(
    "words", [("build",), ("build", "--resume"), ("build", "--overwrite"), ("requantize", "--resume")]
)
def test_where_a_journal_cannot_be_continued_what_it_says_to_do_helps(
    words: tuple[str, ...], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checksum is right, and a field is none of a journal's: another program's, or a disk's that lies."""
    out = tmp_path / "out"
    is_tree = words[0] == "requantize"
    if is_tree:
        ffmpeg_or_skip()
    _damaged(out / ".packing" if is_tree else tmp_path / "out.packing", {"journal": 2, "inputs": "eight"})
    command = [words[0], str(images), str(out), *words[1:], *(("-q", "5") if is_tree else ("--size", "16")), "--quiet"]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert "says inputs = 'eight', expected an integer" in said
    removed = re.search(r"Choose another folder, or remove (\S+) and start over\.$", said)
    assert removed is not None
    shutil.rmtree(removed[1])
    assert run(command) == 0
