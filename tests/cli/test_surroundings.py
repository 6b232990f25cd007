"""What the command says where memory is short, and where a path is a pipe; each time in a process of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from packer.cli.app import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and files of Linux")
ROOT = Path(__file__).resolve().parents[2]
PACK = [sys.executable, "-m", "packer"]


def answered(words: list[str | Path], *, before: str = "", timeout: float = 60) -> tuple[int, str]:
    """Run `pack` after a line of shell; returns its exit code and what it says on stderr, one line."""
    line = f"{before} exec {shlex.join([*PACK, *map(str, words)])}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stderr


def test_memory_that_is_used_up_is_one_sentence(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("packer.operations.verify.verify", Mock(side_effect=MemoryError()))
    assert run(["verify", str(shared_store)]) == 1
    assert capsys.readouterr().err == (
        "pack: this process gets no more memory. Free some, or raise its limit (ulimit -v, cgroup).\n"
    )


def test_files_that_cannot_be_opened_for_their_number_are_one_sentence(shared_store: Path, tmp_path: Path) -> None:
    code, err = answered(["show", shared_store, "-o", tmp_path / "sheet.png"], before="ulimit -n 5;")
    assert code == 1
    assert "Too many open files (EMFILE), of which this process may have 5 (ulimit -n). Allow more" in err
    assert err.count("\n") == 1


def test_a_pipe_is_not_waited_for_where_a_folder_is_expected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code, err = answered(["seal", tmp_path / "pipe"])
    assert code == 1
    assert "holds no part of a pack" in err


@pytest.mark.parametrize("observer", ["cProfile -o report -m", "trace --count --coverdir . --file report --module"])
def test_what_observes_a_command_writes_what_it_found(shared_store: Path, tmp_path: Path, observer: str) -> None:
    command = [sys.executable, "-m", *observer.split(), "packer", "info", str(shared_store)]
    subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=120)
    assert (tmp_path / "report").stat().st_size > 0
