"""The pages of the format suffice: a reader written from them alone refuses of hostile stores what ours refuses, and no more."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import second_reader
from kinds import ROWS, MakeStore

from reader import MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from tests.hostile.faults import FAULTS, make_faulty
from tests.hostile.mutants import KINDS, make_mutant

# "opening" or "blocks" where that is refused, and of each row its pixels, None where they are refused
Found = list[str | bytes | None]


def ours(store: Path) -> Found:
    """Return what our reader makes of a store."""
    try:
        data = MemmapDataset(store, as_tuple=False)
    except StoreError:
        return ["opening"]
    found: Found = []
    try:
        read_blocks(store)
    except StoreError:
        found.append("blocks")
    for row in range(len(data)):
        try:
            found.append(data[row].pixels.numpy().tobytes())
        except StoreError:
            found.append(None)
    return found


def theirs(store: Path) -> Found:
    """Return what the reader makes of it that was written from the page."""
    try:
        opened = second_reader.Store(store)
    except second_reader.Refused:
        return ["opening"]
    found: Found = []
    try:
        opened.blocks()
    except second_reader.Refused:
        found.append("blocks")
    for row in range(opened.rows):
        try:
            found.append(opened.pixels(row))
        except second_reader.Refused:
            found.append(None)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_both_readers_take_valid_stores(kind: str, store_of: MakeStore) -> None:
    found = ours(store_of(kind))
    assert found == theirs(store_of(kind))
    assert len(found) == ROWS
    assert None not in found


def test_both_readers_refuse_the_same_of_hostile_stores(store_of: MakeStore, tmp_path: Path) -> None:
    differ = {}
    for number, fault in enumerate(FAULTS):
        store = make_faulty(store_of(fault.kind), tmp_path / str(number), fault)
        if (one := ours(store)) != (other := theirs(store)):
            differ[fault.name] = one, other
    assert differ == {}


def test_both_readers_refuse_the_same_of_mutants(store_of: MakeStore, tmp_path: Path) -> None:
    draw, differ = Random(22), {}
    for number in range(60):
        store = make_mutant(store_of(draw.choice(KINDS)), tmp_path / str(number), draw)
        if (one := ours(store)) != (other := theirs(store)):
            differ[number] = one, other
    assert differ == {}
