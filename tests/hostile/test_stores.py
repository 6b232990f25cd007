"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from kinds import MakeStore

from reader import MemmapDataset
from reader.format.errors import StoreError
from tests.hostile.drafts import make_store, read_faults
from tests.hostile.mutants import mutants
from tests.hostile.watched import HIDDEN, Watched

# of tests/laws/kinds.py: those that differ in their files
KINDS = ("pad", "regression", "multi-hot", "boxes", "own-sizes", "labels-own-sizes", "jpeg", "jpeg-own-sizes")
FAULTS = read_faults()


@pytest.mark.parametrize("has_commands", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(("who", "kind", "changes", "says"), FAULTS)
def test_a_hostile_store_is_refused_in_one_sentence(
    who: str,
    kind: str,
    changes: dict[str, Any],
    says: str,
    has_commands: bool,
    store_of: MakeStore,
    watched: Watched,
    tmp_path: Path,
) -> None:
    store = make_store(store_of(kind), tmp_path / "store", changes)
    opening, verify = watched.read(store, has_commands=has_commands)
    assert (opening == "", verify == "") == (who != "opening", who == "nobody")
    assert says in (opening or verify)
    if who == "rows":
        data = MemmapDataset(store, as_tuple=False)
        refused = [row for row in range(len(data)) if is_refused(data, row)]
        assert f"row {refused[0]}:" in verify
        # all of it is checked before it is handed out
        assert is_refused(data, slice(None))


def is_refused(data: MemmapDataset, rows: int | slice) -> bool:
    try:
        data[rows]
    except StoreError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.nightly)])
def test_mutants_end_in_a_result_or_a_sentence(
    kind: str, count: int, store_of: MakeStore, watched: Watched, tmp_path: Path
) -> None:
    base = store_of(kind)

    @examples(count)
    @given(mutants(base))
    def check(changes: dict[str, Any]) -> None:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        watched.read(make_store(base, tmp_path / "store", changes), has_commands=count > 6)

    check()


def test_what_opening_refuses_on_a_disk_it_refuses_at_a_url(store_of: MakeStore, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    from reader.remote.fetcher import Fetcher

    for number, (who, kind, changes, _) in enumerate(FAULTS):
        if who in ("opening", "blocks") and "after/" not in str(changes):
            store = make_store(store_of(kind), tmp_path / str(number), changes)
            with pytest.raises(StoreError) as refused:
                Fetcher().open([store.as_uri(), str(tmp_path / "cache"), None, ""])
            assert not HIDDEN.search(str(refused.value))
