"""What `pack plan` says of a folder: sizes by headers, and the bytes that packing then takes."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Feed, photo

from packer import OptionsError, PackError
from packer.cli.app import run
from packer.operations.plan import plan


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """30 images, lying, standing and square, and one that is none."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for n, size in enumerate([(100, 75), (75, 100), (60, 60)] * 10):
        photo(*size, n).save(folder / f"{n:02}.jpg")
    (folder / "broken.jpg").write_bytes(b"no image")
    return folder


def test_the_command_prints_a_plan_whose_last_line_packs(
    mixed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(mixed)]) == 0
    out = capsys.readouterr().out
    assert "30 images; 1 without a readable header: 60 x 60 (10)" in out
    line = out.splitlines()[-1]
    assert line == f"to pack this way: pack {mixed} OUT --fit none --max-size 512"
    words = shlex.split(line.partition(": pack ")[2].replace("OUT", str(tmp_path / "out")))
    assert run([*words, "--max-rejects", "1", "--channels", "gray"]) == 0
    capsys.readouterr()
    assert run(["plan", str(mixed), "--channels", "gray"]) == 0
    assert capsys.readouterr().out.endswith(" --channels gray\n")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--fit", "pad"], "--fit pad needs --size: the side of a row in pixels"),
        (
            ["--max-size", "300"],
            "--max-size belongs to --fit none, not to --fit crop: add --fit none, or give --size instead",
        ),
    ],
)
def test_wrong_options_of_a_plan_are_one_sentence(
    mixed: Path, options: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", str(mixed), *options]) == 2
    assert text in capsys.readouterr().err


def test_nothing_to_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"")
    with pytest.raises(PackError, match="nothing can be planned: no header of 1 input could be read"):
        plan(tmp_path, workers=1)
    with pytest.raises(OptionsError, match="size is 0"):
        plan(tmp_path, size=0)


def test_a_list_whose_first_files_are_missing_is_planned(mixed: Path, feed: Feed) -> None:
    there = sorted(mixed.rglob("*.*"))
    gone = [mixed / f"gone{number}.jpg" for number in range(350)]
    feed("\n".join(map(str, [*gone, *there])).encode())
    found = plan("-", workers=1)
    assert found.images > 1
    assert found.images + found.unreadable == len(there) + 350


def test_workers_that_read_headers_end_with_a_process_that_was_killed(mixed: Path) -> None:
    code = "import os, sys, packer; packer.plan(sys.argv[1], progress=lambda now: now.stage == 'sizes' and os._exit(7))"
    # returns when nobody has the pipe open, so no worker either
    ended = subprocess.run([sys.executable, "-c", code, str(mixed)], capture_output=True, timeout=500, check=False)
    assert ended.returncode == 7
