"""The pages of the format suffice: a reader written from them alone refuses of hostile stores what ours refuses, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from kinds import ROWS, MakeStore

from reader import MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from tests.hostile import second_reader
from tests.hostile.drafts import FAULTS, make_faulty
from tests.hostile.mutants import KINDS, Change, make_mutant, mutants


def found(store: Path, read: Callable[[Path], tuple[int, Callable[[], Any], Callable[[int], bytes]]]) -> list[Any]:
    """Return "opening" or "blocks" where that is refused, then of each row its pixels, None where they are refused."""

    def tried(call: Callable[[], Any], otherwise: Any) -> Any:
        try:
            return call()
        except (StoreError, second_reader.Refused):
            return otherwise

    if (opened := tried(lambda: read(store), None)) is None:
        return ["opening"]
    rows, blocks, pixels = opened
    return [tried(lambda: bool(blocks()), "blocks"), *(tried(lambda row=row: pixels(row), None) for row in range(rows))]


def ours(store: Path) -> tuple[int, Callable[[], Any], Callable[[int], bytes]]:
    data = MemmapDataset(store, as_tuple=False)
    return len(data), lambda: read_blocks(store), lambda row: data[row].pixels.numpy().tobytes()


def theirs(store: Path) -> tuple[int, Callable[[], Any], Callable[[int], bytes]]:
    data = second_reader.Store(store)
    return data.rows, data.blocks, data.pixels


@pytest.mark.parametrize("kind", KINDS)
def test_both_readers_take_valid_stores(kind: str, store_of: MakeStore) -> None:
    one, other = found(store_of(kind), ours), found(store_of(kind), theirs)
    assert one == other
    assert (len(one), None in one) == (1 + ROWS, False)


def test_both_readers_refuse_the_same_of_hostile_stores(store_of: MakeStore, tmp_path: Path) -> None:
    differ = {}
    for number, fault in enumerate(FAULTS):
        store = make_faulty(store_of(fault.kind), tmp_path / str(number), fault)
        if (one := found(store, ours)) != (other := found(store, theirs)):
            differ[fault] = one, other
    assert differ == {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [15, pytest.param(400, marks=pytest.mark.nightly)])
def test_both_readers_refuse_the_same_of_mutants(kind: str, count: int, store_of: MakeStore, tmp_path: Path) -> None:
    base = store_of(kind)

    @examples(count)
    @given(mutants(base))
    def check(changes: list[Change]) -> None:
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        store = make_mutant(base, tmp_path / "store", changes)
        assert found(store, ours) == found(store, theirs)

    check()
