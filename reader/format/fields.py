"""What a JSON value of a store must be, in tables of field and check, with the sentence that refuses it.

Knows kinds and ranges; which fields there are is said where each file is parsed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from reader.format.errors import StoreError
from reader.format.shown import brief

# What json.loads gives: checked before it is used, by tables of fields.
Json: TypeAlias = Any

INT64_MOST = (1 << 63) - 1
INT32_MOST = (1 << 31) - 1
# Options, decoders and labels are a few levels of lists and objects deep.
_MOST_LEVELS = 8


@dataclass(frozen=True)
class Check:
    """What a value must be, in words, and whether one is."""

    expected: str
    holds: Callable[[Any], bool]


def integer(least: int, most: int = INT64_MOST) -> Check:
    """Expect an integer from least to most; true and false are none."""
    upto = "or more" if most == INT64_MOST else f"to {most}"
    return Check(f"an integer of {least} {upto}", lambda value: type(value) is int and least <= value <= most)


def one_of(*values: object) -> Check:
    """Expect one of these values, of its own type."""
    names = ", ".join(map(brief, values))
    return Check(
        f"one of {names}" if len(values) > 1 else names,
        lambda value: any(type(value) is type(known) and value == known for known in values),
    )


def matching(pattern: str, expected: str) -> Check:
    """Expect text of a form."""
    form = re.compile(pattern)
    return Check(expected, lambda value: type(value) is str and form.fullmatch(value) is not None)


def optional(check: Check) -> Check:
    """Expect null, or what another check does."""
    return Check(f"{check.expected}, or null", lambda value: value is None or check.holds(value))


def list_of(check: Check, expected: str, count: int | None = None) -> Check:
    """Expect a list of values that a check holds for, of so many where count is given."""
    return Check(
        expected,
        lambda value: type(value) is list and len(value) == (count or len(value)) and all(map(check.holds, value)),
    )


def object_of(check: Check, expected: str) -> Check:
    """Expect an object of values that a check holds for, whatever their keys."""
    return Check(expected, lambda value: type(value) is dict and all(map(check.holds, value.values())))


def _is_finite(value: Json) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300 and math.isfinite(value)


def _is_plain(value: object, levels: int = _MOST_LEVELS) -> bool:
    if type(value) is dict or type(value) is list:
        inner = value.values() if type(value) is dict else value
        return levels > 0 and all(_is_plain(each, levels - 1) for each in inner)
    return value is None or type(value) in (bool, str) or _is_finite(value)


BOOL = Check("true or false", lambda value: type(value) is bool)
TEXT = Check("text", lambda value: type(value) is str)
NUMBER = Check("a finite number", _is_finite)
SHARE = Check("a number of 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1)
PLAIN = Check("text, finite numbers, true, false, null, or lists and objects of them", _is_plain)
TEXTS = list_of(TEXT, "a list of texts")
NUMBERS = list_of(NUMBER, "a list of finite numbers")
PLAIN_OBJECT = object_of(PLAIN, f"an object of {PLAIN.expected}")
OBJECT = Check("an object", lambda value: type(value) is dict)


def check_fields(
    what: str, fields: object, table: Mapping[str, Check], *, may_lack: frozenset[str] = frozenset()
) -> None:
    """Check that fields is an object that has what a table says; keys that the table does not know are ignored.

    Args:
        what: what the fields are of, to begin a sentence with: "the manifest".

    Raises:
        StoreError: it has not; names the field, what was found and what was expected.
    """
    if type(fields) is not dict:
        raise StoreError(f"{what} is {brief(fields)}, expected an object.")
    for name, check in table.items():
        if name not in fields:
            if name in may_lack:
                continue
            raise StoreError(f"{what} lacks {name}, expected {check.expected}.")
        if not check.holds(fields[name]):
            raise StoreError(f"{what} says {name} = {brief(fields[name])}, expected {check.expected}.")
