"""The bytes of a manifest.json: the fields before the blocks, the digest over all of it, and which versions are known here.

Knows no meaning of a field but format, version and features.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from reader.format.errors import StoreError

FORMAT_NAME = "pixpack"
FORMAT_VERSION = (1, 1)

# What a reader must know of a store whose rows have sizes of their own.
OWN_SIZES = "own-sizes"
# and of masks behind the pixels of each such row
OWN_MASKS = "own-masks"
READER_FEATURES = (OWN_SIZES, OWN_MASKS)
# What `pack pull` must know of a manifest.json at a URL that names a store in a folder of its own; no folder on a disk has it.
GENERATIONS = "generations"

_BLOCKS_OPEN = b',\n  "blocks": ['
_DIGEST_LINE = re.compile(rb',\n  "digest": "sha256:([0-9a-f]{64})"\n}\n')
_DIGEST_LINE_BYTES = len(b',\n  "digest": "sha256:"\n}\n') + 64
_READ_BYTES = 1 << 20


def read_head(file: IO[bytes], path: Path | str) -> tuple[dict[str, Any], str]:
    """Parse what stands before the blocks and check the digest over all of it, holding 1 MiB at a time.

    Returns the fields and the digest, "sha256:...".

    Raises:
        StoreError: it was changed or cut short.
    """
    digest, head, tail, found = hashlib.sha256(), b"", b"", -1
    while chunk := file.read(_READ_BYTES):
        if found < 0:
            head += chunk
            found = head.find(_BLOCKS_OPEN)
        # the last line is held back: it is the digest of everything before it
        data = tail + chunk
        digest.update(data[:-_DIGEST_LINE_BYTES])
        tail = data[-_DIGEST_LINE_BYTES:]
    match = _DIGEST_LINE.fullmatch(tail)
    if not match or found < 0 or match[1].decode() != digest.hexdigest():
        raise StoreError(
            f"{path} was changed after it was written or is cut short. Copy the store again, or pack again."
        )
    try:
        fields = json.loads(head[:found] + b"\n}")
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path} holds no JSON ({e}). Pack again.") from None
    if not isinstance(fields, dict):
        raise StoreError(f"{path} holds no JSON object. Pack again.")
    return fields, f"sha256:{digest.hexdigest()}"


def with_digest(fields: Mapping[str, Any], block_lines: str) -> bytes:
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
        raise StoreError(f"the format is {head.get('format')!r}, expected {FORMAT_NAME!r}.")
    version, features = head.get("version"), head.get("reader_features") or []
    if not isinstance(version, list) or len(version) != 2 or version[0] != FORMAT_VERSION[0]:
        raise StoreError(f"the format version is {version}, this reader knows {FORMAT_VERSION[0]}.x. Update pixpack.")
    if GENERATIONS in features:
        raise StoreError(
            f"it is that of a URL, whose store is in {head.get('generation')}, as pack push --overwrite leaves it."
            " Open that folder, or copy the store by: pack pull URL OUT"
        )
    unknown = [name for name in features if name not in READER_FEATURES]
    if unknown:
        raise StoreError(f"reading this store needs {', '.join(map(str, unknown))}, unknown here. Update pixpack.")
