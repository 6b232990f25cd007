"""Of a folder whose store is not finished, commands say how far it came and what resumes it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import make_splits, store_bytes

from packer import pack, pull, push, seal_parts, update
from packer.cli.app import run
from packer.store.journal import JOURNAL, Header, encode_block
from packer.store.tasks import Result

HEADER = Header(inputs=50).encode()
BLOCKS = encode_block(Result(0, 12, rows=12), 12, 12) + encode_block(Result(1, 12, rows=11), 24, 23)


@pytest.mark.parametrize("words", [("info",), ("verify",), ("show",)])
@pytest.mark.parametrize(
    ("journal", "progress"),
    [(HEADER + BLOCKS, "24 of 50 images and 23 rows"), (HEADER, "0 of 50 images and 0 rows"), (b"", "its very start")],
    ids=["blocks", "header", "empty"],
)
def test_a_command_says_how_far_an_unfinished_pack_came(
    words: tuple[str, ...], journal: bytes, progress: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".packing").mkdir()
    (tmp_path / ".packing/journal").write_bytes(journal + b'00000000 {"inputs_stop":36,"rows_s')
    assert run([*words, str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"pack: {tmp_path} is incomplete: its pack, at {progress}, was interrupted or is still running. Continue with:"
        f" pack IMAGES {tmp_path}\n"
    )


Seen = Callable[..., None]


# What is there before, what is interrupted, and whether it is in a folder that was there.
KINDS: dict[str, tuple[Callable[[Path, Path], object], Callable[[Path, Path, Seen | None], object]]] = {
    "pack": (lambda images, out: None, lambda images, out, seen: pack(images, out, size=32, workers=1, progress=seen)),
    "there": (lambda images, out: out.mkdir(), lambda images, out, seen: pack(images, out, size=32, progress=seen)),
    "splits": (
        lambda images, out: make_splits(images.parent / "of", ("train", "val")),
        lambda images, out, seen: pack(images.parent / "of", out, size=32, workers=1, progress=seen),
    ),
    "replaced": (
        lambda images, out: pack(images, out, size=16),
        lambda images, out, seen: pack(images, out, size=32, overwrite=True, progress=seen),
    ),
    "update": (
        lambda images, out: pack(images, out, size=32),
        lambda images, out, seen: update(images, out, progress=seen),
    ),
    "part": (lambda images, out: None, lambda images, out, seen: pack(images, out, size=32, part="1/1", progress=seen)),
    "part of splits": (
        lambda images, out: make_splits(images.parent / "of", ("train", "val")),
        lambda images, out, seen: pack(images.parent / "of", out, size=32, workers=1, part="1/1", progress=seen),
    ),
    "pull": (
        lambda images, out: (
            pack(images, images.parent / "store", size=32)
            and push(images.parent / "store", (images.parent / "url").as_uri())
        ),
        lambda images, out, seen: pull((images.parent / "url").as_uri(), out, progress=seen),
    ),
}


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_line_that_info_prints_continues_it(
    kind: str,
    is_moved: bool,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From any folder, and also where the folder above OUT was moved meanwhile."""
    before, command = KINDS[kind]

    def stop(*report: Any) -> None:
        if kind == "pull" or report[0].stage == "pack":
            raise KeyboardInterrupt

    out = tmp_path / "here/an out"
    out.parent.mkdir()
    before(images, out)
    with pytest.raises(KeyboardInterrupt):
        command(images, out, stop)
    if is_moved:
        out.parent.rename(tmp_path / "moved")
        out = tmp_path / "moved/an out"
    stages = [stage for stage in (out.with_name("an out.packing"), out) if stage.exists()]
    assert [stage.name for stage in stages][:1] == ["an out" if kind == "there" else "an out.packing"]
    monkeypatch.chdir("/")

    def follow() -> None:
        assert run(["info", str(stages[0])]) == 1
        said = capsys.readouterr().err
        line = re.search(r"Continue with: (pack .*)$", said)
        assert line is not None, said
        assert run([*shlex.split(line[1])[1:], "--quiet"]) == 0

    follow()
    is_part = kind.startswith("part")
    if is_part:
        follow()
    shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
    if kind.startswith("update"):
        pack(images, tmp_path / "fresh", size=32)
    else:
        command(images, tmp_path / "fresh", None)
    if is_part:
        seal_parts(tmp_path / "fresh")
    assert store_bytes(out) == store_bytes(tmp_path / "fresh")
    assert os.listdir(out.parent) == ["an out"]


def test_of_splits_info_names_the_part_that_one_lacks(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part of train is packed, and that of val is not: nothing is to be sealed yet."""
    splits, out = tmp_path / "of", tmp_path / "out"
    make_splits(splits, ("train", "val"))

    def stop(report: Any) -> None:
        if report.stage == "pack" and (tmp_path / "out.packing/train/.packing/parts/1-of-1").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(splits, out, size=32, workers=1, part="1/1", progress=stop)
    assert run(["info", str(tmp_path / "out.packing")]) == 1
    said = capsys.readouterr().err
    assert f"{out / 'val'} is incomplete: its parts are not sealed: 0 of 1 are packed, not 1/1" in said
    assert said.endswith(f"When all are: pack seal {out}. Continue with: pack {splits} {out} --size 32 --part 1/1\n")


def test_of_parts_of_two_divisions_info_says_to_start_over(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for part in ("1/2", "1/3"):
        pack(images, tmp_path / part[-1], size=32, part=part)
    (tmp_path / "3.packing/.packing/parts/1-of-3").rename(tmp_path / "2.packing/.packing/parts/1-of-3")
    assert run(["info", str(tmp_path / "2.packing")]) == 1
    out = tmp_path / "2"
    said = f"{out} holds part 1/2 and part 1/3, of two divisions. Start over: pack IMAGES {out} --overwrite\n"
    assert capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
def test_where_a_journal_cannot_be_continued_what_it_says_to_do_helps(
    words: tuple[str, ...], images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The checksum is right, and a field is none of a journal's: another program's, or a disk's that lies."""
    (tmp_path / "out.packing/.packing").mkdir(parents=True)
    (tmp_path / "out.packing" / JOURNAL).write_bytes(Header(inputs="eight").encode())  # type: ignore[arg-type]
    command = ["build", str(images), str(tmp_path / "out"), *words, "--size", "16", "--quiet"]
    assert run(command) == 1
    said = capsys.readouterr().err
    assert "says inputs = 'eight', expected an integer" in said
    removed = re.search(r"Choose another folder, or remove (\S+) and start over\.$", said)
    assert removed is not None
    shutil.rmtree(removed[1])
    assert run(command) == 0
