"""The pages of the format suffice: a reader written from them alone refuses of hostile stores what ours refuses, and no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import second_reader

from reader import MemmapDataset
from reader.format.blocks import read_blocks
from reader.format.errors import StoreError
from tests.hostile._faults import FAULTS, make_faulty
from tests.hostile._mutants import make_mutant, make_valid
from tests.hostile._stores import KINDS, ROWS


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A valid store of each kind."""
    return make_valid(tmp_path_factory.mktemp("valid"))


# "opening" or "blocks" where that is refused, and of each row its pixels and texts, None where they are refused.
Found = list[str | tuple[bytes, list[str]] | None]


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
            batch = data[row]
            found.append((batch.pixels.numpy().tobytes(), [*batch.texts.values()]))
        except StoreError:
            found.append(None)
    return found


def theirs(store: Path) -> Found:
    """Return what the reader makes of it that was written from the page."""
    try:
        return _read(second_reader.Store(store))
    except second_reader.Refused:
        return ["opening"]


def _read(opened: second_reader.Store) -> Found:
    found: Found = []
    try:
        opened.blocks()
    except second_reader.Refused:
        found.append("blocks")
    for row in range(opened.rows):
        try:
            found.append((opened.pixels(row), opened.text(row)))
        except second_reader.Refused:
            found.append(None)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_both_readers_take_valid_stores(kind: str, valid: Path) -> None:
    found = ours(valid / kind)
    assert found == theirs(valid / kind)
    assert len(found) == ROWS
    assert None not in found


def test_both_readers_refuse_the_same_of_hostile_stores(valid: Path, tmp_path: Path) -> None:
    differ = {}
    for number, name in enumerate(FAULTS):
        store = make_faulty(valid, tmp_path / str(number), name)
        if (one := ours(store)) != (other := theirs(store)):
            differ[name] = one, other
    assert differ == {}


def test_both_readers_refuse_the_same_of_mutants(valid: Path, tmp_path: Path) -> None:
    differ = {}
    for number in range(60):
        store = make_mutant(valid, tmp_path / str(number), 22, number)
        if (one := ours(store)) != (other := theirs(store)):
            differ[number] = one, other
    assert differ == {}
