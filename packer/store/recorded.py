"""What a finished store records of how it was packed, which the packer reads again: of a stranger's store, checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from packer.store.journal import Header
from reader.format.manifest import Manifest
from reader.format.values import INT32_MOST, INT64_MOST, is_number, value_in

# In the labels: the digest of the sources, by path, size, mtime and ctime.
SOURCES = "sources"
# And of a part: how many parts there are and of how many inputs; and what sealing adds up.
DIVISION, TOTALS = "parts", "totals"


def check_recorded(manifest: Manifest | Header) -> None:
    """Check the options and labels that `pack` has; others are of other programs.

    Raises:
        StoreError: one is of another kind.
    """
    for what, entries, known in (("options", manifest.options, _OPTIONS), ("labels", manifest.labels, _LABELS)):
        for name in known.keys() & entries.keys():
            value_in(f"{what} of the manifest", entries, name, *known[name])


def _are_integers(value: Any, least: int, most: int) -> bool:
    return type(value) is list and all(type(each) is int and least <= each <= most for each in value)


# What an option that `pack` has is recorded as; those of other programs are any plain values.
_OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("fit", "resample", "channels"), (lambda value: type(value) is str, "text")),
    "size": (lambda value: value is None or (_are_integers(value, 1, INT32_MOST) and len(value) == 2), "two integers"),
    "crop_fraction": (lambda value: is_number(value) and 0 < value <= 1, "a number above 0, up to 1"),
    "exact": (lambda value: type(value) is bool, "true or false"),
    "shuffle": (lambda value: value is None or (type(value) is int and 0 <= value <= 1 << 256), "an integer, or null"),
    "requantize": (lambda value: type(value) is int and 1 <= value <= 31, "an integer of 1 to 31"),
    "bit_depth": (lambda value: type(value) is int and 1 <= value <= 64, "an integer of 1 to 64"),
    "mask_values": (lambda value: _are_integers(value, 0, 255), "integers from 0 to 255"),
    **dict.fromkeys(
        ("compress", "lossy"), (lambda value: type(value) is int and 1 <= value <= 100, "an integer of 1 to 100")
    ),
    "max_size": (
        lambda value: (
            value is None
            or (type(value) is int and 1 <= value <= INT32_MOST)
            or (type(value) is str and re.fullmatch(r"short:[1-9]\d{0,8}", value) is not None)
        ),
        'an integer, "short:" and one, or null',
    ),
}
_ADDED = {"pixel_count", "sums", "square_sums", "max_rejects"}
_LABELS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("boxes", "extension", "inputs", "label_separator", "path_column", "sources", "target_column"),
        (lambda value: type(value) is str, "text"),
    ),
    DIVISION: (lambda value: _are_integers(value, 1, INT64_MOST) and len(value) == 2, "two integers"),
    TOTALS: (lambda value: type(value) is dict and value.keys() == _ADDED, f"an object of {', '.join(sorted(_ADDED))}"),
    **dict.fromkeys(("classes", "masks", "root"), (lambda value: type(value) is bool, "true or false")),
}
