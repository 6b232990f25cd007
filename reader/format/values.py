"""Checked access to values of JSON objects, one function per kind; `what` begins the message of an error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from reader.format.errors import StoreError
from reader.format.shown import brief, shown

# A value that json.loads returns; it is checked before it is used.
Json: TypeAlias = Any

INT64_MOST = (1 << 63) - 1
INT32_MOST = (1 << 31) - 1
# Options, decoders and labels are nested a few levels deep.
_MOST_LEVELS = 8


def value_in(what: str, entries: Json, name: str, holds: Callable[[Json], bool], expected: str) -> Any:
    """Return the value of a key.

    Args:
        what: the name of entries, which begins a message: "the manifest".
        holds: whether a value is of the kind that `expected` describes.

    Raises:
        StoreError: entries are not an object, lack the key, or its value is of another kind.
    """
    if type(entries) is not dict:
        raise StoreError(f"{what} is {brief(entries)}, expected an object.")
    if name not in entries:
        raise StoreError(f"{what} lacks {name}, expected {expected}.")
    if not holds(entries[name]):
        raise StoreError(f"{what} says {shown(name, most=60)} = {brief(entries[name])}, expected {expected}.")
    return entries[name]


def integer(what: str, entries: Json, name: str, least: int, most: int = INT64_MOST) -> int:
    """Return an integer from least to most; true and false are refused."""
    expected = f"an integer of {least} {'or more' if most == INT64_MOST else f'to {most}'}"
    number: int = value_in(what, entries, name, lambda value: type(value) is int and least <= value <= most, expected)
    return number


def boolean(what: str, entries: Json, name: str) -> bool:
    """Return true or false."""
    is_so: bool = value_in(what, entries, name, lambda value: type(value) is bool, "true or false")
    return is_so


def text(what: str, entries: Json, name: str) -> str:
    """Return a text."""
    found: str = value_in(what, entries, name, lambda value: type(value) is str, "text")
    return found


def texts(what: str, entries: Json, name: str) -> tuple[str, ...]:
    """Return a list of texts."""

    def are_texts(value: Json) -> bool:
        """Whether this is a list of texts."""
        return type(value) is list and all(type(each) is str for each in value)

    return tuple(value_in(what, entries, name, are_texts, "a list of texts"))


def object_in(what: str, entries: Json, name: str) -> dict[str, Json]:
    """Return an object; its values are not checked."""
    found: dict[str, Json] = value_in(what, entries, name, lambda value: type(value) is dict, "an object")
    return found


def is_number(value: Json) -> bool:
    """Return whether a value is a finite number."""
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def is_plain(value: Json, levels: int = _MOST_LEVELS) -> bool:
    """Whether a value is text, a finite number, true, false, null, or lists and objects of these, at most `levels` deep."""
    if type(value) is dict or type(value) is list:
        inner = value.values() if type(value) is dict else value
        return levels > 0 and all(is_plain(each, levels - 1) for each in inner)
    return value is None or type(value) in (bool, str) or is_number(value)
