"""The empty environment of first_batch.py: what it keeps, how it times, how it fails."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.skipif(os.name == "nt", reason="runs commands of a Unix")


@pytest.fixture
def fresh() -> ModuleType:
    return importlib.import_module("scripts.common.fresh")


def test_nothing_of_the_callers_python_comes_along(
    fresh: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    monkeypatch.setenv("PIP_TIMEOUT", "7")
    variables = dict(line.split("=", 1) for line in fresh.Fresh(tmp_path).run(["env"]).splitlines() if "=" in line)
    assert variables["HOME"] == str(tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []
    assert variables["PIP_TIMEOUT"] == "7"
    assert variables["PIP_NO_CACHE_DIR"] == "1"
    assert not {"PYTHONPATH", "VIRTUAL_ENV"} & set(variables)


def test_a_command_that_fails_is_reported_with_the_end_of_its_output(fresh: ModuleType, tmp_path: Path) -> None:
    empty = fresh.Fresh(tmp_path)
    with pytest.raises(fresh.Failed, match="sh -c echo no room >&2; exit 28 ended with 28: no room"):
        empty.run(["sh", "-c", "echo no room >&2; exit 28"])
    with pytest.raises(fresh.Failed, match="no-such-command is not there"):
        empty.run(["no-such-command"])
    with pytest.raises(fresh.Failed, match="sh ended with 3: one"):
        empty.follow(["sh", "-c", "echo one; exit 3"], {}, cwd=tmp_path)


def test_the_lines_of_a_command_begin_its_stages(fresh: ModuleType, tmp_path: Path) -> None:
    empty = fresh.Fresh(tmp_path)
    with empty.stage("first"):
        pass
    talk = "echo Making a; echo more; echo '$ pack verify x' >&2; echo '$ pack y'"
    empty.follow(["sh", "-c", talk], {"Making": "make", "$ pack verify": "verify", "$ pack": "pack"}, cwd=tmp_path)
    assert list(empty.seconds) == ["first", "before its first word", "make", "verify", "pack"]
    assert "make" in empty.table()


def test_the_stages_of_quickstart_are_what_it_says(fresh: ModuleType) -> None:
    stages = importlib.import_module("scripts.benchmarks.packing.first_batch").QUICKSTART
    scripts = (ROOT / "scripts" / "setup.sh").read_text() + (ROOT / "scripts" / "quickstart").read_text()
    for start in stages:
        words = start.removeprefix("$ ")
        assert (f'say "{words}' in scripts) if words == start else (f"run {words}" in scripts), start


@pytest.mark.parametrize("script", ["scripts.benchmarks.packing.first_batch"])
def test_help_says_what_the_script_is_for(
    fresh: ModuleType, script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script).main()
    assert end.value.code == 0
    assert "?" in capsys.readouterr().out
