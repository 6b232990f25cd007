"""Differences, counts and errors of the system in words. Knows no store."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterable, Mapping, Sequence

from packer.option_names import Option

_NAMED = 3


def difference(found: Mapping[str, object], expected: Mapping[str, object]) -> str:
    """Name the first thing in which two records of decoders differ.

    Example:
        >>> difference({"pillow": {"version": "12.1", "simd": "avx2"}}, {"pillow": {"version": "12.2", "simd": "avx2"}})
        ' (pillow version: 12.1, now 12.2)'
        >>> difference({"libjpeg-turbo": {"jpeg4py": "0.1.4", "turbojpeg": "2.1.5"}}, {})
        ' (libjpeg-turbo: jpeg4py 0.1.4, turbojpeg 2.1.5, now none)'
    """
    for key in {**expected, **found}:
        before, now = found.get(key), expected.get(key)
        if before != now:
            if isinstance(before, dict) and isinstance(now, dict):
                return difference(*({f"{key} {name}": value for name, value in each.items()} for each in (before, now)))
            return f" ({key}: {_in_words(before)}, now {_in_words(now)})"
    return ""


def _in_words(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {part}" for name, part in value.items())
    return "none" if value is None else value


def options_difference(found: Mapping[str, object], expected: Mapping[str, object], then: str = ", now ") -> str:
    """Name the first option in which two records of options differ, as the caller writes both values.

    None and False mean that an option was not given.

    Args:
        then: the words between the two values.

    Example:
        >>> options_difference({"size": [224, 224], "exact": False}, {"size": [192, 256], "exact": True})
        " (size=224, now size='192x256')"
        >>> options_difference({"bit_depth": 12}, {})
        ' (with bit_depth=12, now without)'
        >>> options_difference({"exact": False}, {"exact": True}, " and ")
        ' (without exact and with it)'
    """
    # requantize implies exact: the given option is named
    for key in sorted({**expected, **found}, key=lambda key: key == "exact"):
        before, now = found.get(key), expected.get(key)
        if before != now:
            if _is_digest(before) and _is_digest(now):
                return f" ({Option(key)}: other contents)"
            given = [value is not None and value is not False for value in (before, now)]
            if all(given):
                return f" ({Option(key, before)}{then}{Option(key, now)})"
            value = before if given[0] else now
            # the record has a file's digest, and for some options only that they were given
            option = Option(key, None if value is True or _is_digest(value) else value)
            return f" (with {option}{then}without)" if given[0] else f" (without {option}{then}with it)"
    return ""


def _is_digest(value: object) -> bool:
    return str(value).startswith("sha256:")


def names_difference(before: Sequence[str], now: Sequence[str]) -> str:
    """Name the first removed and the first added name; "" if both lists have the same names.

    Example:
        >>> names_difference(["a", "b"], ["b", "c", "d", "e", "f"])
        'gone: a; new: c, d, e and 1 more'
    """
    old, new = set(before), set(now)
    gone, added = [name for name in before if name not in new], [name for name in now if name not in old]
    return "; ".join(f"{what}: {some(names)}" for what, names in (("gone", gone), ("new", added)) if names)


def spans(numbers: Iterable[int]) -> str:
    """Name ascending whole numbers, and each run of them by its first and last.

    Example:
        >>> spans([0, 1, 2, 3, 7, 255])
        '0 to 3, 7, 255'
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    named = [[f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run) for run in runs]
    return ", ".join(itertools.chain.from_iterable(named))


def some(names: Sequence[str]) -> str:
    """Name the first few, and say how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def system_reason(error: OSError) -> str:
    """Return the system's message of an error and its name: "No space left on device (ENOSPC)"."""
    return f"{error.strerror} ({errno.errorcode.get(error.errno or 0, '?')})"


def counted(count: int, one: str, many: str) -> str:
    """Write a count with its noun: "1 image", "3 images"."""
    return f"1 {one}" if count == 1 else f"{count:,} {many}"
