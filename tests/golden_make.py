"""Make tests/golden/v1.0 anew. Only for a new format version, into a new folder: an old golden store never changes."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path

from packer.worker import encode_line
from reader.manifest import Block, FileEntry, Manifest, TensorSpec, encode_manifest, metadata_files, sha256_file


def main(out: Path) -> None:
    """Write 5 rows of 4 x 6 x 3 with content, one extra and two blocks."""
    (out / "_tensordict/extras").mkdir(parents=True)
    pixels = bytes(
        (97 * r + 13 * y + 7 * x + 31 * c) % 256 for r in range(5) for y in range(4) for x in range(6) for c in range(3)
    )
    targets = [0, 0, 1, 2, 2]
    lines = [
        encode_line({"path": f"{r}.jpg", "target": t, "width": 6, "height": 4}).encode() for r, t in enumerate(targets)
    ]
    contents = {
        "_tensordict/pixels.memmap": pixels,
        "_tensordict/targets.memmap": struct.pack("<5q", *targets),
        "_tensordict/content.memmap": struct.pack("<20i", *[0, 0, 4, 6] * 5),
        "_tensordict/extras/weight.memmap": struct.pack("<5f", *[r / 2 for r in range(5)]),
        "samples.jsonl": b"".join(lines),
        "rejected.jsonl": encode_line({"path": "broken.jpg", "reason": "the file is empty"}).encode(),
    }
    blank = dict.fromkeys(
        [*contents, "meta.json", "_tensordict/meta.json", "_tensordict/extras/meta.json"], FileEntry(0, "")
    )
    fields = {
        "rows": 5,
        "height": 4,
        "width": 6,
        "channels": 3,
        "target_kind": "class",
        "target_count": None,
        "has_content": True,
        "extras": {"weight": TensorSpec("float32", ())},
        "classes": ("bird", "cat", "näïve"),
        "mean": (0.5, 0.25, 0.125),
        "std": (0.1, 0.2, 0.3),
        "inputs": 6,
        "rejected": 1,
        "options": {"fit": "pad", "size": [4, 6]},
        "decoders": {"pillow": {"version": "0"}},
    }
    contents |= metadata_files(Manifest(**fields, files=blank))
    for name, content in contents.items():
        (out / name).write_bytes(content)
    files = {name: FileEntry(len(content), sha256_file(out / name)) for name, content in contents.items()}
    files["_tensordict/pixels.memmap"] = FileEntry(len(pixels), f"crc32:{zlib.crc32(pixels):08x}")
    blocks = [Block(0, 3, zlib.crc32(pixels[:216]), 0), Block(3, 5, zlib.crc32(pixels[216:]), sum(map(len, lines[:3])))]
    (out / "manifest.json").write_bytes(encode_manifest(Manifest(**fields, files=files), blocks))
    print(json.dumps({"golden": str(out)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
