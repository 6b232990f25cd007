"""Stores of strangers at URLs: a server may send what it likes, and no more than is expected is taken of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import store_bytes
from kinds import MakeStore
from range_server import RangeServer, serving

from packer import PackError, pull
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, PIXELS, SAMPLES
from tests.hostile.drafts import BLOCKS, FAULTS, OPENING, Draft, make_faulty
from tests.hostile.mutants import KINDS

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")

from reader.remote.blocks import Blocks
from reader.remote.fetcher import Fetcher

# What an endless answer may have sent before it is given up: what is read ahead, and what the system's buffers hold.
_MOST_SENT_BYTES = 32 << 20
_MOST_MANIFEST_BYTES = 256 << 20


@pytest.fixture(scope="module")
def root(store_of: MakeStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind, and by its number each hostile one in whose files something is wrong."""
    root = tmp_path_factory.mktemp("served")
    for kind in KINDS:
        Draft(store_of(kind)).seal(root / kind)
    for number, fault in enumerate(FAULTS):
        if not fault.field.startswith("after/"):
            make_faulty(root / fault.kind, root / str(number), fault)
    return root


@pytest.fixture
def server(root: Path) -> Iterator[RangeServer]:
    """All of them, served."""
    with serving(root) as running:
        yield running


def refusal(url: str, cache: Path) -> str:
    """Open a store at a URL, and fetch its lines and its blocks; returns what is wrong with it."""
    fetcher = Fetcher()
    try:
        folder = fetcher.open([url, str(cache), None, ""])
        fetcher.file(SAMPLES)
        fetcher.fetch([*range(len(Blocks(Path(folder)).crcs))])
    except StoreError as e:
        return str(e)
    return ""


def test_what_opening_refuses_on_a_disk_it_refuses_at_a_url(root: Path, server: RangeServer, tmp_path: Path) -> None:
    found = {n: refusal(f"{server.url}/{n}", tmp_path / str(n)) for n in range(len(FAULTS)) if (root / str(n)).exists()}
    assert [FAULTS[n] for n, says in found.items() if FAULTS[n].who in (OPENING, BLOCKS) and not says] == []
    assert [FAULTS[n] for n, says in found.items() if not says.isprintable()] == []


@pytest.mark.parametrize("is_served", [True, False])
def test_nothing_waits_for_a_pipe(
    is_served: bool, store_of: MakeStore, server: RangeServer, root: Path, tmp_path: Path
) -> None:
    for name in (MANIFEST, SAMPLES, PIXELS):
        draft, store = Draft(store_of("pad")), root / f"pipe-{is_served}" / Path(name).name
        draft.put(f"after/{name}", "pipe")
        draft.seal(store)
        with pytest.raises(PackError):
            pull(
                f"{server.url}/{store.relative_to(root)}" if is_served else f"file://{store}",
                tmp_path / Path(name).name,
            )


@pytest.mark.parametrize(("name", "most_bytes"), [(MANIFEST, _MOST_MANIFEST_BYTES), (SAMPLES, 0), (PIXELS, 0)])
def test_an_answer_without_an_end_is_given_up(name: str, most_bytes: int, server: RangeServer, tmp_path: Path) -> None:
    server.trouble = lambda asked, count: "endless" if asked == f"pad/{name}" else None
    assert refusal(f"{server.url}/pad", tmp_path)
    assert 0 < server.endless_bytes <= most_bytes + _MOST_SENT_BYTES
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_comes_from_a_web_server_as_it_is(kind: str, root: Path, server: RangeServer, tmp_path: Path) -> None:
    pull(f"{server.url}/{kind}", tmp_path / "out")
    assert store_bytes(tmp_path / "out") == store_bytes(root / kind)
