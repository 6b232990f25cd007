"""`~` at the beginning of a path that a user gives is the home folder, as torchvision's ImageFolder takes its root."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import make_tree

import pixpack
from packer import merge, pack, plan, pull, push, subset, update, verify
from packer.cli.app import run
from reader import MemmapDataset


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_tree(tmp_path / "home/photos", each=2)
    (tmp_path / "here").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "home"


def test_python_takes_paths_below_the_home_folder(home: Path) -> None:
    pack("~/photos", "~/out", size=8)
    assert len(pixpack.packed("~/photos", "~/out", size=8)) == len(MemmapDataset("~/out")) == 6
    assert MemmapDataset(Path("~/out")).path == home / "out"
    assert MemmapDataset("~/out").manifest.rows == plan("~/photos").images == verify("~/out").rows == 6
    pack("~/photos", "~/same", size=8, classes="~/out")
    subset("~/out", "~/some", rows=[0, 1])
    merge(["~/some", "~/some"], "~/two")
    update("~/photos", "~/out")
    url = (home / "bucket").as_uri()
    push("~/out", url)
    pull(url, "~/copy")
    assert {path.name for path in home.iterdir()} >= {"out", "same", "some", "two", "copy"}
    assert list(Path().iterdir()) == []


def test_the_command_takes_a_tilde_that_the_shell_left(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["~/photos", "~/out", "--size", "8"]) == 0
    for words in (["info", "~/out"], ["verify", "~/out"], ["show", "~/out", "-o", "~/a.png"]):
        assert run(words) == 0
    capsys.readouterr()
    assert (home / "a.png").exists()
    assert list(Path().iterdir()) == []


def test_a_folder_named_tilde_is_reached_by_a_path(home: Path) -> None:
    (home / "photos").rename("~")
    assert pack("./~", "./~out", size=8).rows == 6
    assert Path("~out").is_dir()
