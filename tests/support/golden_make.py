"""Make the stores of tests/golden again: `golden_make.py OUT`, or with own-sizes, own-masks, labels, compressed, compressed-gray,
compressed-rgba, compressed-own-masks, jpeg, jpeg-gray, jpeg-own-sizes, or texts behind it.

Only for a new format version or feature, into a new folder: an old golden store never changes.
"""

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

from packer.checksums import sha256_file
from packer.pixels.jpeg_rows import SQUARED_ERROR
from reader import frames
from reader.format.blocks import Block, encode_manifest
from reader.format.check import metadata_files
from reader.format.head import OWN_MASKS, OWN_SIZES, TEXT_COLUMNS
from reader.format.manifest import FileEntry, Manifest
from reader.format.row_kinds import PAGE_BYTES
from reader.format.samples import Sample, encode_line
from reader.format.tensors import (
    TEXT_SPEC,
    TEXTS_FILE,
    ZSTD,
    Compression,
    TensorSpec,
    codec_of,
    jpeg_quality,
    reader_features_of,
)


def value(r: int, y: int, x: int, c: int, form: str = "") -> int:
    """Return the value of a pixel; of JPEGs, smooth ones."""
    return 40 + 50 * r + 5 * y + 4 * x + 9 * c if jpeg_quality(form) else (97 * r + 13 * y + 7 * x + 31 * c) % 256


def own_sizes(out: Path, *, has_masks: bool = False, form: str = "") -> None:
    """Write 3 rows of 2 x 3, 4 x 1 and 1 x 5 pixels in two blocks; value of a pixel as above, of a mask 10 r + 3 y + x."""
    (out / "_tensordict").mkdir(parents=True)
    shapes = [(2, 3, 3), (4, 1, 3), (1, 5, 3)]
    rows = [
        bytes(value(r, y, x, c, form) for y in range(h) for x in range(w) for c in range(3))
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
        "reader_features": (OWN_SIZES, OWN_MASKS) if has_masks else (OWN_SIZES,),
    }
    if has_masks:
        contents["_tensordict/mask_offsets.memmap"] = struct.pack("<3q", *mask_offsets)
    first = b"".join(rows[:2])
    blocks = [
        Block(0, 2, zlib.crc32(first), 0, len(first)),
        Block(2, 3, zlib.crc32(rows[2]), sum(map(len, lines[:2])), len(rows[2])),
    ]
    if form:
        fields["reader_features"] += reader_features_of(form)
        contents, fields, blocks = packed(form, contents, fields, blocks, rows, [shape[:2] for shape in shapes])
    write(out, contents, fields, blocks)


def compressed(out: Path, channels: int, form: str = ZSTD) -> None:
    """Write 3 rows of 4 x 6 x channels in two blocks; value of a pixel as above."""
    (out / "_tensordict").mkdir(parents=True)
    each = range(3), range(4), range(6), range(channels)
    pixels = bytes(value(*indices, form) for indices in itertools.product(*each))
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
        "options": {"fit": "squash", "size": [4, 6], "compress": form},
        "decoders": {codec_of(form): frames.versions(codec_of(form))},
        "reader_features": reader_features_of(form),
    }
    blocks = [
        Block(0, 2, zlib.crc32(pixels[: 2 * row_bytes]), 0, 2 * row_bytes),
        Block(2, 3, zlib.crc32(pixels[2 * row_bytes :]), sum(map(len, lines[:2])), row_bytes),
    ]
    rows = [pixels[start : start + row_bytes] for start in range(0, 3 * row_bytes, row_bytes)]
    write(out, *packed(form, contents, fields, blocks, rows, [(4, 6)] * 3))


def texts(out: Path) -> None:
    """Write 3 rows of 2 x 2 x 1 in one block, with two columns of texts: value of a pixel is 10 r + 2 y + x."""
    (out / "_tensordict/extras").mkdir(parents=True)
    columns = {"caption": ["a cat", "", "zwei Vögel"], "alt": ["猫", "dog", "a, b\n"]}
    pixels = bytes(10 * r + 2 * y + x for r, y, x in itertools.product(range(3), range(2), range(2)))
    lines = [encode_line({"path": f"{r}.png", "target": -1, "width": 2, "height": 2}).encode() for r in range(3)]
    pieces = [columns[name][r].encode() for r in range(3) for name in columns]
    spans = list(itertools.pairwise(itertools.accumulate(map(len, pieces), initial=0)))
    contents = {
        "_tensordict/pixels.memmap": pixels,
        "_tensordict/targets.memmap": struct.pack("<3q", -1, -1, -1),
        "samples.jsonl": b"".join(lines),
        "rejected.jsonl": b"",
        TEXTS_FILE: b"".join(pieces),
    }
    for number, name in enumerate(columns):
        own = itertools.chain.from_iterable(spans[number :: len(columns)])
        contents[f"_tensordict/extras/{name}.memmap"] = struct.pack("<6q", *own)
    fields = {
        "rows": 3,
        "height": 2,
        "width": 2,
        "channels": 1,
        "target_kind": "class",
        "target_count": None,
        "has_content": False,
        "extras": dict.fromkeys(columns, TEXT_SPEC),
        "classes": (),
        "mean": (0.5,),
        "std": (0.25,),
        "inputs": 3,
        "rejected": 0,
        "options": {"fit": "squash", "size": [2, 2]},
        "decoders": {"pillow": {"version": "0"}},
        "labels": {"text_column": "caption,alt"},
        "reader_features": (TEXT_COLUMNS,),
        "texts": tuple(columns),
    }
    write(out, contents, fields, [Block(0, 3, zlib.crc32(pixels), 0)])


def packed(
    form: str,
    contents: dict[str, bytes],
    fields: dict[str, Any],
    blocks: list[Block],
    rows: list[bytes],
    sides: list[tuple[int, int]],
) -> tuple[dict[str, bytes], dict[str, Any], list[Block]]:
    """Return what a store says of raw rows as it says it of them compressed."""
    sizes, joined = [*map(len, rows)], np.frombuffer(b"".join(rows), np.uint8)
    begins = [0, *itertools.accumulate(sizes)]
    raw = [(joined[start:stop], *own) for (start, stop), own in zip(itertools.pairwise(begins), sides, strict=True)]
    lines, errors = contents["samples.jsonl"], list[int]()
    if jpeg_quality(form):
        lossy = frames.LossyPacker(form, fields["channels"])
        kept = [lossy.pack(*row) for row in raw]
        made, pixels = [row.frame for row in kept], np.concatenate([row.pixels for row in kept])
        errors = [row.squared_error for row in kept]
        samples = zip(map(Sample.decode, lines.splitlines()), errors, strict=True)
        lines = "".join(
            replace(sample, decoding={**sample.decoding, SQUARED_ERROR: error}).encode() for sample, error in samples
        ).encode()
    else:
        packer = frames.packer(form, fields["channels"])
        made, pixels = [packer.pack(*row) for row in raw], joined
    ends = [0, *itertools.accumulate(map(len, made))]
    blocks = [
        replace(
            block,
            crc32=zlib.crc32(b"".join(made[block.start : block.stop])),
            size_bytes=ends[block.stop] - ends[block.start],
            pixels_crc32=zlib.crc32(pixels[begins[block.start] : begins[block.stop]]),
        )
        for block in blocks
    ]
    contents = contents | {
        "_tensordict/pixels.memmap": b"".join(made).ljust(PAGE_BYTES, b"\0"),
        "_tensordict/frames.memmap": b"".join(struct.pack("<2q", *pair) for pair in itertools.pairwise(ends)),
    }
    contents["samples.jsonl"] = lines
    ends = [0, *itertools.accumulate(map(len, contents["samples.jsonl"].splitlines(keepends=True)))]
    blocks = [replace(block, samples_offset=ends[block.start]) for block in blocks]
    return contents, fields | {"compression": Compression.of(form, sum(map(len, rows)), sum(errors))}, blocks


# Of v1.1: what it records of how labels were read, with a key that no reader of today knows.
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


def main(out: Path, labels: dict[str, Any] | None = None) -> None:
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
        "labels": labels or {},
    }
    blocks = [Block(0, 3, zlib.crc32(pixels[:216]), 0), Block(3, 5, zlib.crc32(pixels[216:]), sum(map(len, lines[:3])))]
    write(out, contents, fields, blocks)


def write(
    out: Path,
    contents: dict[str, bytes],
    fields: dict[str, Any],
    blocks: list[Block],
    others: dict[str, FileEntry] | None = None,
) -> None:
    """Write the files, the meta.json that follow from them, and the manifest; others are files that are there."""
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
    if sys.argv[2:] == ["texts"]:
        texts(Path(sys.argv[1]))
    elif sys.argv[2:] == ["compressed-own-masks"]:
        own_sizes(Path(sys.argv[1]), has_masks=True, form=ZSTD)
    elif sys.argv[2:] == ["jpeg-own-sizes"]:
        own_sizes(Path(sys.argv[1]), form="jpeg:95")
    elif sys.argv[2:] in (["jpeg"], ["jpeg-gray"]):
        compressed(Path(sys.argv[1]), {"jpeg": 3, "jpeg-gray": 1}[sys.argv[2]], "jpeg:95")
    elif sys.argv[2:] and sys.argv[2].startswith("compressed"):
        compressed(Path(sys.argv[1]), {"compressed": 3, "compressed-gray": 1, "compressed-rgba": 4}[sys.argv[2]])
    elif sys.argv[2:] in (["own-sizes"], ["own-masks"]):
        own_sizes(Path(sys.argv[1]), has_masks=sys.argv[2] == "own-masks")
    else:
        main(Path(sys.argv[1]), LABELS if sys.argv[2:] == ["labels"] else None)
