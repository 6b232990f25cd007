"""The manifest.json at a URL that names a store in a folder of its own: how it is written and read.

No folder on a disk has one.
"""

from __future__ import annotations

import io
from typing import NamedTuple

from reader.format.errors import StoreError
from reader.format.fields import TEXTS, check_fields, matching
from reader.format.head import (
    BLOCK_OBJECTS,
    FORMAT_NAME,
    FORMAT_VERSION,
    GENERATIONS,
    check_version,
    read_head,
    with_digest,
)

_POINTER = {
    "generation": matching(rf"{GENERATIONS}/[0-9a-f]{{16}}", f"{GENERATIONS}/ and 16 hex digits"),
    "store": matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hex digits"),
}


class Pointer(NamedTuple):
    """The store that a manifest.json at a URL stands for.

    folder: where below the URL it is, "" for the URL itself; has_block_objects: its pixels are objects of their own, see
    `block_objects.py`.
    """

    digest: str
    folder: str
    has_block_objects: bool


def generation_of(digest: str) -> str:
    """Name the folder of a URL that a store with this digest has where another one is there.

    Example:
        >>> generation_of("sha256:00112233445566778899")
        'generations/0011223344556677'
    """
    return f"{GENERATIONS}/{digest.removeprefix('sha256:')[:16]}"


def encode_pointer(digest: str, generation: str, *, has_block_objects: bool = False) -> bytes:
    """Return the bytes of the manifest.json at a URL that names a store in a folder of its own, by that store's digest.

    It has the form of every manifest, so that a reader that does not know the feature says so.
    """
    features = [GENERATIONS, BLOCK_OBJECTS] if has_block_objects else [GENERATIONS]
    head = {"format": FORMAT_NAME, "version": list(FORMAT_VERSION), "reader_features": features}
    return with_digest(head | {"writer_features": [], "generation": generation, "store": digest}, "")


def read_pointer(content: bytes, name: str) -> Pointer:
    """Return the store that a manifest.json stands for: its own, or what it names.

    Raises:
        StoreError: it was changed or cut short, or is of a version or has a feature that is unknown here.
    """
    found = read_head(io.BytesIO(content), name)
    head = found.fields
    check_fields(name, head, {"reader_features": TEXTS})
    features = head["reader_features"]
    if GENERATIONS not in features:
        return Pointer(found.digest, "", has_block_objects=False)
    known = (GENERATIONS, BLOCK_OBJECTS)
    try:
        check_version(head | {"reader_features": [feature for feature in features if feature not in known]})
    except StoreError as e:
        raise StoreError(f"{name}: {e}") from None
    check_fields(name, head, _POINTER)
    return Pointer(head["store"], head["generation"], BLOCK_OBJECTS in features)
