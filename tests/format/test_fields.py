"""Fields of a dataclass that are keys of an object: declared once, they are read, refused and written alike."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from reader.format.errors import StoreError
from reader.format.fields import (
    BOOL,
    TEXT,
    TEXTS,
    check_record,
    integer,
    key,
    keys_of,
    list_of,
    optional,
    read_record,
    record,
    record_of,
    records_of,
    tuple_of,
    write_record,
)
from reader.format.manifest import Manifest

ROOT = Path(__file__).parents[2]


@record()
class Side:
    length: int = key(integer(1, 9), "cm")


@record(kw_only=True)
class Box:
    names: tuple[str, ...] = key(TEXTS, default=())
    size: int = key(integer(0))
    inner: bool = key(BOOL, "is_set", inside="more")
    sides: dict[str, Side] = key(records_of(Side, "the side {} of the box"), default_factory=dict)
    note: str | None = key(optional(TEXT), where_given=True, default=None)
    pair: tuple[int, ...] = key(tuple_of(integer(0), "two integers", 2), where_given=True, default=(0, 0))
    rest: list[Side] = key(list_of(record_of(Side), "a list of sides"), where_given=True, default_factory=list)
    other: int = 7


BOX = Box(
    names=("a",),
    size=3,
    inner=True,
    sides={"top": Side(2), "left": Side(1)},
    note="x",
    pair=(1, 2),
    rest=[Side(4)],
)
WRITTEN = {
    "names": ["a"],
    "size": 3,
    "more": {"is_set": True},
    "sides": {"left": {"cm": 1}, "top": {"cm": 2}},
    "note": "x",
    "pair": [1, 2],
    "rest": [{"cm": 4}],
}


def test_a_record_is_written_in_the_order_of_its_keys_and_read_back() -> None:
    assert json.dumps(write_record(BOX)) == json.dumps(WRITTEN)
    assert read_record(Box, "the box", json.loads(json.dumps(WRITTEN))) == BOX


def test_what_is_written_only_where_it_is_given_may_lack() -> None:
    bare = {"names": [], "size": 0, "more": {"is_set": False}, "sides": {}}
    assert write_record(Box(size=0, inner=False)) == bare
    assert read_record(Box, "the box", bare | {"later": 1}) == Box(size=0, inner=False)


def test_a_record_of_any_version_may_lack_what_has_a_default() -> None:
    found = {"size": 1, "more": {"is_set": True}}
    with pytest.raises(StoreError, match=r"^the box lacks names, expected a list of texts\.$"):
        read_record(Box, "the box", found)
    assert read_record(Box, "the box", found, of_any_version=True) == Box(size=1, inner=True)
    with pytest.raises(StoreError, match=r"^the box lacks size, expected an integer of 0 or more\.$"):
        read_record(Box, "the box", {"more": {"is_set": True}}, of_any_version=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": -1}, "the box says size = -1, expected an integer of 0 or more."),
        ({"size": True}, "the box says size = True, expected an integer of 0 or more."),
        ({"more": 3}, "the box says more = 3, expected an object."),
        ({"more": {}}, "more of the box lacks is_set, expected true or false."),
        ({"more": {"is_set": 1}}, "more of the box says is_set = 1, expected true or false."),
        ({"names": "a"}, "the box says names = 'a', expected a list of texts."),
        ({"sides": {"top": 5}}, "the side 'top' of the box is 5, expected an object."),
        ({"sides": {"top": {"cm": 10}}}, "the side 'top' of the box says cm = 10, expected an integer of 1 to 9."),
        ({"note": 1}, "the box says note = 1, expected text, or null."),
        ({"pair": [1]}, "the box says pair = [1], expected two integers."),
        ({"rest": [{}]}, "the box says rest = [{}], expected a list of sides."),
    ],
)
def test_a_value_of_another_kind_is_refused_in_a_sentence(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(StoreError) as refused:
        read_record(Box, "the box", WRITTEN | change)
    assert str(refused.value) == sentence


def test_a_record_that_was_not_read_is_checked_by_the_same_kinds() -> None:
    check_record("the box", BOX)
    with pytest.raises(StoreError, match=r"^the box says size = -1, expected an integer of 0 or more\.$"):
        check_record("the box", dataclasses.replace(BOX, size=-1))
    check_record("the box", dataclasses.replace(BOX, size=-1), ("pair",))


def test_the_head_of_a_manifest_has_the_keys_that_the_format_names_in_its_order() -> None:
    text = (ROOT / "docs" / "FORMAT.md").read_text(encoding="utf-8")
    head = text.partition("### The head, in its order")[2].partition("### The blocks")[0]
    names = [name for row in re.findall(r"^\| (`.+?) \|", head, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    last = ""
    for name, after in re.findall(r"^- `(\w+)`, (?:after `(\w+)`|next)", head, re.MULTILINE):
        names.insert(names.index(after or last) + 1, name)
        last = name
    keys = [each.inside or each.name for each in keys_of(Manifest)]
    assert names == ["format", *dict.fromkeys(keys)]
