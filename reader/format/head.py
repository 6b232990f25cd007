"""The bytes of a manifest.json: the fields before the blocks, the digest over all of it, and which versions are known here.

Knows no meaning of a field but format, version and features.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from reader.format.errors import StoreError
from reader.format.fields import TEXTS, check_fields
from reader.format.shown import brief, shown

FORMAT_NAME = "pixpack"
FORMAT_VERSION = (1, 1)

# The feature that a reader must know to read a store whose rows have sizes of their own.
OWN_SIZES = "own-sizes"
# and of masks behind the pixels of each such row
OWN_MASKS = "own-masks"
# and of rows that are frames of zstd
COMPRESSED_ROWS = "compressed-rows"
# and of such frames that are JPEGs
JPEG_ROWS = "jpeg-rows"
# and of texts of rows, in a file of their own
TEXT_COLUMNS = "text-columns"
READER_FEATURES = (OWN_SIZES, OWN_MASKS, COMPRESSED_ROWS, JPEG_ROWS, TEXT_COLUMNS)

_MOST_VERSION = 1 << 31
_FEATURES_NAMED = 3

_BLOCKS_OPEN = b',\n  "blocks": ['
_DIGEST_LINE = re.compile(rb',\n  "digest": "sha256:([0-9a-f]{64})"\n}\n')
_DIGEST_LINE_BYTES = len(b',\n  "digest": "sha256:"\n}\n') + 64
_READ_BYTES = 1 << 20
# A million classes have 30 MB. A block has 8 MB of rows and 30 bytes here, so 1 GiB is that of 280 TB.
_MOST_HEAD_BYTES = 128 << 20
MOST_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True)
class Head:
    """The part of a manifest.json before its blocks; digest is "sha256:...", blocks_begin the byte behind their "["."""

    fields: dict[str, Any]
    digest: str
    blocks_begin: int


def read_head(file: IO[bytes], path: Path | str) -> Head:
    """Parse the part before the blocks and check the digest over all of the file, with the head and 1 MiB in memory at a time.

    Raises:
        StoreError: it was changed or cut short, is not JSON, or larger than any of ours.
    """
    digest, head, tail, begin, size_bytes = hashlib.sha256(), bytearray(), b"", -1, 0
    while chunk := file.read(_READ_BYTES):
        size_bytes += len(chunk)
        if begin < 0:
            searched = max(0, len(head) - len(_BLOCKS_OPEN))
            head += chunk
            begin = head.find(_BLOCKS_OPEN, searched)
        if size_bytes > MOST_MANIFEST_BYTES or (begin < 0 and len(head) > _MOST_HEAD_BYTES):
            raise StoreError(f"{path} is larger than a manifest can be. Pack again.")
        # the last line is kept apart: it is the digest of everything before it
        data = tail + chunk
        digest.update(data[:-_DIGEST_LINE_BYTES])
        tail = data[-_DIGEST_LINE_BYTES:]
    match = _DIGEST_LINE.fullmatch(tail)
    if not match or begin < 0 or match[1].decode() != digest.hexdigest():
        raise StoreError(
            f"{path} was changed after it was written or is cut short. Copy the store again, or pack again."
        )
    try:
        fields = json.loads(head[:begin] + b"\n}", object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path} holds no JSON ({shown(str(e), most=200)}). Pack again.") from None
    if not isinstance(fields, dict):
        raise StoreError(f"{path} holds no JSON object. Pack again.")
    return Head(fields, f"sha256:{digest.hexdigest()}", begin + len(_BLOCKS_OPEN))


def with_digest(fields: Mapping[str, object], block_lines: str) -> bytes:
    """Return the bytes of a manifest.json: its fields, a line for each block, and last the sha256 of all before it."""
    head = json.dumps(fields, indent=2, ensure_ascii=True, allow_nan=False)
    body = head.removesuffix("\n}").encode("ascii") + _BLOCKS_OPEN + block_lines.encode("ascii") + b"\n  ]"
    return body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode("ascii")


def check_version(head: Mapping[str, Any]) -> None:
    """Check that this reader knows the format, its version and all features that reading needs.

    Raises:
        StoreError: it does not.
    """
    if head.get("format") != FORMAT_NAME:
        raise StoreError(f"the format is {brief(head.get('format'))}, expected {FORMAT_NAME!r}.")
    version = head.get("version")
    if (
        type(version) is not list
        or len(version) != 2
        or not all(type(number) is int and 0 <= number < _MOST_VERSION for number in version)
        or version[0] != FORMAT_VERSION[0]
    ):
        raise StoreError(
            f"the format version is {brief(version)}, this reader knows {FORMAT_VERSION[0]}.x. Update pixpack."
        )
    check_fields("the manifest", head, {"reader_features": TEXTS})
    features = head["reader_features"]
    unknown = [name for name in features if name not in READER_FEATURES]
    if unknown:
        named = ", ".join(shown(name, most=60) for name in unknown[:_FEATURES_NAMED])
        raise StoreError(f"reading this store needs {named}, unknown here. Update pixpack.")


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a key that comes twice: of two readers one would take the first, the other the second."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice in one object")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
