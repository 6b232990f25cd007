"""What a store, or the journal of one, records of how it was packed, which the packer reads again: of a stranger's, checked."""

from __future__ import annotations

from packer.errors import OptionsError
from packer.options import RowOptions
from packer.store.journal import Header
from reader.format.errors import StoreError
from reader.format.manifest import Manifest
from reader.format.values import Json, value_in

# In the labels: the digest of the sources, by path, size, mtime and ctime.
SOURCES = "sources"
# And of a part: how many parts there are and of how many inputs; and what sealing adds up.
DIVISION, TOTALS = "parts", "totals"
_ADDED = {"pixel_count", "sums", "square_sums", "max_rejects"}


def check_recorded(manifest: Manifest | Header) -> None:
    """Check the options of rows, and the labels by which parts are joined; others are any plain values.

    Raises:
        StoreError: one is none that `pack` has.
    """
    try:
        RowOptions.among(manifest.options)
    except OptionsError as e:
        raise StoreError(f"options of the manifest: {e}") from None
    for name, (holds, expected) in _LABELS.items():
        if name in manifest.labels:
            value_in("labels of the manifest", manifest.labels, name, holds, expected)


def _is_division(value: Json) -> bool:
    return type(value) is list and len(value) == 2 and all(type(each) is int and each > 0 for each in value)


_LABELS = {
    SOURCES: (lambda value: type(value) is str, "text"),
    DIVISION: (_is_division, "two integers of 1 or more"),
    TOTALS: (lambda value: type(value) is dict and value.keys() == _ADDED, f"an object of {', '.join(sorted(_ADDED))}"),
}
