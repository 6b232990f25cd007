"""What a store at a URL has and none on a disk: a manifest.json that names its folder, and pixels as objects of their own."""

from __future__ import annotations

import bisect
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
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
from reader.format.manifest import PIXELS
from reader.tuning import tuning

_POINTER = {
    "generation": matching(rf"{GENERATIONS}/[0-9a-f]{{16}}", f"{GENERATIONS}/ and 16 hex digits"),
    "store": matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hex digits"),
}


class Pointer(NamedTuple):
    """The store that a manifest.json at a URL names.

    folder: where below the URL it is, "" for the URL itself; has_block_objects: its pixels are objects of their own, the
    feature `block-objects`.
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
    """Return the store of a manifest.json: its own folder, or the one that it names.

    Raises:
        StoreError: it was changed or cut short, or is of a version or has a feature that is unknown here.
    """
    read = read_head(io.BytesIO(content), name)
    head = read.fields
    check_fields(name, head, {"reader_features": TEXTS})
    features = head["reader_features"]
    if GENERATIONS not in features:
        return Pointer(read.digest, "", has_block_objects=False)
    known = (GENERATIONS, BLOCK_OBJECTS)
    try:
        check_version(head | {"reader_features": [feature for feature in features if feature not in known]})
    except StoreError as e:
        raise StoreError(f"{name}: {e}") from None
    check_fields(name, head, _POINTER)
    return Pointer(head["store"], head["generation"], BLOCK_OBJECTS in features)


class BlockObjects:
    """Where the objects of a store begin: one a block, several where a block has more than 64 MiB, one for the filling.

    Args:
        blocks: the bytes of each block. total: those of all pixels, with the filling behind the last block.
    """

    def __init__(self, blocks: Iterable[int], total: int) -> None:
        ends = [*itertools.accumulate(blocks, initial=0)]
        spans = [*itertools.pairwise(ends), (ends[-1], total)]
        # [0, total] of one small block without a filling
        self.bounds = [at for begin, end in spans for at in range(begin, end, tuning().object_bytes)] + [total]

    def names(self) -> list[str]:
        """Return the names of all objects, below the folder of the store."""
        return [object_name(begin) for begin in self.bounds[:-1]]

    def lacking(self, found: Mapping[str, int], folder: str) -> list[tuple[int, int]]:
        """Return the bytes [begin, end) of the objects that are not found in the folder of the store, or have another size.

        found: the size of each by its name.
        """
        spans = itertools.pairwise(self.bounds)
        return [(begin, end) for begin, end in spans if found.get(f"{folder}/{object_name(begin)}") != end - begin]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[str, int, int]]:
        """Yield which bytes of which objects are bytes [start, stop) of the pixels, in order: name, first, behind the last."""
        number = bisect.bisect_right(self.bounds, start) - 1
        while start < stop:
            begin, end = self.bounds[number], min(stop, self.bounds[number + 1])
            yield object_name(begin), start - begin, end - begin
            start, number = end, number + 1


def object_name(begin: int) -> str:
    """Name the object whose first byte is this one of the pixels.

    Example:
        >>> object_name(8388608)
        '_tensordict/pixels.memmap/0000000008388608'
    """
    return f"{PIXELS}/{begin:016d}"
