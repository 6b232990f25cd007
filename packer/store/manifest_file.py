"""The bytes of a manifest.json, as docs/FORMAT.md says; `reader.format.manifest` reads them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict

from reader.format.blocks import Block
from reader.format.manifest import FORMAT_NAME, FORMAT_VERSION, Manifest


def encode_manifest(manifest: Manifest, blocks: Iterable[Block]) -> bytes:
    """Return the bytes of manifest.json: the head, one line a block, and last the sha256 of all bytes before it."""
    lines = ",".join(
        f"\n    [{block.stop - block.start}, {block.crc32}, {block.samples_offset}, {block.size_bytes}]"
        for block in blocks
    )
    text = json.dumps(manifest_head(manifest), indent=2, ensure_ascii=True, allow_nan=False)
    body = (text.removesuffix("\n}") + f',\n  "blocks": [{lines}\n  ]').encode("ascii")
    return body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode("ascii")


def manifest_head(m: Manifest) -> dict[str, object]:
    """Return the head of manifest.json, in its order."""
    return {
        "format": FORMAT_NAME,
        "version": [*FORMAT_VERSION],
        "rows": m.rows,
        "height": m.height,
        "width": m.width,
        "channels": m.channels,
        "own_sizes": m.has_own_sizes,
        "own_masks": m.has_own_masks,
        "jpeg": m.jpeg and asdict(m.jpeg),
        "targets": {"kind": m.target_kind, "count": m.target_count},
        "content": m.has_content,
        "extras": {name: {"dtype": spec.dtype, "shape": [*spec.row_shape]} for name, spec in sorted(m.extras.items())},
        "classes": [*m.classes],
        "labels": dict(sorted(m.labels.items())),
        "mask_values": [*m.mask_values],
        "mean": [*m.mean],
        "std": [*m.std],
        "inputs": m.inputs,
        "rejected": m.rejected,
        "options": dict(m.options),
        "decoders": dict(m.decoders),
        "files": {name: asdict(entry) for name, entry in sorted(m.files.items())},
    }
