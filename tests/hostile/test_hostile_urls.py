"""Stores of strangers at URLs: a server may send what it likes, and no more than is expected is taken of it."""

from __future__ import annotations

import io
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from range_server import RangeServer, serving

from packer import pull, push
from packer.cli.app import run
from packer.errors import OptionsError, PackError
from reader.format.at_url import BlockObjects, encode_pointer, object_name
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from reader.format.head import read_head, with_digest
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES, read_manifest
from tests.hostile._faults import EVIL, FAULTS, make_faulty
from tests.hostile._stores import KINDS, Draft, valid_store

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
pytest.importorskip("fcntl", reason="a cache needs locks of bytes")

from conftest import Tune

from reader.remote import opening
from reader.remote.blocks import BlockFetcher
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
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind, and each hostile one by its number."""
    root = tmp_path_factory.mktemp("served")
    for kind in KINDS:
        valid_store(root / kind, kind)
    for number, name in enumerate(FAULTS):
        make_faulty(root, root / str(number), name)
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
    for number, (name, fault) in enumerate(FAULTS.items()):
        url = f"{server.url}/{number}" if scheme == "http" else f"file://{root}/{number}"
        try:
            CacheFolder(opening.prepared(url, tmp_path / str(number), None)[0])
            error = ""
        except StoreError as e:
            error = str(e)
        # what is beside the files of a store is never asked for; a block of more than a GB is not fetched
        is_asked = " beside" not in name and "in _tensordict" not in name
        must = fault.says in ("opening", "blocks") and is_asked
        may = must or name == "a block of holes of 1.4 GB" or "pipe" in name or "other.pickle" in name
        if (must and not error and "pipe" not in name and "other.pickle" not in name) or (error and not may):
            wrong[name] = error or "was opened"
        if _HIDDEN.search(error):
            wrong[name] = error
    assert wrong == {}


@pytest.mark.parametrize("name", ["a pipe as manifest.json", "a pipe as samples.jsonl", "a pipe as pixels"])
def test_nothing_waits_for_a_pipe(
    name: str, root: Path, server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = [*FAULTS].index(name)
    for url in (f"file://{root}/{number}", str(root / str(number)), f"{server.url}/{number}"):
        assert run(["pull", url, str(tmp_path / "out")]) == 1
        assert capsys.readouterr().err.startswith("pack: ")
    found = Objects(f"file://{root}/{number}")
    with pytest.raises(StoreError, match="is not a regular file"):
        found.read({"manifest": MANIFEST, "samples": SAMPLES, "pixels": PIXELS}[name.split()[-1].split(".")[0]], 0, 10)


def test_an_answer_without_an_end_is_given_up(endless: RangeServer, tune: Tune) -> None:
    tune(fetched_manifest_bytes=1 << 20)
    endless.trouble = only_with(f"class/{MANIFEST}", "endless")
    found = Objects(f"{endless.url}/class")
    for span in ((0, None), (0, 100), (5, 2000)):
        with pytest.raises(StoreError, match=f"{MANIFEST} has more than the [0-9]+ bytes that are expected"):
            found.read(MANIFEST, *span)
    assert 0 < endless.endless_bytes <= _MOST_SENT_BYTES


@pytest.mark.parametrize("name", [MANIFEST, SAMPLES, PIXELS])
def test_a_pull_takes_no_more_than_the_manifest_says(
    name: str, endless: RangeServer, tmp_path: Path, tune: Tune
) -> None:
    tune(fetched_manifest_bytes=1 << 20)
    endless.trouble = only_with(f"class/{name}", "endless")
    with pytest.raises((StoreError, PackError), match=r"has more than the [0-9]+ bytes that are expected"):
        pull(f"{endless.url}/class", tmp_path / "out")
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
        valid_store(tmp_path / "url" / split, "class")
    with serving(tmp_path / "url") as server:
        pull(server.url, tmp_path / "out")
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train", "val"]
        with pytest.raises(OptionsError, match="is a web server's, which is only read"):
            push(root / "class", f"{server.url}/new")


def test_a_block_is_pulled_in_pieces(root: Path, tmp_path: Path, tune: Tune) -> None:
    tune(pulled_piece_bytes=50)
    pull(f"file://{root}/own-masks", tmp_path / "out")
    assert (tmp_path / "out" / PIXELS).read_bytes() == (root / "own-masks" / PIXELS).read_bytes()
    draft = Draft.copy(root / "own-masks", tmp_path / "url")
    draft.patch(PIXELS, "B", 300, 7)
    with pytest.raises(PackError, match=f"{PIXELS}, rows 0 to 8, is not what the manifest there says"):
        pull(f"file://{tmp_path}/url", tmp_path / "other")


def check_interrupted(
    program: list[str], command: str, root: Path, out: Path, interrupt: Callable[[subprocess.Popen[str]], object]
) -> None:
    """Interrupt `pack pull` or `pack verify` that waits for a server: it ends with 130 and says that it was interrupted."""
    with serving(root) as server:
        server.trouble = only_with(f"class/{PIXELS}", "silent")
        words = [sys.executable, *program, command, f"{server.url}/class", *([str(out)] if command == "pull" else [])]
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


# -- stores in a folder of their own, and pixels as objects


_FOLDER = "generations/0123456789abcdef"
_DIGEST = f"sha256:{0:064x}"


def _put(url: Path, **changes: object) -> Path:
    """Put a store with pixels as objects at a URL, and a manifest.json that names it, some of whose fields are others."""
    store = valid_store(url / _FOLDER, "own-sizes")
    manifest, pixels = read_manifest(store), (store / PIXELS).read_bytes()
    (store / PIXELS).unlink()
    bounds = BlockObjects((block.size_bytes for block in read_blocks(store)), len(pixels)).bounds
    for start, stop in itertools.pairwise(bounds):
        (store / object_name(start)).parent.mkdir(exist_ok=True)
        (store / object_name(start)).write_bytes(pixels[start:stop])
    head = {"format": "pixpack", "version": [1, 1], "reader_features": ["generations", "block-objects"]}
    head |= {"writer_features": [], "generation": _FOLDER, "store": manifest.digest} | changes
    (url / MANIFEST).write_bytes(with_digest(head, ""))
    return store


def _refusal(url: str, work: Path) -> str:
    """Open and pull; returns what both say, "" where nothing is refused."""
    error = []
    for number, call in enumerate((_read_all, pull)):
        try:
            call(url, work / str(number))
        except (StoreError, PackError) as e:
            error.append(str(e))
    assert len(error) in (0, 2)
    assert not any(_HIDDEN.search(text) or not text for text in error)
    assert not (work / "1" / MANIFEST).exists() or not error
    return " | ".join(error)


def _read_all(url: str, cache: Path) -> None:
    root, source = opening.prepared(url, cache, None)
    folder = CacheFolder(root)
    BlockFetcher(folder, source, None).ensure(range(folder.count))


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_store_of_objects_comes_from_a_url_as_it_is(scheme: str, root: Path, tmp_path: Path) -> None:
    _put(tmp_path / "url")
    with serving(tmp_path / "url") as server:
        url = server.url if scheme == "http" else f"file://{tmp_path}/url"
        assert _refusal(url, tmp_path) == ""
    assert (tmp_path / "1" / PIXELS).read_bytes() == (root / "own-sizes" / PIXELS).read_bytes()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"generation": "../../etc"}, "generation = '../../etc', expected generations/ and 16 hex digits"),
        ({"generation": f"{_FOLDER}/../.."}, "generation = "),
        ({"generation": "/etc"}, "generation = '/etc'"),
        ({"generation": [_FOLDER]}, "generation = "),
        ({"generation": EVIL}, "generation = "),
        ({"generation": "generations/fedcba9876543210"}, "fedcba9876543210"),
        ({"store": 7}, "store = 7"),
        ({"store": _DIGEST}, "manifest.json (says|names)"),
        ({"reader_features": ["generations", "block-objects", EVIL]}, "unknown here"),
        ({"reader_features": ["block-objects"]}, "unknown here"),
        ({"reader_features": 5}, "reader_features = 5"),
        ({"reader_features": ["generations"]}, re.escape(PIXELS)),
        ({"version": [2, 0]}, "manifest.json: the format version is"),
        ({"format": EVIL}, "manifest.json(: the format is| is another program's)"),
    ],
    ids=str,
)
def test_a_manifest_that_names_another_url_is_refused(changes: dict[str, object], what: str, tmp_path: Path) -> None:
    _put(tmp_path / "url", **changes)
    assert re.search(f"{what}.* \\| .*{what}", _refusal(f"file://{tmp_path}/url", tmp_path))


def test_a_manifest_that_names_itself_is_not_followed(tmp_path: Path) -> None:
    store = _put(tmp_path / "url")
    inner = encode_pointer(_DIGEST, _FOLDER)
    (store / MANIFEST).write_bytes(inner)
    digest = read_head(io.BytesIO(inner), MANIFEST).digest
    (tmp_path / "url" / MANIFEST).write_bytes(encode_pointer(digest, _FOLDER, has_block_objects=True))
    assert "it is that of a URL" in _refusal(f"file://{tmp_path}/url", tmp_path)


@pytest.mark.parametrize("change", ["missing", "short", "long", "flipped", "a pipe", "a folder"])
def test_an_object_that_is_not_its_block_is_refused(change: str, tmp_path: Path) -> None:
    store = _put(tmp_path / "url")
    path = sorted((store / PIXELS).iterdir())[1]
    data = path.read_bytes()
    path.unlink()
    if change == "a pipe":
        os.mkfifo(path)
    elif change == "a folder":
        path.mkdir()
    elif change != "missing":
        changed = {"short": data[:-1], "long": data + b"x", "flipped": bytes([data[0] ^ 1]) + data[1:]}
        path.write_bytes(changed[change])
    error = _refusal(f"file://{tmp_path}/url", tmp_path)
    # no more of an object is read than the block has: what follows is never seen
    assert (error == "") == (change == "long")
    assert error == "" or PIXELS in error
