"""Make a store of tests/golden again: `golden_make.py OUT`, or with own-sizes, own-masks, jpeg, jpeg-gray, jpeg-own-sizes."""

from __future__ import annotations

import itertools
import json
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from PIL import features

from packer.checksums import sha256_file
from packer.pixels.jpeg_rows import SQUARED_ERROR, encode
from packer.sample_lines import Sample, encode_line
from packer.store.manifest_file import encode_manifest
from reader.format.blocks import Block
from reader.format.check import metadata_files
from reader.format.manifest import PAGE_BYTES, FileEntry, JpegRows, Manifest, TensorSpec

QUALITY = 95


def value(r: int, y: int, x: int, c: int, *, is_jpeg: bool = False) -> int:
    """Return the value of a pixel; of JPEGs, smooth ones."""
    return 40 + 50 * r + 5 * y + 4 * x + 9 * c if is_jpeg else (97 * r + 13 * y + 7 * x + 31 * c) % 256


def own_sizes(out: Path, *, has_masks: bool = False, is_jpeg: bool = False) -> None:
    """Write 3 rows of 2 x 3, 4 x 1 and 1 x 5 pixels in two blocks; pixels by `value`, masks by 10 r + 3 y + x."""
    (out / "_tensordict").mkdir(parents=True)
    shapes = [(2, 3, 3), (4, 1, 3), (1, 5, 3)]
    rows = [
        bytes(value(r, y, x, c, is_jpeg=is_jpeg) for y in range(h) for x in range(w) for c in range(3))
        for r, (h, w, _) in enumerate(shapes)
    ]
    masks = [bytes(10 * r + 3 * y + x for y in range(h) for x in range(w)) for r, (h, w, _) in enumerate(shapes)]
    mask_offsets, offsets = [18, 36, 55], [0, 18, 30]
    if has_masks:
        rows, offsets = [row + mask for row, mask in zip(rows, masks, strict=True)], [0, 24, 40]
    pixels = b"".join(rows).ljust(PAGE_BYTES, b"\0")
    lines = [
        encode_line({"path": f"{r}.jpg", "target": 1 - r % 2, "width": w, "height": h}).encode()
        for r, (h, w, _) in enumerate(shapes)
    ]
    contents = {
        "_tensordict/pixels.memmap": pixels,
        "_tensordict/targets.memmap": struct.pack("<3q", 1, 0, 1),
        "_tensordict/offsets.memmap": struct.pack("<3q", *offsets),
        "_tensordict/shapes.memmap": struct.pack("<9i", *[side for shape in shapes for side in shape]),
        "samples.jsonl": b"".join(lines),
        "rejected.jsonl": b"",
    }
    fields = {
        "rows": 3,
        "height": 4,
        "width": 5,
        "channels": 3,
        "target_kind": "class",
        "target_count": None,
        "has_content": False,
        "extras": {},
        "classes": ("bird", "cat"),
        "mean": (0.5, 0.25, 0.125),
        "std": (0.1, 0.2, 0.3),
        "inputs": 3,
        "rejected": 0,
        "options": {"fit": "none", "size": None, "max_size": None},
        "decoders": {"pillow": {"version": "0"}},
        "has_own_sizes": True,
        "has_own_masks": has_masks,
    }
    if has_masks:
        contents["_tensordict/mask_offsets.memmap"] = struct.pack("<3q", *mask_offsets)
    first = b"".join(rows[:2])
    blocks = [
        Block(0, 2, zlib.crc32(first), 0, len(first)),
        Block(2, 3, zlib.crc32(rows[2]), sum(map(len, lines[:2])), len(rows[2])),
    ]
    if is_jpeg:
        contents, fields, blocks = encoded(contents, fields, blocks, rows, [shape[:2] for shape in shapes])
    write(out, contents, fields, blocks)


def jpegs(out: Path, channels: int) -> None:
    """Write 3 rows of 4 x 6 x channels in two blocks; pixels by `value`."""
    (out / "_tensordict").mkdir(parents=True)
    each = range(3), range(4), range(6), range(channels)
    pixels = bytes(value(*indices, is_jpeg=True) for indices in itertools.product(*each))
    row_bytes = 24 * channels
    lines = [encode_line({"path": f"{r}.jpg", "target": -1, "width": 6, "height": 4}).encode() for r in range(3)]
    contents = {
        "_tensordict/targets.memmap": struct.pack("<3q", -1, -1, -1),
        "samples.jsonl": b"".join(lines),
        "rejected.jsonl": b"",
    }
    fields = {
        "rows": 3,
        "height": 4,
        "width": 6,
        "channels": channels,
        "target_kind": "class",
        "target_count": None,
        "has_content": False,
        "extras": {},
        "classes": (),
        "mean": (0.5,) * channels,
        "std": (0.25,) * channels,
        "inputs": 3,
        "rejected": 0,
        "options": {"fit": "squash", "size": [4, 6], "compress": QUALITY},
        "decoders": {"jpeg": {"pillow": PIL.__version__, "libjpeg_turbo": features.version("libjpeg_turbo")}},
    }
    blocks = [
        Block(0, 2, zlib.crc32(pixels[: 2 * row_bytes]), 0, 2 * row_bytes),
        Block(2, 3, zlib.crc32(pixels[2 * row_bytes :]), sum(map(len, lines[:2])), row_bytes),
    ]
    rows = [pixels[start : start + row_bytes] for start in range(0, 3 * row_bytes, row_bytes)]
    write(out, *encoded(contents, fields, blocks, rows, [(4, 6)] * 3))


def encoded(
    contents: dict[str, bytes],
    fields: dict[str, Any],
    blocks: list[Block],
    rows: list[bytes],
    sides: list[tuple[int, int]],
) -> tuple[dict[str, bytes], dict[str, Any], list[Block]]:
    """Convert the files and fields of a store of raw rows to those of JPEG rows."""
    found = [
        encode(np.frombuffer(row, np.uint8), *own, fields["channels"], QUALITY)
        for row, own in zip(rows, sides, strict=True)
    ]
    made, errors = [row.frame for row in found], [row.squared_error for row in found]
    ends = [0, *itertools.accumulate(map(len, made))]
    blocks = [
        replace(
            block,
            crc32=zlib.crc32(b"".join(made[block.start : block.stop])),
            size_bytes=ends[block.stop] - ends[block.start],
        )
        for block in blocks
    ]
    contents = contents | {
        "_tensordict/pixels.memmap": b"".join(made).ljust(PAGE_BYTES, b"\0"),
        "_tensordict/frames.memmap": b"".join(struct.pack("<2q", *pair) for pair in itertools.pairwise(ends)),
    }
    samples = map(Sample.decode, contents["samples.jsonl"].splitlines())
    contents["samples.jsonl"] = "".join(
        replace(sample, decoding={SQUARED_ERROR: error}).encode() for sample, error in zip(samples, errors, strict=True)
    ).encode()
    ends = [0, *itertools.accumulate(map(len, contents["samples.jsonl"].splitlines(keepends=True)))]
    blocks = [replace(block, samples_offset=ends[block.start]) for block in blocks]
    return contents, fields | {"jpeg": JpegRows(QUALITY, sum(map(len, rows)), sum(errors))}, blocks


# A store's record of how labels were read, with a key that no current program knows.
LABELS = {
    "boxes": "sha256:" + "0123456789abcdef" * 4,
    "classes": True,
    "extension": ".jpg",
    "later": {"any": ["thing", 1]},
    "missing": ["NA", "näh"],
    "path_column": "id",
    "root": True,
    "target_column": "breed,näme",
}


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
        "labels": LABELS,
    }
    blocks = [
        Block(0, 3, zlib.crc32(pixels[:216]), 0, 216),
        Block(3, 5, zlib.crc32(pixels[216:]), sum(map(len, lines[:3])), 144),
    ]
    write(out, contents, fields, blocks)


def write(
    out: Path,
    contents: dict[str, bytes],
    fields: dict[str, Any],
    blocks: list[Block],
    others: dict[str, FileEntry] | None = None,
) -> None:
    """Write the files, their meta.json, and the manifest; others: entries of existing files."""
    names = ["meta.json", "_tensordict/meta.json"] + (["_tensordict/extras/meta.json"] if fields["extras"] else [])
    sizes = {name: FileEntry(len(contents.get(name, b"")), "") for name in [*contents, *names]} | (others or {})
    contents = contents | metadata_files(Manifest(**fields, files=sizes))
    for name, content in contents.items():
        (out / name).write_bytes(content)
    files = {name: FileEntry(len(content), sha256_file(out / name)) for name, content in contents.items()}
    pixels = contents["_tensordict/pixels.memmap"]
    files["_tensordict/pixels.memmap"] = FileEntry(len(pixels), f"crc32:{zlib.crc32(pixels):08x}")
    files |= others or {}
    (out / "manifest.json").write_bytes(encode_manifest(Manifest(**fields, files=files), blocks))
    print(json.dumps({"golden": str(out)}))


if __name__ == "__main__":
    folder, name = Path(sys.argv[1]), sys.argv[2] if sys.argv[2:] else ""
    if name in ("own-sizes", "own-masks", "jpeg-own-sizes"):
        own_sizes(folder, has_masks=name == "own-masks", is_jpeg=name == "jpeg-own-sizes")
    elif name:
        jpegs(folder, {"jpeg": 3, "jpeg-gray": 1}[name])
    else:
        main(folder)
