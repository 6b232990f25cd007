"""The manifest.json at a URL that names a store in a folder of its own: how it is written and read.

No folder on a disk has one.
"""

from __future__ import annotations

import io

from reader.format.fields import TEXTS, check_fields, matching
from reader.format.head import FORMAT_NAME, FORMAT_VERSION, GENERATIONS, check_version, read_head, with_digest

_POINTER = {
    "generation": matching(rf"{GENERATIONS}/[0-9a-f]{{16}}", f"{GENERATIONS}/ and 16 hex digits"),
    "store": matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hex digits"),
}


def generation_of(digest: str) -> str:
    """Name the folder of a URL that a store with this digest has where another one lies there.

    Example:
        >>> generation_of("sha256:00112233445566778899")
        'generations/0011223344556677'
    """
    return f"{GENERATIONS}/{digest.removeprefix('sha256:')[:16]}"


def encode_pointer(digest: str, generation: str) -> bytes:
    """Return the bytes of the manifest.json at a URL that names a store in a folder of its own, by that store's digest.

    It has the form of every manifest, so that a reader that does not know the feature says so.
    """
    head = {"format": FORMAT_NAME, "version": list(FORMAT_VERSION), "reader_features": [GENERATIONS]}
    return with_digest(head | {"writer_features": [], "generation": generation, "store": digest}, "")


def read_pointer(content: bytes, name: str) -> tuple[str, str]:
    """Return (digest, folder) of the store that a manifest.json stands for: its own and "", or what it names.

    Raises:
        StoreError: it was changed or cut short, or is of a version or has a feature that is unknown here.
    """
    found = read_head(io.BytesIO(content), name)
    head = found.fields
    check_fields(name, head, {"reader_features": TEXTS})
    features = head["reader_features"]
    if GENERATIONS not in features:
        return found.digest, ""
    check_version(head | {"reader_features": [feature for feature in features if feature != GENERATIONS]})
    check_fields(name, head, _POINTER)
    return head["store"], head["generation"]
