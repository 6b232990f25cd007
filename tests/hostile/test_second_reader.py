"""The pages of the format suffice: a reader written from them alone refuses of hostile stores what ours refuses, and no more."""

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
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from tests.hostile.drafts import FAULTS, make_faulty
from tests.hostile.mutants import KINDS, Change, make_mutant, mutants
from tests.hostile.second_reader import Store


def found(
    read: Callable[[], tuple[int, Callable[[], Any], Callable[[int], bytes]]], refusal: type[Exception]
) -> list[Any]:
    """Return whether the blocks are taken, then of each row its pixels, None where they are refused; [] where opening is."""

    def tried(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except refusal:
            return None

    if (opened := tried(read)) is None:
        return []
    rows, blocks, pixels = opened
    return [tried(lambda: bool(blocks())), *(tried(lambda row=row: pixels(row)) for row in range(rows))]


def ours(store: Path) -> list[Any]:
    def read() -> Any:
        data = MemmapDataset(store, as_tuple=False)
        return len(data), lambda: read_blocks(store), lambda row: data[row].pixels.numpy().tobytes()

    return found(read, StoreError)


def theirs(store: Path) -> list[Any]:
    def read() -> Any:
        data = Store(store)
        return data.rows, data.blocks, lambda row: data.row(row)["pixels"].tobytes()

    return found(read, Exception)


def test_both_readers_refuse_the_same_of_hostile_stores(store_of: MakeStore, tmp_path: Path) -> None:
    differ = {}
    for number, fault in enumerate(FAULTS):
        store = make_faulty(store_of(fault.kind), tmp_path / str(number), fault)
        if (one := ours(store)) != (other := theirs(store)):
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
        assert ours(store) == theirs(store)

    check()
