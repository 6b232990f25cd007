"""The picture of a terminal: what commands printed, under the line that was typed, and no path of this machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from conftest import make_tree

from scripts.samples import record_terminal


def test_a_command_that_fails_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        record_terminal.output("pack info nothing/", tmp_path)


def test_what_a_command_prints_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    make_tree(tmp_path / "images", classes=1, each=2)
    printed = record_terminal.output("pack images/ out/ --size 8 --workers 1", tmp_path)
    assert "2 rows of 8 x 8 x 3" in printed
    assert str(tmp_path) not in printed


def test_the_recording_has_each_command_and_its_lines() -> None:
    pytest.importorskip("rich")
    svg = record_terminal.drawn([("pack info out/", "rows  90"), ("pack verify out/", "out/ is intact")])
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    for line in ("$ pack info out/", "rows  90", "$ pack verify out/", "out/ is intact"):
        assert line in text


def test_the_picture_in_the_documentation_is_such_a_recording() -> None:
    svg = (record_terminal.ROOT / "docs" / "terminal.svg").read_text(encoding="utf-8")
    text = "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")
    for command in record_terminal.COMMANDS:
        assert f"$ {command}" in text
    assert "url(http" not in svg
    # an absolute path is one of the machine that recorded it
    assert re.findall(r"(?<![\w.~])/[\w.-]+/", f"{text} /home/me/out") == ["/home/"]
