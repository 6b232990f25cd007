"""The forms in which sizes and limits may be given. Knows no option's default or meaning."""

from __future__ import annotations

import math
import numbers
import operator
import os
import re
from collections.abc import Iterable
from typing import SupportsIndex

from packer.errors import OptionsError
from packer.option_names import Option
from reader.format.filesystem import absolute_path, user_path
from reader.format.urls import is_url

_KINDS = {bool: "True or False", int: "an integer", float: "a number", str: "text", type(None): "None"}


def of_kind(name: str, value: object, kinds: tuple[type, ...]) -> object:
    """Return an option's value, numbers of other libraries as Python's own; True is no number. Raises OptionsError.

    Example:
        >>> of_kind("workers", 2, (int, type(None)))
        2
    """
    if isinstance(value, bool):
        if bool in kinds:
            return value
    elif value is None or isinstance(value, str):
        if type(value) in kinds or (str in kinds and value is not None):
            return value
    elif int in kinds and isinstance(value, numbers.Integral):
        return int(value)
    elif float in kinds and isinstance(value, int | float):
        return value
    elif float in kinds and isinstance(value, numbers.Real):
        return float(value)
    expected = " or ".join(words for kind, words in _KINDS.items() if kind in kinds)
    raise OptionsError(f"{Option(name)} is {value!r}, expected {expected}.")


def parsed_size(size: int | str | Iterable[SupportsIndex] | None) -> tuple[int, int] | None:
    """Return (height, width) from pixels, a pair or text; None stays None. Raises OptionsError."""
    if size is None:
        return None
    if isinstance(size, str | int):
        return parse_size(str(size))
    try:
        height, width = (operator.index(side) for side in size)
    except (TypeError, ValueError):
        raise OptionsError(f"size is {size!r}, expected pixels, (height, width), or text such as '192x256'.") from None
    return height, width


def parse_size(text: str) -> tuple[int, int]:
    """Parse "224" or "192x256" (height x width).

    Example:
        >>> parse_size("192x256")
        (192, 256)
    """
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", text.strip().lower())
    if not match:
        raise OptionsError(
            f"{Option('size')} is {text!r}, expected pixels such as 224, or height x width such as 192x256."
        )
    return int(match[1]), int(match[2] or match[1])


def side_limit(max_size: int | str | None) -> tuple[int, bool]:
    """Return the pixels that --max-size allows a side, 0 for any, and whether that is the shorter side.

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


def recorded_limit(max_size: int | str | None) -> int | str | None:
    """Return --max-size as a manifest records it: pixels of the longer side, "short:S", or None."""
    side, is_short = side_limit(max_size)
    return f"short:{side}" if is_short else side or None


def check_max_size(max_size: int | str | None, fit: str, most: int) -> None:
    """Refuse a limit of a side that is none, or is beyond most, or belongs to another --fit."""
    if max_size is None:
        return
    if fit != "none":
        raise OptionsError(
            f"{Option('max_size')} belongs to {Option('fit', 'none')}, not to {Option('fit', fit)}: add"
            f" {Option('fit', 'none')}, or give {Option('size')} instead."
        )
    side, _ = side_limit(max_size)
    if not 1 <= side <= most:
        raise OptionsError(f"{Option('max_size')} is {max_size!r}, expected 1 to {most} pixels.")


def lasting_path(path: str) -> str:
    """Return a path that means the same from any folder; a URL and standard input do already."""
    return path if is_url(path) or path in ("-", "-0") else absolute_path(path)


def allowed_share(option: Option, limit: int | str, count: int) -> int:
    """Return how many of so many an option allows: a number, or a share such as "1%", rounded down."""
    text = str(limit).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(%?)", text)
    if not match or (not match[2] and "." in text) or (match[2] and float(match[1]) > 100):
        raise OptionsError(f"{option} is {text!r}, expected a count such as 10 or a share such as 1%.")
    return math.floor(count * float(match[1]) / 100) if match[2] else int(match[1])


def check_quality(option: Option, quality: int | None) -> None:
    """Refuse what is no -q:v of FFmpeg's, 2 (best) to 31 (smallest); None is none."""
    if quality is not None and not (isinstance(quality, int) and 2 <= quality <= 31):
        raise OptionsError(f"{option} is {quality!r}, expected 2 (best) to 31 (smallest), as ffmpeg's -q:v.")


def check_jpeg_quality(quality: int | None) -> None:
    """Refuse a value of --compress that is no quality of a JPEG; None is none."""
    if quality is not None and (type(quality) is not int or not 0 <= quality <= 100):
        raise OptionsError(f"{Option('compress')} is {quality!r}, expected the quality of JPEGs, 1 to 100, such as 90.")


def mask_values(values: str | Iterable[SupportsIndex] | None) -> tuple[int, ...] | None:
    """Return the values of masks that are classes 0, 1, ..., from text or numbers; None stays None. Raises OptionsError.

    Example:
        >>> mask_values("0,255"), mask_values([0, 128])
        ((0, 255), (0, 128))
    """
    if values is None:
        return None
    try:
        found = tuple(map(int, values.split(","))) if isinstance(values, str) else tuple(map(operator.index, values))
    except (TypeError, ValueError):
        found = ()
    if not 0 < len(found) == len({*found}) < 256 or not all(0 <= value <= 255 for value in found):
        raise OptionsError(
            f"{Option('mask_values')} is {values!r}, expected the values of classes 0, 1, ... in masks, such as 0,255: each"
            " once, from 0 to 255, up to 255 of them."
        )
    return found


def check_jpeg_rows(quality: int, channels: str, *, has_masks: bool) -> None:
    """Refuse what rows that are JPEGs of this quality cannot hold."""
    if channels == "rgba":
        raise OptionsError(
            f"{Option('compress', quality)} takes {Option('channels')} rgb or gray, as a JPEG has no alpha."
        )
    if has_masks:
        raise OptionsError(
            f"{Option('compress', quality)} does not go with {Option('masks')}, which a JPEG would change. Leave one of them"
            " out."
        )


def check_one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Refuse a value of an option that is none of those known."""
    if value not in known:
        raise OptionsError(f"{Option(name)} is {value!r}, expected {', '.join(known[:-1])} or {known[-1]}.")


def path_text(path: str | os.PathLike[str] | None) -> str | None:
    """Return a path as text; None stays None."""
    return None if path is None else user_path(path)
