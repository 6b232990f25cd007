"""Stores of strangers at URLs: a server may send what it likes, and no more than is expected is taken of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kinds import MakeStore
from range_server import RangeServer, serving

from packer import pull, push
from packer.cli.app import run
from packer.errors import OptionsError, PackError
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES
from tests.hostile.drafts import Draft
from tests.hostile.faults import BLOCKS, FAULTS, OPENING, make_faulty, pipe, wide_block
from tests.hostile.mutants import KINDS

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
pytest.importorskip("fcntl", reason="a cache needs locks of bytes")

from conftest import Tune

from reader.remote import opening
from reader.remote.folder import CacheFolder
from reader.remote.objects import Objects

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e]")
# What an endless answer may have sent before it is given up: what is read ahead, and what the system's buffers hold.
_MOST_SENT_BYTES = 32 << 20


@pytest.fixture(autouse=True)
def _patience(tune: Tune, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "5")
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    # they wait for work as long as the process lives
    tune(requests_at_once=1)


@pytest.fixture(scope="module")
def root(store_of: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind, and each hostile one by its number."""
    root = tmp_path_factory.mktemp("served")
    for kind in KINDS:
        shutil.copytree(store_of(kind), root / kind)
    for number, fault in enumerate(FAULTS):
        make_faulty(root / fault.kind, root / str(number), fault)
    return root


@pytest.fixture(scope="module")
def server(root: Path) -> Iterator[RangeServer]:
    """All of them, served."""
    with serving(root) as running:
        yield running


@pytest.fixture
def endless(server: RangeServer) -> Iterator[RangeServer]:
    """The server, whose answers about some names may have no end for this test."""
    server.endless_bytes, before = 0, server.trouble
    yield server
    server.trouble = before


def only_with(name: str, trouble: str) -> Callable[[str, int], str | None]:
    """Return what gives trouble with one name."""
    return lambda asked, count: trouble if asked == name else None


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_what_opening_refuses_on_a_disk_it_refuses_at_a_url(
    scheme: str, root: Path, server: RangeServer, tmp_path: Path
) -> None:
    wrong = {}
    for number, fault in enumerate(FAULTS):
        url = f"{server.url}/{number}" if scheme == "http" else f"file://{root}/{number}"
        try:
            CacheFolder(opening.prepared(url, tmp_path / str(number), None)[0])
            error = ""
        except StoreError as e:
            error = str(e)
        # what is beside the files of a store is never asked for; a block of more than a GB is not fetched
        is_file = fault.field.startswith("after/") and fault.field != "after/manifest.json"
        must = fault.who in (OPENING, BLOCKS) and not is_file
        if (must and not error) or (error and not (must or is_file or fault.value is wide_block)):
            wrong[fault.name] = error or "was opened"
        if _HIDDEN.search(error):
            wrong[fault.name] = error
    assert wrong == {}


@pytest.mark.parametrize("number", [number for number, fault in enumerate(FAULTS) if fault.value is pipe])
def test_nothing_waits_for_a_pipe(
    number: int, root: Path, server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for url in (f"file://{root}/{number}", str(root / str(number)), f"{server.url}/{number}"):
        assert run(["pull", url, str(tmp_path / "out")]) == 1
        assert capsys.readouterr().err.startswith("pack: ")
    with pytest.raises(StoreError, match="is not a regular file"):
        Objects(f"file://{root}/{number}").read(FAULTS[number].field.removeprefix("after/"), 0, 10)


def test_an_answer_without_an_end_is_given_up(endless: RangeServer, tune: Tune) -> None:
    tune(fetched_manifest_bytes=1 << 20)
    endless.trouble = only_with(f"pad/{MANIFEST}", "endless")
    found = Objects(f"{endless.url}/pad")
    for span in ((0, None), (0, 100), (5, 2000)):
        with pytest.raises(StoreError, match=f"{MANIFEST} has more than the [0-9]+ bytes that are expected"):
            found.read(MANIFEST, *span)
    assert 0 < endless.endless_bytes <= _MOST_SENT_BYTES


@pytest.mark.parametrize("name", [MANIFEST, SAMPLES, PIXELS])
def test_a_pull_takes_no_more_than_the_manifest_says(
    name: str, endless: RangeServer, tmp_path: Path, tune: Tune
) -> None:
    tune(fetched_manifest_bytes=1 << 20)
    endless.trouble = only_with(f"pad/{name}", "endless")
    with pytest.raises((StoreError, PackError), match=r"has more than the [0-9]+ bytes that are expected"):
        pull(f"{endless.url}/pad", tmp_path / "out")
    assert not (tmp_path / "out" / MANIFEST).exists()
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20
    assert 0 < endless.endless_bytes <= _MOST_SENT_BYTES


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_comes_from_a_web_server_as_it_is(kind: str, root: Path, server: RangeServer, tmp_path: Path) -> None:
    pull(f"{server.url}/{kind}", tmp_path / "out")
    files = [path.relative_to(root / kind) for path in (root / kind).rglob("*") if path.is_file()]
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == {
        name: (root / kind / name).read_bytes() for name in files
    }


def test_splits_come_from_a_web_server_and_none_goes_there(root: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        shutil.copytree(root / "pad", tmp_path / "url" / split)
    with serving(tmp_path / "url") as server:
        pull(server.url, tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]
        with pytest.raises(OptionsError, match="is a web server's, which is only read"):
            push(root / "pad", f"{server.url}/new")


def test_a_block_is_pulled_in_pieces(root: Path, tmp_path: Path, tune: Tune) -> None:
    tune(pulled_piece_bytes=5000)
    pull(f"file://{root}/labels-own-sizes", tmp_path / "out")
    assert (tmp_path / "out" / PIXELS).read_bytes() == (root / "labels-own-sizes" / PIXELS).read_bytes()
    draft = Draft(root / "labels-own-sizes", tmp_path / "url")
    draft.put_number(PIXELS, "B", 300, 7)
    with pytest.raises(PackError, match=f"{PIXELS}, rows 0 to 1, is not what the manifest there says"):
        pull(f"file://{tmp_path}/url", tmp_path / "other")


def check_interrupted(
    program: list[str], command: str, root: Path, out: Path, interrupt: Callable[[subprocess.Popen[str]], object]
) -> None:
    """Interrupt `pack pull` or `pack verify` that waits for a server: it ends with 130 and says that it was interrupted."""
    with serving(root) as server:
        server.trouble = only_with(f"pad/{PIXELS}", "silent")
        words = [sys.executable, *program, command, f"{server.url}/pad", *([str(out)] if command == "pull" else [])]
        process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        try:
            assert server.is_silent.wait(60)
            interrupt(process)
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()
            process.communicate()
            server.ends.set()
    assert process.returncode == 130, error
    assert error.startswith("pack: interrupted.") or "\npack: interrupted." in error
    assert "Traceback" not in error


@pytest.mark.parametrize("command", ["pull", "verify"])
@pytest.mark.usefixtures("delivered_signals")
def test_ctrl_c_does_not_wait_for_a_server_that_says_nothing(command: str, root: Path, tmp_path: Path) -> None:
    check_interrupted(["-m", "packer"], command, root, tmp_path / "out", lambda run: run.send_signal(signal.SIGINT))


# Python's Condition.wait gives its lock back twice where Ctrl-C comes right behind the first time.
_INTERRUPTED_WAIT = """
import pathlib, sys, threading, time
from packer.cli.app import main

def interrupted(condition, timeout=None):
    callers = {sys._getframe(1).f_code.co_name, sys._getframe(2).f_code.co_name}
    if threading.current_thread() is not threading.main_thread() or not callers & {"result", "as_completed"}:
        return wait(condition, timeout)
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    condition._release_save()
    raise KeyboardInterrupt

wait, threading.Condition.wait = threading.Condition.wait, interrupted
main(sys.argv[2:])
"""


@pytest.mark.parametrize("command", ["pull", "verify"])
def test_ctrl_c_is_one_where_python_makes_another_error_of_it(
    command: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # longer than the test waits: after an interrupt nobody waits for the server
    monkeypatch.setenv("PIXPACK_REMOTE_SECONDS", "600")
    asked = tmp_path / "asked"
    check_interrupted(["-c", _INTERRUPTED_WAIT, str(asked)], command, root, tmp_path / "out", lambda _: asked.touch())
