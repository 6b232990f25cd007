"""What the command says where memory is short, and where a path is a pipe; each time in a process of its own."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import threading
import types
from pathlib import Path
from unittest.mock import Mock

import pytest

from packer.cli import app
from packer.cli.app import run
from packer.errors import PackError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and files of Linux")
ROOT = Path(__file__).resolve().parents[2]
PACK = [sys.executable, "-m", "packer"]


def answered(words: list[str | Path], *, before: str = "", timeout: float = 60) -> tuple[int, str]:
    """Run `pack` after a line of shell; returns its exit code and what it says on stderr, one line."""
    line = f"{before} exec {shlex.join([*PACK, *map(str, words)])}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stderr


@pytest.mark.parametrize("limit_kb", [30_000])
@pytest.mark.parametrize("command", ["info", "show"])
def test_memory_that_is_used_up_is_one_sentence(
    shared_store: Path, tmp_path: Path, command: str, limit_kb: int
) -> None:
    """By the limit it is data, a library or a thread that gets no room."""
    drawn = ["-o", tmp_path / "sheet.png"] if command == "show" else []
    code, err = answered([command, shared_store, *drawn], before=f"ulimit -v {limit_kb};")
    assert code == 1
    assert err.startswith("pack: this process gets no more memory")
    assert err.endswith("Free some, or raise its limit (ulimit -v, cgroup).\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), ""),
        (MemoryError("Unable to allocate 3.5 GiB for an array"), ": Unable to allocate 3.5 GiB for an array"),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "out/a"), ": [Errno 12] Cannot allocate memory: 'out/a'"),
        (
            ImportError("liba.so: failed to map segment from shared object"),
            ": liba.so: failed to map segment from shared object",
        ),
    ],
    ids=["nothing said", "numpy", "system", "library"],
)
def test_every_error_of_memory_is_that_sentence(
    shared_store: Path,
    error: Exception,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("packer.operations.verify.verify", fail)
    assert run(["verify", str(shared_store)]) == 1
    assert capsys.readouterr().err == (
        f"pack: this process gets no more memory{reason}. Free some, or raise its limit (ulimit -v, cgroup).\n"
    )


def _no_thread() -> None:
    try:
        raise RuntimeError("can't start new thread")
    finally:
        threading.Thread().join()


def _no_process() -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def _is_a_bug() -> None:
    raise RuntimeError("cannot join thread before it is started")


def test_processes_and_threads_that_cannot_be_started_are_one_sentence(
    shared_store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for fail in (_no_thread, _no_process):
        monkeypatch.setattr("packer.operations.verify.verify", lambda *_, fail=fail, **__: fail())
        assert run(["verify", str(shared_store)]) == 1
        assert capsys.readouterr().err == (
            "pack: no more processes or threads can be started. End some, or raise their limit (ulimit -u, pids.max of the"
            " cgroup).\n"
        )
    # what says how to continue is shown as it is
    resumable = PackError("a worker process cannot be started. Give the same command again.")
    resumable.__cause__ = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    monkeypatch.setattr("packer.operations.verify.verify", Mock(side_effect=resumable))
    assert run(["verify", str(shared_store)]) == 1
    assert capsys.readouterr().err == "pack: a worker process cannot be started. Give the same command again.\n"
    full = BlockingIOError(errno.EAGAIN, "write could not complete without blocking", 0)
    monkeypatch.setattr("packer.operations.verify.verify", Mock(side_effect=full))
    assert run(["verify", str(shared_store)]) == 1
    assert "standard output or the current folder: write could not complete" in capsys.readouterr().err
    monkeypatch.setattr("packer.operations.verify.verify", lambda *_, **__: _is_a_bug())
    with pytest.raises(RuntimeError, match="cannot join thread"):
        run(["verify", str(shared_store)])


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


def test_a_tool_of_monitoring_observes(monkeypatch: pytest.MonkeyPatch) -> None:
    for tools in ([None] * 6, [None, "coverage", *[None] * 4]):
        monitoring = types.SimpleNamespace(get_tool=tools.__getitem__)
        monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
        assert app._is_observed() is any(tools)
