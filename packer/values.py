"""Checks of option values: each takes a value from Python or the command line, and returns it in one form.

Knows no option's default or meaning.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterable
from typing import Any, SupportsIndex

from packer.errors import OptionsError
from packer.option_names import Option, written
from reader.format.filesystem import absolute_path, user_path
from reader.format.urls import is_url

# Takes an option, for the message, and its value; raises OptionsError.
Check = Callable[[Option, Any], Any]

# A square row of this size takes 0.8 GB in RGB; a larger size is a typo.
_MAX_SIDE = 16384


def number(low: float, high: float, expected: str = "", *, kind: type[int] | type[float] = int) -> Check:
    """Return a check for an int or a float in [low, high], or its text; True is refused.

    Example:
        >>> number(1, 4096)(Option("workers"), "2")
        2
    """

    def check(option: Option, value: Any) -> float:
        """Return an option's value as a number in range."""
        try:
            found = kind(value) if kind is float or isinstance(value, str) else operator.index(value)
        except (TypeError, ValueError):
            found = math.nan
        # nan is neither below nor above a limit
        if isinstance(value, bool) or not low <= found <= high:
            wrong = value if isinstance(value, bool) or found == found else repr(value)
            raise OptionsError(f"{option} is {wrong}, expected {expected or f'{low} to {high}'}.")
        return found

    return check


quality = number(2, 31, "2 (best) to 31 (smallest), as ffmpeg's -q:v")


def one_of(*names: str) -> Check:
    """Return a check for one of these names."""

    def check(option: Option, value: Any) -> str:
        """Return an option's value if it is one of the names."""
        if not isinstance(value, str) or value not in names:
            raise OptionsError(f"{option} is {value!r}, expected {', '.join(names[:-1])} or {names[-1]}.")
        return value

    return check


def flag(option: Option, value: Any) -> bool:
    """Check for True or False."""
    if not isinstance(value, bool):
        raise OptionsError(f"{option} is {value!r}, expected True or False.")
    return value


def text(option: Option, value: Any) -> str:
    """Check for text."""
    if not isinstance(value, str):
        raise OptionsError(f"{option} is {value!r}, expected text.")
    return value


def path(option: Option, value: Any) -> str:
    """Check for a path or URL; refuse ""."""
    if not isinstance(value, str | os.PathLike) or value == "":
        raise OptionsError(f"{option} is {value!r}, expected a path.")
    return user_path(value)


def function(option: Option, value: Any) -> Callable[..., object]:
    """Check for a function."""
    if not callable(value):
        raise OptionsError(f"{option} is {value!r}, expected a function.")
    return value


def size(option: Option, value: int | str | Iterable[SupportsIndex]) -> tuple[int, int]:
    """Check for pixels of a row: one number, height and width, or text; returns (height, width).

    Example:
        >>> size(Option("size"), "192x256"), size(Option("size"), 224)
        ((192, 256), (224, 224))
    """
    try:
        if isinstance(value, str):
            height, *rest = map(int, value.lower().split("x"))
        else:
            height, *rest = map(operator.index, value if isinstance(value, Iterable) else [value])
        (width,) = rest or [height]
    except (TypeError, ValueError):
        raise OptionsError(
            f"{option} is {value!r}, expected pixels such as 224, or height x width such as 192x256."
        ) from None
    if not (1 <= height <= _MAX_SIDE and 1 <= width <= _MAX_SIDE):
        raise OptionsError(
            f"{option} is {written(option.name, (height, width))}, expected 1 to {_MAX_SIDE} pixels a side."
        )
    return height, width


def side_limit(max_size: int | str | None) -> tuple[int, bool]:
    """Return the pixels that max_size allows a side, 0 for any, and whether that is the shorter side.

    Example:
        >>> side_limit(512), side_limit("long:512"), side_limit("short:256"), side_limit(None)
        ((512, False), (512, False), (256, True), (0, False))
    """
    match = re.fullmatch(r"(?:(long|short):)?(\d{1,9})", "0" if max_size is None else str(max_size).strip().lower())
    if not match:
        raise OptionsError(
            f"{Option('max_size')} is {max_size!r}, expected pixels such as 512 for the longer side, or short:256 for the"
            " shorter."
        )
    return int(match[2]), match[1] == "short"


def max_size(option: Option, value: int | str) -> int | str:
    """Check for a limit of a side; returns pixels of the longer side, or "short:S"."""
    side, is_short = side_limit(value)
    if not 1 <= side <= _MAX_SIDE:
        raise OptionsError(f"{option} is {value}, expected 1 to {_MAX_SIDE} pixels.")
    return f"short:{side}" if is_short else side


def max_rejects(option: Option, value: int | str) -> str:
    """Check for a count, or a share such as "1%"; returns it as text."""
    limit = str(value).strip()
    match = re.fullmatch(r"\d+|(\d+(?:\.\d+)?)%", limit)
    if not match or float(match[1] or 0) > 100:
        raise OptionsError(f"{option} is {limit!r}, expected a count such as 10 or a share such as 1%.")
    return limit


def allowed_share(limit: str, count: int) -> int:
    """Return the number that a count, or a share of a total such as "1%", allows; rounded down.

    Example:
        >>> allowed_share("7", 250), allowed_share("1%", 250)
        (7, 2)
    """
    return math.floor(count * float(limit[:-1]) / 100) if limit.endswith("%") else int(limit)


def mask_values(option: Option, value: str | Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Check for the values of masks that are classes 0, 1, ..., as text or numbers.

    Example:
        >>> mask_values(Option("mask_values"), "0,255"), mask_values(Option("mask_values"), [0, 128])
        ((0, 255), (0, 128))
    """
    try:
        found = tuple(map(int, value.split(",")) if isinstance(value, str) else map(operator.index, value))
    except (TypeError, ValueError):
        found = ()
    if not 0 < len(found) == len({*found}) < 256 or not all(0 <= each <= 255 for each in found):
        raise OptionsError(
            f"{option} is {value!r}, expected the values of classes 0, 1, ... in masks, such as 0,255: each once, from 0 to"
            " 255, up to 255 of them."
        )
    return found


def part(option: Option, value: Any) -> str:
    """Check for "i/n", the i-th of n parts."""
    match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(value))
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise OptionsError(f"{option} is {value!r}, expected i/n such as 2/8: the second of eight equal parts.")
    return match[0]


def lasting_path(path: str) -> str:
    """Return a path that means the same from any folder; a URL and standard input do already."""
    return path if is_url(path) or path in ("-", "-0") else absolute_path(path)
