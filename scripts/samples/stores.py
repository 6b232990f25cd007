"""Stores for measurements of reading, without packing: of holes, or of random pixels.

Their checksums are blank: they open, but would fail `pack verify`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from packer.store.manifest_file import encode_manifest
from packer.store.tasks import block_inputs
from reader.format.blocks import Block
from reader.format.check import metadata_files
from reader.format.manifest import PIXELS, FileEntry, Manifest

SIDE = 224
CLASSES = 100


def sparse_store(out: Path, rows: int, side: int = SIDE) -> Path:
    """Make a structurally valid store of rows of side x side x 3 whose large files are holes: any size, no disk."""
    row_bytes = side * side * 3
    sizes = {"samples.jsonl": rows * 200, "rejected.jsonl": 0}
    sizes |= {"_tensordict/pixels.memmap": rows * row_bytes, "_tensordict/targets.memmap": rows * 8}
    fields: dict[str, Any] = {
        "rows": rows,
        "height": side,
        "width": side,
        "channels": 3,
        "target_kind": "class",
        "target_count": None,
        "has_content": False,
        "extras": {},
        "classes": tuple(f"class {n}" for n in range(1000)),
        "mean": (0.5, 0.5, 0.5),
        "std": (0.25, 0.25, 0.25),
        "inputs": rows,
        "rejected": 0,
        "options": {},
        "decoders": {},
    }
    digests = dict.fromkeys([*sizes, "meta.json", "_tensordict/meta.json"], f"sha256:{0:064x}")
    digests[PIXELS] = f"crc32:{0:08x}"
    blank = {name: FileEntry(0, digest) for name, digest in digests.items()}
    metadata = metadata_files(Manifest(**fields, files=blank))
    entries = {name: FileEntry(size, digests[name]) for name, size in sizes.items()}
    entries |= {name: FileEntry(len(content), digests[name]) for name, content in metadata.items()}
    (out / "_tensordict").mkdir(parents=True)
    for name, size in sizes.items():
        with open(out / name, "wb") as file:
            file.truncate(size)
    for name, content in metadata.items():
        (out / name).write_bytes(content)
    step = block_inputs(rows, row_bytes)
    # checksums as long as real ones
    blocks = [
        Block(n, min(n + step, rows), 0xFFFFFFFF - n, n * 200, (min(n + step, rows) - n) * row_bytes)
        for n in range(0, rows, step)
    ]
    (out / "manifest.json").write_bytes(encode_manifest(Manifest(**fields, files=entries), blocks))
    return out


def random_store(out: Path, rows: int, side: int) -> None:
    """Make a store of random pixels, sorted by class."""
    sparse_store(out, rows, side)
    fill(out / PIXELS, rows * side * side * 3)
    (np.arange(rows) * CLASSES // rows).astype(np.int64).tofile(out / "_tensordict" / "targets.memmap")


def fill(path: Path, size_bytes: int) -> None:
    """Write random bytes: the same 64 MiB, repeated."""
    noise = np.random.default_rng(0).integers(0, 256, min(size_bytes, 64 << 20), np.uint8)
    with open(path, "r+b") as file:
        for start in range(0, size_bytes, len(noise)):
            file.write(noise[: size_bytes - start])
