"""Stores of strangers: digests are right, one thing is wrong; readers and commands say so in one sentence, and no more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import examples
from hypothesis import given
from kinds import MakeStore

from reader import MemmapDataset
from reader.format.errors import StoreError
from tests.hostile.drafts import BLOCKS, FAULTS, NOBODY, OPENING, VERIFY, Fault, make_faulty
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
    # all of a store is checked before it is handed out; a target of another class is right by itself
    if fault.who == VERIFY and ".memmap/" in fault.field and not fault.kind.startswith("jpeg") and fault.value != 0:
        with pytest.raises(StoreError, match="row [0-9]+"):
            _ = MemmapDataset(store).store


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


@pytest.mark.parametrize(("field", "value"), [("shapes.memmap/i/11", 1), ("shapes.memmap/i/9", -4)])
def test_a_row_that_is_asked_for_alone_is_checked_too(
    field: str, value: int, store_of: MakeStore, tmp_path: Path
) -> None:
    store = make_faulty(store_of("own-sizes"), tmp_path / "store", Fault(VERIFY, "own-sizes", field, value, ""))
    with pytest.raises(StoreError, match="row 3"):
        _ = MemmapDataset(store)[3]
