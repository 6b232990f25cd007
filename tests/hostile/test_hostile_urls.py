"""Stores of strangers at URLs: a server may send what it likes, and no more than is expected is taken of it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kinds import MakeStore
from range_server import RangeServer, serving

from packer import pull
from packer.cli.app import run
from packer.errors import PackError
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES
from tests.hostile.drafts import Draft
from tests.hostile.faults import BLOCKS, FAULTS, OPENING, make_faulty, pipe
from tests.hostile.mutants import KINDS

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
pytest.importorskip("fcntl", reason="a cache needs locks of bytes")

from reader.remote import fetcher as fetchers
from reader.remote.fetcher import Fetcher

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e]")
# What an endless answer may have sent before it is given up: what is read ahead, and what the system's buffers hold.
_MOST_SENT_BYTES = 32 << 20


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(fetchers, "_PAUSES", ())
    monkeypatch.setattr(fetchers, "_REQUESTS", 1)
    monkeypatch.setattr(fetchers, "_MOST_MANIFEST_BYTES", 1 << 20)


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


def refusal(url: str, cache: Path) -> str:
    """Open a store at a URL, and fetch its lines and its blocks; returns what is wrong with it."""
    fetcher = Fetcher()
    try:
        fetcher.open([url, str(cache), None, ""])
        fetcher.file(SAMPLES)
        fetcher.fetch([*range(len(fetcher._blocks.crcs))])
    except StoreError as e:
        return str(e)
    return ""


def test_what_opening_refuses_on_a_disk_it_refuses_at_a_url(server: RangeServer, tmp_path: Path) -> None:
    wrong = {}
    for number, fault in enumerate(FAULTS):
        error = refusal(f"{server.url}/{number}", tmp_path / str(number))
        # what is beside the files of a store is never asked for
        is_file = fault.field.startswith("after/") and fault.field != "after/manifest.json"
        if (fault.who in (OPENING, BLOCKS) and not is_file and not error) or _HIDDEN.search(error):
            wrong[fault.name] = error or "was opened"
    assert wrong == {}


@pytest.mark.parametrize("number", [number for number, fault in enumerate(FAULTS) if fault.value is pipe])
def test_nothing_waits_for_a_pipe(
    number: int, root: Path, server: RangeServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, url in (("a", f"file://{root}/{number}"), ("b", f"{server.url}/{number}")):
        assert run(["pull", url, str(tmp_path / name)]) == 1
        assert capsys.readouterr().err.startswith("pack: ")


@pytest.mark.parametrize("name", [MANIFEST, SAMPLES, PIXELS])
def test_an_answer_without_an_end_is_given_up(name: str, endless: RangeServer, tmp_path: Path) -> None:
    endless.trouble = only_with(f"pad/{name}", "endless")
    assert refusal(f"{endless.url}/pad", tmp_path)
    assert 0 < endless.endless_bytes <= _MOST_SENT_BYTES
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_comes_from_a_web_server_as_it_is(kind: str, root: Path, server: RangeServer, tmp_path: Path) -> None:
    pull(f"{server.url}/{kind}", tmp_path / "out")
    files = [path.relative_to(root / kind) for path in (root / kind).rglob("*") if path.is_file()]
    assert {name: (tmp_path / "out" / name).read_bytes() for name in files} == {
        name: (root / kind / name).read_bytes() for name in files
    }


def test_a_damaged_block_is_not_pulled(root: Path, tmp_path: Path) -> None:
    draft = Draft(root / "labels-own-sizes", tmp_path / "url")
    draft.put_number(PIXELS, "B", 300, 7)
    with pytest.raises(PackError, match=f"{PIXELS} is not what the manifest there says"):
        pull(f"file://{tmp_path}/url", tmp_path / "out")
    assert not (tmp_path / "out").exists()
