"""What a JSON value of a store must be, and records: dataclasses whose fields are the keys of an object of JSON.

A field declares its key once, by `key`; what reads, refuses and writes the object follows. Which fields there are is said where
each file is parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, NamedTuple, TypeAlias, TypeVar, dataclass_transform

from reader.format.errors import StoreError
from reader.format.shown import brief

_T = TypeVar("_T")

# A value that json.loads returns; it is checked before it is used.
Json: TypeAlias = Any

INT64_MOST = (1 << 63) - 1
INT32_MOST = (1 << 31) - 1
# Options, decoders and labels are a few levels of lists and objects deep.
_MOST_LEVELS = 8


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Kind:
    """Describes the values of a key: in words, by a test, by the Python value each is read as, and by how that is written."""

    expected: str
    holds: Callable[[Json], bool]
    read: Callable[[Json], Any] = _same
    write: Callable[[Any], Json] = _same

    def check(self, what: str, name: str, value: Json) -> None:
        """Check the value of a key; what begins the sentence: "the manifest"; raises StoreError."""
        if not self.holds(value):
            raise StoreError(f"{what} says {name} = {brief(value)}, expected {self.expected}.")


def integer(least: int, most: int = INT64_MOST) -> Kind:
    """Expect an integer from least to most; true and false are none."""
    upto = "or more" if most == INT64_MOST else f"to {most}"
    return Kind(f"an integer of {least} {upto}", lambda value: type(value) is int and least <= value <= most)


def one_of(*values: object) -> Kind:
    """Expect one of these values, of its own type."""
    names = ", ".join(map(brief, values))
    return Kind(
        f"one of {names}" if len(values) > 1 else names,
        lambda value: any(type(value) is type(known) and value == known for known in values),
    )


def matching(pattern: str, expected: str) -> Kind:
    """Expect text of a form."""
    form = re.compile(pattern)
    return Kind(expected, lambda value: type(value) is str and form.fullmatch(value) is not None)


def optional(kind: Kind) -> Kind:
    """Expect null, or what another kind does."""
    return Kind(
        f"{kind.expected}, or null",
        lambda value: value is None or kind.holds(value),
        lambda value: None if value is None else kind.read(value),
        lambda value: None if value is None else kind.write(value),
    )


def list_of(kind: Kind, expected: str, count: int | None = None) -> Kind:
    """Expect a list of values of a kind, of so many where count is given."""
    return Kind(
        expected,
        lambda value: type(value) is list and len(value) == (count or len(value)) and all(map(kind.holds, value)),
        # lists of texts may be long
        _same if kind.read is _same else lambda value: [*map(kind.read, value)],
        _same if kind.write is _same else lambda value: [*map(kind.write, value)],
    )


def tuple_of(kind: Kind, expected: str, count: int | None = None) -> Kind:
    """Expect a list as `list_of` does, which is a tuple in Python."""
    return replace(list_of(kind, expected, count), read=tuple, write=list)


def object_of(kind: Kind, expected: str) -> Kind:
    """Expect an object of values of a kind, whatever their keys."""
    return Kind(expected, lambda value: type(value) is dict and all(map(kind.holds, value.values())), write=dict)


def values_of(kind: Kind, what: str) -> Kind:
    """Expect an object of values of a kind, each refused by its own key; what begins the sentence."""

    def read(entries: Mapping[str, Json]) -> Mapping[str, Json]:
        for name, value in entries.items():
            kind.check(what, name, value)
        return entries

    return replace(OBJECT, read=read)


def with_known(what: str, table: Mapping[str, Kind]) -> Kind:
    """Expect a `PLAIN_OBJECT` whose keys, where the table has them, are of these kinds; what begins the sentence."""

    def read(entries: Mapping[str, Json]) -> Mapping[str, Json]:
        check_fields(what, entries, table, may_lack=frozenset(table))
        return entries

    return replace(PLAIN_OBJECT, read=read)


def record_of(of: type) -> Kind:
    """Expect an object that is a record of a class; for lists of them, which say in words what is expected."""
    return replace(
        OBJECT,
        holds=lambda value: (
            type(value) is dict
            and all(each.name in value and each.kind.holds(value[each.name]) for each in keys_of(of))
        ),
        read=lambda value: read_record(of, "", value),
        write=write_record,
    )


def records_of(of: type, what: str) -> Kind:
    """Expect an object of objects that are records of a class, written by their names in order.

    what: begins the sentence that refuses one, with {} for its name: "the extra {} of the manifest".
    """
    return replace(
        OBJECT,
        read=lambda entries: {name: read_record(of, what.format(brief(name)), each) for name, each in entries.items()},
        write=lambda records: {name: write_record(each) for name, each in sorted(records.items())},
    )


def _is_finite(value: Json) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _is_plain(value: object, levels: int = _MOST_LEVELS) -> bool:
    if type(value) is dict or type(value) is list:
        inner = value.values() if type(value) is dict else value
        return levels > 0 and all(_is_plain(each, levels - 1) for each in inner)
    return value is None or type(value) in (bool, str) or _is_finite(value)


BOOL = Kind("true or false", lambda value: type(value) is bool)
TEXT = Kind("text", lambda value: type(value) is str)
NUMBER = Kind("a finite number", _is_finite)
SHARE = Kind("a number of 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
PLAIN = Kind("text, finite numbers, true, false, null, or lists and objects of them", _is_plain)
TEXTS = tuple_of(TEXT, "a list of texts")
BYTES = list_of(integer(0, 255), "a list of integers from 0 to 255")
NUMBERS = replace(tuple_of(NUMBER, "a list of finite numbers"), read=lambda value: tuple(map(float, value)))
PLAIN_OBJECT = object_of(PLAIN, f"an object of {PLAIN.expected}")
OBJECT = Kind("an object", lambda value: type(value) is dict, write=dict)


class Key(NamedTuple):
    """The key of an object that a field of a dataclass is; as `key` says."""

    kind: Kind
    name: str
    inside: str
    where_given: bool
    field: str = ""
    default: Any = MISSING


def key(
    kind: Kind,
    name: str = "",
    *,
    inside: str = "",
    where_given: bool = False,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    compare: bool = True,
) -> Any:
    """Declare a field of a record, and the key that it is.

    Args:
        name: of the key, where it is not the field's. inside: the key of the object that it is in.
        where_given: whether it may lack, and is written only if its value is not the default.
        default, default_factory, compare: as of `dataclasses.field`.
    """
    metadata = {"key": Key(kind, name, inside, where_given)}
    return field(default=default, default_factory=default_factory, compare=compare, metadata=metadata)


@dataclass_transform(field_specifiers=(key, field), frozen_default=True)
def record(*, frozen: bool = True, kw_only: bool = False) -> Callable[[type[_T]], type[_T]]:
    """Make a class a dataclass that is an object of JSON: of its fields, those declared by `key` are the keys."""
    return dataclass(frozen=frozen, kw_only=kw_only)


@cache
def keys_of(of: Any) -> tuple[Key, ...]:
    """Return the keys that the fields of a class of records are, in the order of the object."""
    keys: list[Key] = []
    for own in fields(of):
        if given := own.metadata.get("key"):
            default = own.default if own.default_factory is MISSING else own.default_factory()
            keys.append(given._replace(name=given.name or own.name, field=own.name, default=default))
    return tuple(keys)


def read_record(of: Callable[..., _T], what: str, entries: Json, *, of_any_version: bool = False) -> _T:
    """Return the record of a class that an object says; raises StoreError as `read_values`."""
    return of(**read_values(of, what, entries, of_any_version=of_any_version))


def read_values(of: Callable[..., object], what: str, entries: Json, *, of_any_version: bool = False) -> dict[str, Any]:
    """Return the values of the fields of a record that an object says; keys that no field is are ignored.

    Args:
        what: the object is, to begin a sentence with: "the manifest".
        of_any_version: whether each key may lack whose field has a default.

    Raises:
        StoreError: it lacks one, or one is of another kind; names the key, its value and the value that was expected.
    """
    check_fields(what, entries, {each.inside: OBJECT for each in keys_of(of) if each.inside})
    values = {}
    for each in keys_of(of):
        holder, where = (entries[each.inside], f"{each.inside} of {what}") if each.inside else (entries, what)
        if each.name in holder:
            each.kind.check(where, each.name, holder[each.name])
            values[each.field] = each.kind.read(holder[each.name])
        elif not each.where_given and (each.default is MISSING or not of_any_version):
            raise _lacks(where, each.name, each.kind)
    return values


def check_record(what: str, own: Any, names: Container[str] | None = None) -> None:
    """Check the fields of a record that was not read, of these names where they are given; raises StoreError as `read_values`."""
    for each in keys_of(own.__class__):
        if names is None or each.field in names:
            each.kind.check(what, each.name, each.kind.write(getattr(own, each.field)))


def write_record(own: Any) -> dict[str, Json]:
    """Return the object of a record, as `read_record` reads it."""
    written: dict[str, Json] = {}
    for each in keys_of(own.__class__):
        value = getattr(own, each.field)
        if not (each.where_given and value == each.default):
            holder = written.setdefault(each.inside, {}) if each.inside else written
            holder[each.name] = each.kind.write(value)
    return written


def check_fields(what: str, entries: Json, table: Mapping[str, Kind], *, may_lack: Container[str] = ()) -> None:
    """Check that entries are an object that has what a table says; keys that the table does not know are ignored.

    Args:
        what: it is, to begin a sentence with: "the manifest".

    Raises:
        StoreError: it has not; names the key, its value and the value that was expected.
    """
    if type(entries) is not dict:
        raise StoreError(f"{what} is {brief(entries)}, expected an object.")
    for name, kind in table.items():
        if name in entries:
            kind.check(what, name, entries[name])
        elif name not in may_lack:
            raise _lacks(what, name, kind)


def _lacks(what: str, name: str, kind: Kind) -> StoreError:
    return StoreError(f"{what} lacks {name}, expected {kind.expected}.")
