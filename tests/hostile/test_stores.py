"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from kinds import MakeStore

from reader import MemmapDataset
from reader.format.errors import StoreError
from tests.hostile.drafts import BLOCKS, FAULTS, NOBODY, OPENING, ROWS, Fault, make_faulty
from tests.hostile.mutants import KINDS, Change, make_mutant, mutants
from tests.hostile.watched import Watched


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=["verify", "commands"])
def has_commands(request: pytest.FixtureRequest) -> bool:
    """Whether a store is given to all commands too."""
    return bool(request.param)


@pytest.mark.parametrize("kind", KINDS)
def test_the_stores_that_the_hostile_ones_begin_with_are_accepted(
    kind: str, has_commands: bool, store_of: MakeStore, watched: Watched
) -> None:
    found = watched.read(store_of(kind), has_commands=has_commands)
    assert (found.failures, found.opening, found.verify) == ([], "", "")


@pytest.mark.parametrize("fault", FAULTS, ids=[f"{one.kind}-{one.field}-{str(one.value)[:20]!a}" for one in FAULTS])
def test_a_hostile_store_is_refused_in_one_sentence(
    fault: Fault, has_commands: bool, store_of: MakeStore, watched: Watched, tmp_path: Path
) -> None:
    store = make_faulty(store_of(fault.kind), tmp_path / "store", fault)
    found = watched.read(store, has_commands=has_commands)
    assert found.failures == []
    assert (found.opening == "") == (fault.who != OPENING)
    assert (found.verify == "") == (fault.who == NOBODY)
    assert fault.says in (found.opening or found.verify)
    if fault.who == ROWS:
        data = MemmapDataset(store, as_tuple=False)
        refused = [row for row in range(len(data)) if is_refused(lambda row=row: data[row])]  # type: ignore[misc]
        assert f"row {refused[0]}:" in found.verify
        assert is_refused(lambda: data[:])
        # all of it is checked before it is handed out, and one of JPEGs never is
        assert is_refused(lambda: data.store)


def is_refused(read: Callable[[], Any]) -> bool:
    try:
        read()
    except StoreError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [6, pytest.param(300, marks=pytest.mark.nightly)])
def test_mutants_end_in_a_result_or_a_sentence(
    kind: str, count: int, has_commands: bool, store_of: MakeStore, watched: Watched, tmp_path: Path
) -> None:
    base = store_of(kind)

    @examples(count)
    @given(mutants(base))
    def check(changes: list[Change]) -> None:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        store = make_mutant(base, tmp_path / "store", changes)
        assert watched.read(store, has_commands=has_commands).failures == []

    check()


def test_what_opening_refuses_on_a_disk_it_refuses_at_a_url(store_of: MakeStore, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed: pip install 'pixpack[remote]'")
    from reader.remote.fetcher import Fetcher

    for number, fault in enumerate(FAULTS):
        if fault.who in (OPENING, BLOCKS) and not fault.field.startswith("after/"):
            store = make_faulty(store_of(fault.kind), tmp_path / str(number), fault)
            with pytest.raises(StoreError) as refused:
                Fetcher().open([store.as_uri(), str(tmp_path / "cache"), None, ""])
            assert str(refused.value).isprintable()
