"""Stores whose digests are right and whose meaning is wrong, as a stranger would make them.

Each begins as a small valid store; files or the head are changed, then sizes, checksums and digests are made right again.
"""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from reader.format.check import metadata_files
from reader.format.head import with_digest
from reader.format.manifest import PIXELS, REJECTED, SAMPLES, Manifest
from reader.format.row_kinds import PAGE_BYTES
from reader.format.samples import encode_line
from reader.format.tensors import TEXTS_FILE, metadata_names

TARGETS = "_tensordict/targets.memmap"
CONTENT = "_tensordict/content.memmap"
OFFSETS = "_tensordict/offsets.memmap"
SHAPES = "_tensordict/shapes.memmap"
MASK_OFFSETS = "_tensordict/mask_offsets.memmap"
# read into memory to be sealed; larger files are sparse, and keep the digest that the fault gives them
_MOST_SEALED_BYTES = 64 << 20


@dataclass
class Draft:
    """A store to be: the head and the blocks of its manifest as JSON, and its folder."""

    out: Path
    head: dict[str, Any]
    blocks: list[Any]
    # files whose size and digest stay as the fault wrote them
    kept: set[str] = field(default_factory=set)
    # bytes in place of the lines of blocks
    table: str | None = None

    @classmethod
    def copy(cls, base: Path, out: Path) -> Draft:
        """Begin with a copy of a valid store."""
        shutil.copytree(base, out)
        return cls.open(out)

    @classmethod
    def open(cls, out: Path) -> Draft:
        """Begin with a valid store, which is changed where it is."""
        raw = json.loads((out / "manifest.json").read_bytes())
        blocks = raw.pop("blocks")
        raw.pop("digest")
        return cls(out, raw, blocks)

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the store."""
        (self.out / name).parent.mkdir(parents=True, exist_ok=True)
        (self.out / name).write_bytes(content)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return (self.out / name).read_bytes()

    def patch(self, name: str, code: str, index: int, value: Any) -> None:
        """Change one number of a tensor's file; code is struct's."""
        data = bytearray((self.out / name).read_bytes())
        struct.pack_into(f"<{code}", data, index * struct.calcsize(code), value)
        self.write(name, bytes(data))

    def line(self, name: str, number: int, change: Callable[[dict[str, Any]], Any]) -> None:
        """Change one line of samples.jsonl or rejected.jsonl, and the blocks' offsets with it."""
        lines = (self.out / name).read_bytes().splitlines(keepends=True)
        found = change(json.loads(lines[number]))
        lines[number] = found if type(found) is bytes else json.dumps(found, separators=(",", ":")).encode() + b"\n"
        self.write(name, b"".join(lines))
        if name == SAMPLES:
            row, begins = 0, [0]
            for text in lines:
                begins.append(begins[-1] + len(text))
            for block in self.blocks:
                block[2] = begins[row]
                row += block[0]

    def seal(self, *, has_metadata: bool = True) -> Path:
        """Make sizes, meta.json and digests right again, as far as the head allows it."""
        if has_metadata:
            self._seal_metadata()
        for name, entry in self.head["files"].items() if type(self.head.get("files")) is dict else ():
            path = self.out / name
            if (
                name not in self.kept
                and path.is_file()
                and path.stat().st_size <= _MOST_SEALED_BYTES
                and type(entry) is dict
            ):
                data = path.read_bytes()
                entry["size_bytes"] = len(data)
                is_pixels = name == PIXELS
                entry["digest"] = (
                    f"crc32:{zlib.crc32(data):08x}" if is_pixels else f"sha256:{hashlib.sha256(data).hexdigest()}"
                )
        lines = ",".join(f"\n    {json.dumps(block)}" for block in self.blocks) if self.table is None else self.table
        (self.out / "manifest.json").write_bytes(encode(self.head, lines))
        return self.out

    def seal_blocks(self) -> None:
        """Make the checksums of blocks those of the bytes that are where the blocks say; those of pixels unpacked stay."""
        data, offset = self.read(PIXELS), 0
        row_bytes = self.head["height"] * self.head["width"] * self.head["channels"]
        for block in self.blocks:
            size_bytes = block[3] if len(block) > 3 else block[0] * row_bytes
            block[1] = zlib.crc32(data[offset : offset + size_bytes])
            offset += size_bytes

    def _seal_metadata(self) -> None:
        try:
            sizes = {
                name: {**entry, "size_bytes": self._size(name, entry)} for name, entry in self.head["files"].items()
            }
            contents = metadata_files(Manifest.from_json(self.head | {"files": sizes}))
        except (ValueError, TypeError, KeyError, AttributeError):
            return
        for name, content in contents.items():
            self.write(name, content)

    def _size(self, name: str, entry: dict[str, Any]) -> Any:
        path = self.out / name
        return entry["size_bytes"] if name in self.kept or not path.is_file() else path.stat().st_size


class Fault(NamedTuple):
    """Which valid store it begins with, what is changed before it is sealed and after, and who must refuse it."""

    kind: str
    change: Callable[[Draft], object]
    says: str
    after: Callable[[Path], object] = lambda out: None


def encode(head: dict[str, Any], lines: str) -> bytes:
    """Return the bytes of a manifest.json of any head, with a right digest; NaN and infinities as Python writes them."""
    try:
        return with_digest(head, lines)
    except ValueError:
        text = json.dumps(head, indent=2, ensure_ascii=True).removesuffix("\n}").encode("ascii")
        body = text + b',\n  "blocks": [' + lines.encode("ascii") + b"\n  ]"
        return body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode("ascii")


ROWS, SIDE, COUNT = 14, 8, 3
_CAPTIONS = [f"row {row}, näïve".encode() for row in range(ROWS)]
# what valid stores there are: of which kind their targets are, whether rows have sizes of their own
RAW_KINDS = ("class", "boxes", "multi-hot", "regression", "further", "texts", "own-sizes", "own-masks")
COMPRESSED = "compressed"
FRAME_KINDS = (COMPRESSED, f"{COMPRESSED}-own-masks")
JPEG = "jpeg"
JPEG_KINDS = (JPEG, f"{JPEG}-own-sizes")
# Frames are made and read by a package that need not be there.
HAS_FRAMES = importlib.util.find_spec("zstandard") is not None
KINDS = RAW_KINDS + (FRAME_KINDS + JPEG_KINDS) * HAS_FRAMES


def valid_store(out: Path, kind: str) -> Path:
    """Write a store of 14 rows of up to 8 x 8 in two blocks, with content and a reject, that every command accepts."""
    form = next((name for name in (COMPRESSED, JPEG) if kind.startswith(name)), "")
    kind = kind.removeprefix(form).strip("-")
    is_ragged = kind.startswith("own")
    sides = [(1 + row % SIDE, SIDE - row % 3) if is_ragged else (SIDE, SIDE) for row in range(ROWS)]
    sides[7] = (SIDE, SIDE)
    shapes = [(height, width, 3) for height, width in sides]
    pixels = [bytes((7 * row + n) % 256 for n in range(h * w * 3)) for row, (h, w, _) in enumerate(shapes)]
    masks = [bytes(h * w) if kind == "own-masks" else b"" for h, w, _ in shapes]
    rows = [image + mask for image, mask in zip(pixels, masks, strict=True)]
    targets, code = _targets(kind)
    lines = [_line(row, target, sides[row]) for row, target in enumerate(targets)]
    contents = {
        PIXELS: b"".join(rows),
        TARGETS: b"".join(struct.pack(code, *(target if type(target) is list else [target])) for target in targets),
        SAMPLES: b"".join(lines),
        REJECTED: encode_line({"path": "broken.jpg", "reason": "the file is empty", "line": 15}).encode(),
    }
    contents |= (
        _places(rows, pixels, shapes, kind) if is_ragged else {CONTENT: struct.pack("<4i", 0, 0, SIDE, SIDE) * ROWS}
    )
    extras = _extras(kind)
    contents |= {TEXTS_FILE: b"".join(_CAPTIONS)} if kind == "texts" else {}
    contents |= {f"_tensordict/extras/{name}.memmap": data for name, (_, _, data) in extras.items()}
    head = _head(kind, is_ragged=is_ragged, extras=extras)
    head |= {"height": SIDE, "width": SIDE}
    sizes = [[sum(map(len, rows[:9]))], [sum(map(len, rows[9:]))]] if is_ragged else [[], []]
    blocks = [[9, 0, 0, *sizes[0]], [5, 0, sum(map(len, lines[:9])), *sizes[1]]]
    draft = Draft(out, head, blocks)
    draft.write(PIXELS, contents[PIXELS])
    draft.seal_blocks()
    own_sides = [shape[:2] for shape in shapes]
    if form == COMPRESSED:
        from tests.hostile._frames import compress

        contents |= compress(head, blocks, rows, own_sides)
    elif form == JPEG:
        from tests.hostile._jpegs import encode

        contents |= encode(head, blocks, rows, own_sides, contents[SAMPLES])
    names = [*contents, *metadata_names(has_extras=bool(extras))]
    head["files"] = {
        name: {"size_bytes": 0, "digest": f"crc32:{0:08x}" if name == PIXELS else f"sha256:{0:064x}"} for name in names
    }
    for name, data in contents.items():
        draft.write(name, data)
    draft.seal_blocks()
    return draft.seal()


def _places(rows: list[bytes], pixels: list[bytes], shapes: list[tuple[int, ...]], kind: str) -> dict[str, bytes]:
    """Return the files of rows with sizes of their own."""
    begins = [sum(map(len, rows[:row])) for row in range(ROWS)]
    joined = b"".join(rows)
    contents = {
        PIXELS: joined + bytes(-len(joined) % PAGE_BYTES),
        OFFSETS: struct.pack(f"<{ROWS}q", *begins),
        SHAPES: b"".join(struct.pack("<3i", *s) for s in shapes),
    }
    if kind == "own-masks":
        masks = (begin + len(image) for begin, image in zip(begins, pixels, strict=True))
        contents[MASK_OFFSETS] = struct.pack(f"<{ROWS}q", *masks)
    return contents


def _targets(kind: str) -> tuple[list[Any], str]:
    if kind == "multi-hot":
        return [[row % 2, 0, 1] for row in range(ROWS)], "<3B"
    if kind == "regression":
        return [[row / 2, 1.0, -1.5] for row in range(ROWS)], "<3f"
    return [-1 if kind == "boxes" else row % COUNT for row in range(ROWS)], "<q"


def _line(row: int, target: Any, sides: tuple[int, int]) -> bytes:
    height, width = sides
    made = {
        "bytes": 100 + row,
        "sha256": f"{row % 5:064x}",
        "width": width,
        "height": height,
        "decoder": "libjpeg-turbo",
    }
    return encode_line({"path": f"a/{row}.jpg", "target": target} | made).encode()


def _extras(kind: str) -> dict[str, tuple[str, list[int], bytes]]:
    """Return dtype, shape of a row and bytes of each extra."""
    if kind == "boxes":
        return {
            "boxes": ("float32", [2, 4], struct.pack("<8f", 1, 1, 5, 6, 0, 0, 0, 0) * ROWS),
            "box_targets": ("int64", [2], struct.pack("<2q", 1, -1) * ROWS),
            "box_count": ("int32", [], struct.pack("<i", 1) * ROWS),
            "masks": ("uint8", [SIDE, SIDE], bytes(SIDE * SIDE) * ROWS),
        }
    if kind == "further":
        return {"breed": ("int64", [], struct.pack("<q", 1) * ROWS), "tags": ("uint8", [2], b"\1\0" * ROWS)}
    if kind == "texts":
        ends = itertools.accumulate(map(len, _CAPTIONS), initial=0)
        return {"caption": ("int64", [2], b"".join(struct.pack("<2q", *span) for span in itertools.pairwise(ends)))}
    return {"weight": ("float32", [], struct.pack("<f", 0.5) * ROWS)} if kind in ("class", "") else {}


def _head(kind: str, *, is_ragged: bool, extras: dict[str, tuple[str, list[int], bytes]]) -> dict[str, Any]:
    further = {"breed": {"kind": "class", "classes": ["x", "y"]}, "tags": {"kind": "multi-hot", "classes": ["p", "q"]}}
    own = {"fit": "none", "size": None, "max_size": None} if is_ragged else {"fit": "pad", "size": [SIDE, SIDE]}
    features = {"texts": ["text-columns"], "own-sizes": ["own-sizes"], "own-masks": ["own-sizes", "own-masks"]}
    is_counted = kind in ("multi-hot", "regression")
    return {
        "format": "pixpack",
        "version": [1, 1],
        "reader_features": [*features.get(kind, [])],
        "writer_features": [],
        "rows": ROWS,
        "height": SIDE,
        "width": SIDE,
        "channels": 3,
        "targets": {"kind": kind if is_counted else "class", "count": COUNT if is_counted else None},
        "content": not is_ragged,
        "extras": {name: {"dtype": dtype, "shape": shape} for name, (dtype, shape, _) in sorted(extras.items())},
        "classes": [] if kind == "regression" else ["ant", "bee", "cat"],
        **({"further_targets": further} if kind == "further" else {}),
        **({"texts": ["caption"]} if kind == "texts" else {}),
        "labels": {"root": True},
        "mean": [0.5, 0.25, 0.125],
        "std": [0.1, 0.2, 0.3],
        "inputs": ROWS + 1,
        "rejected": 1,
        "options": {"crop_fraction": 1.0, "resample": "bilinear", "exact": False, "max_pixels": 1000, **own},
        "decoders": {"pillow": {"version": "0", "simd": None}},
    }
