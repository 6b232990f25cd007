"""The faults of hostile stores as one table: what one thing is wrong with each, who must say so, and in which words.

A field is a place in a store that is valid but for it:

    head/targets/kind       in the manifest, at any depth
    blocks/0/1              in the table of blocks
    samples.jsonl/3/path    in a line, or all of the line
    targets.memmap/q/5      a number in a tensor; the letter is struct's

The value is put there, GONE removes what is there. For these it is a function:

    jpegs/5                 of the JPEG of a row
    draft                   of the draft of the store
    after/samples.jsonl     of the path of a file or folder, once the store is sealed
"""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from reader.format.manifest import PIXELS
from tests.hostile.drafts import Draft, with_digest

EVIL = "cat\x1b[2J\x07\x9b31m\u202eexe\n pack: done"
BIG = (1 << 63) - 1
GONE = object()
# Who refuses a store: every reader and command; `pack verify`, of rows; the same, of the table of blocks; nobody.
OPENING, VERIFY, BLOCKS, NOBODY = "opening", "verify", "blocks", "nobody"


class Fault(NamedTuple):
    """One thing that is wrong with a store of a kind of tests/laws/kinds.py; says: a part of what is said of it."""

    who: str
    kind: str
    field: str
    value: Any
    says: str

    @property
    def name(self) -> str:
        value = getattr(self.value, "__name__", "gone" if self.value is GONE else ascii(self.value))
        return f"{self.kind}: {self.field} = {value if len(value) < 40 else value[:40] + '...'}"


def make_faulty(base: Path, out: Path, fault: Fault) -> Path:
    """Write the hostile store of a fault; base is a valid one of its kind."""
    draft = Draft(base, out)
    place, _, rest = fault.field.partition("/")
    if place == "after":
        draft.seal()
        fault.value(out / rest)
        return out
    if place == "draft":
        fault.value(draft)
    elif place in ("head", "blocks", "table"):
        _put(vars(draft), fault.field, fault.value)
    elif place == "jpegs":
        jpegs = draft.jpegs()
        _put(jpegs, rest, fault.value(jpegs[int(rest)]))
        draft.put_jpegs(jpegs)
    elif place.endswith(".jsonl"):
        lines = draft.read(place).splitlines(keepends=True)
        number, _, keys = rest.partition("/")
        if keys:
            line = json.loads(lines[int(number)])
            _put(line, keys, fault.value)
            lines[int(number)] = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        else:
            lines[int(number)] = fault.value
        draft.put_lines(place, lines)
    else:
        code, index = rest.split("/")
        (path,) = out.glob(f"_tensordict/**/{place}")
        draft.put_number(str(path.relative_to(out)), code, int(index), fault.value)
    return draft.seal()


def _put(container: Any, keys: str, value: Any) -> None:
    """Put a value at a place of a JSON value, or remove what is there; %2f stands for a slash in a key."""
    *outer, last = (int(key) if key.isdigit() else key.replace("%2f", "/") for key in keys.split("/"))
    for key in outer:
        container = container[key]
    if value is GONE:
        del container[last]
    else:
        container[last] = value


# -- what is done to a JPEG


class Put(NamedTuple):
    """Puts bytes so far behind a marker."""

    marker: bytes
    offset: int
    value: bytes

    def __call__(self, jpeg: bytes) -> bytes:
        at = jpeg.index(self.marker) + self.offset
        return jpeg[:at] + self.value + jpeg[at + len(self.value) :]


class Encode(NamedTuple):
    """Makes another JPEG: of another size by so much, of another mode, or with an option of Pillow."""

    more: tuple[int, int] = (0, 0)
    mode: str = "RGB"
    option: str = "quality"
    value: Any = 95

    def __call__(self, jpeg: bytes) -> bytes:
        with Image.open(io.BytesIO(jpeg)) as image:
            size = image.width + self.more[0], image.height + self.more[1]
        written = io.BytesIO()
        options = {"subsampling": 0, "quality": 95, self.option: self.value}
        Image.new(self.mode, size).save(written, "JPEG", **options)
        return written.getvalue()


class Cut(NamedTuple):
    """Cuts the JPEG so far behind a marker, and ends it with other bytes."""

    marker: bytes
    offset: int
    end: bytes

    def __call__(self, jpeg: bytes) -> bytes:
        return jpeg[: jpeg.index(self.marker) + self.offset] + self.end


# ISO/IEC 10918-1: end of image, tables, start of frame, start of scan
_EOI, _DQT, _SOF0, _SOS = b"\xff\xd9", b"\xff\xdb", b"\xff\xc0", b"\xff\xda"


# -- what is done to a file of a sealed store, or to a draft


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def holes(path: Path) -> None:
    os.truncate(path, 1 << 42)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def pickled(path: Path) -> None:
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")


def link(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.elsewhere"))
    path.symlink_to(path.with_name(f"{path.name}.elsewhere"))


def key_twice(path: Path) -> None:
    """Write a key twice, digest right."""
    body = path.read_bytes().rpartition(b',\n  "digest"')[0]
    path.write_bytes(with_digest(body.replace(b'  "rows"', b'  "rows": 13,\n  "rows"', 1)))


def wide_block(draft: Draft) -> None:
    """Declare a block of more than a GB in a file of holes, which takes a few kB of a disk."""
    size_bytes = 1_400 << 20
    draft.blocks[-1][3] = size_bytes - sum(block[3] for block in draft.blocks[:-1])
    draft.head["files"][PIXELS] = {"size_bytes": size_bytes, "digest": f"crc32:{1:08x}"}
    draft.kept.add(PIXELS)
    os.truncate(draft.out / PIXELS, size_bytes)


def bytes_of_another_block(draft: Draft) -> None:
    draft.blocks[0][3] -= 24
    draft.blocks[1][3] += 24
    draft.seal_blocks()


class Kept(NamedTuple):
    """Says something else of a file in the manifest, and leaves it so."""

    name: str
    field: str
    value: Any

    def __call__(self, draft: Draft) -> None:
        draft.kept.add(self.name)
        draft.head["files"][self.name][self.field] = self.value


# -- jpegs, as functions of the one that is there


def nothing(jpeg: bytes) -> bytes:
    return b""


def zeros(jpeg: bytes) -> bytes:
    return bytes(1024)


def and_a_byte(jpeg: bytes) -> bytes:
    return jpeg + b"\0"


def twice(jpeg: bytes) -> bytes:
    return jpeg + jpeg


def and_20_kb(jpeg: bytes) -> bytes:
    return jpeg + bytes(20_000)


# who refuses a store -> (kind, field, value, a part of what is said)
_TABLE: dict[str, list[tuple[str, str, Any, str]]] = {
    OPENING: [
        ("pad", "head/format", ["pixpack"], "the format is ['pixpack']"),
        ("pad", "head/version", "1.0", "the format version is '1.0'"),
        ("pad", "head/version", [1, 1], "the format version is [1, 1]"),
        ("pad", "head/version", [True, 0], "the format version is [True, 0]"),
        ("pad", "head/own_sizes", 5, "own_sizes = 5"),
        ("own-sizes", "head/own_sizes", False, "lists other files"),
        ("pad", "head/own_masks", True, "expected own_sizes with it"),
        ("pad", "head/jpeg", {}, "jpeg of the manifest lacks quality"),
        ("pad", "head/rows", 13.0, "rows = 13.0"),
        ("pad", "head/rows", 1 << 70, "rows = 11805916"),
        ("pad", "head/height", -8, "height = -8"),
        ("pad", "head/width", "8", "width = '8'"),
        ("pad", "head/channels", 2, "channels = 2"),
        ("pad", "head/channels", 1 << 40, "channels = 1099511627776"),
        ("pad", "head/targets", ["class", None], "targets = "),
        ("pad", "head/targets/kind", ["class"], "kind = ['class']"),
        ("pad", "head/targets/count", 3, "targets of kind 'class' x 3"),
        ("regression", "head/targets/count", 1 << 40, "count = 1099511627776"),
        ("multi-hot", "head/classes", ["a", "b"], "2 classes"),
        ("pad", "head/content", 1, "content = 1"),
        ("pad", "head/content", False, "lists other files"),
        ("own-sizes", "head/content", True, "content and sizes of their own"),
        ("boxes", "head/extras", [], "extras = []"),
        ("boxes", "head/extras/box_count", None, "'box_count' of the manifest is None"),
        ("boxes", "head/extras/box_count/dtype", "object", "dtype = 'object'"),
        ("boxes", "head/extras/..%2f..%2fx", {"dtype": "uint8", "shape": []}, "'../../x', expected letters"),
        ("boxes", "head/extras/box_count/shape", [1 << 31, 1 << 31, 0], "shape = [2147483648"),
        ("boxes", "head/extras/box_count/shape", [1] * 64, "up to 30 integers"),
        ("boxes", "head/extras/box_count/shape", [1.0], "shape = [1.0]"),
        ("pad", "head/classes", "abc", "classes = 'abc'"),
        ("pad", "head/classes", ["a", 1, None], "classes = ['a', 1, None]"),
        ("pad", "head/mean", [0.5, 0.5], "mean = [0.5, 0.5]"),
        ("pad", "head/mean", [float("inf"), 0.5, 0.5], "Infinity"),
        ("pad", "head/std", [float("nan"), 0.5, 0.5], "NaN"),
        ("pad", "head/std", "abc", "std = 'abc'"),
        ("pad", "head/inputs", 3, "3 inputs"),
        ("pad", "head/inputs", 1 << 80, "inputs = 12089258"),
        ("pad", "head/rejected", -1, "rejected = -1"),
        ("pad", "head/rejected", 0, "13 rows and 0 rejects"),
        ("pad", "head/options", [1], "options = [1]"),
        ("pad", "head/options/x", eval("[" * 60 + "]" * 60), "options = {"),
        ("pad", "head/decoders", "pillow", "decoders = 'pillow'"),
        ("pad", "head/decoders/pillow", 5, "pillow = 5"),
        ("boxes", "head/labels", [1], "labels = [1]"),
        ("pad", "head/files", ["meta.json"], "files = ['meta.json']"),
        ("pad", "head/files/samples.jsonl", GONE, "lists other files"),
        ("pad", "head/files/..%2f..%2fx", {"size_bytes": 1, "digest": f"sha256:{0:064x}"}, "lists other files"),
        ("pad", "draft", Kept("samples.jsonl", "size_bytes", -1), "size_bytes = -1"),
        ("pad", "draft", Kept("samples.jsonl", "digest", []), "digest = []"),
        ("pad", "draft", Kept("samples.jsonl", "digest", "crc32:00000000"), "digest = 'crc32:00000000'"),
        ("pad", "draft", Kept(PIXELS, "digest", f"sha256:{0:064x}"), "digest = 'sha256:0000"),
        ("jpeg", "head/jpeg", GONE, "the manifest lacks jpeg"),
        ("jpeg", "head/jpeg", None, "lists other files"),
        ("jpeg", "head/jpeg/quality", 101, "quality = 101"),
        ("jpeg", "head/jpeg/pixel_bytes", 1, "1 bytes of decoded pixels"),
        ("jpeg", "head/jpeg/squared_error", BIG, "more than its pixels can differ"),
        ("pad", "after/other.pickle", pickled, "other.pickle is not a file of this store"),
        ("pad", "after/_tensordict/other.pickle", pickled, "other.pickle is not a file of this store"),
        ("boxes", "after/_tensordict/extras/other.pickle", pickled, "other.pickle is not a file of this store"),
        ("pad", f"after/_tensordict/{EVIL}", folder, "is not a file of this store"),
        ("pad", "after/manifest.json", pipe, "manifest.json is not a regular file"),
        ("pad", "after/samples.jsonl", pipe, "samples.jsonl is not a regular file"),
        ("pad", f"after/{PIXELS}", pipe, "pixels.memmap is not a regular file"),
        ("pad", f"after/{PIXELS}", link, "pixels.memmap is a symbolic link"),
        ("pad", "after/manifest.json", folder, "manifest.json is not a regular file"),
        ("pad", "after/manifest.json", holes, "manifest.json has 4398046511104 bytes"),
        ("pad", "after/manifest.json", emptied, "manifest.json was changed after it was written or is cut short"),
        ("pad", "after/manifest.json", key_twice, "a key comes twice"),
    ],
    BLOCKS: [
        ("pad", "blocks/0/0", 19, "block 0 has 19 rows"),
        ("pad", "blocks/0/0", -5, "[-5, "),
        ("pad", "blocks/0", GONE, "block 0 has lines from byte 340"),
        ("pad", "blocks", [], "blocks"),
        ("pad", "blocks/0/1", 1 << 40, "1099511627776"),
        ("pad", "blocks/0/1", "0", '[2, "0", 0'),
        ("pad", "blocks/0/2", 500, "block 0 has lines from byte 500"),
        ("pad", "blocks/1/2", 1 << 40, "block 1 has lines from byte 1099511627776"),
        ("pad", "blocks/0/3", 5, "block 0 has 5 bytes of pixels"),
        ("own-sizes", "blocks/0/3", GONE, "expected 4 numbers"),
        ("own-sizes", "blocks/0/3", -5, "expected 4 numbers"),
        ("own-sizes", "blocks/0/3", BIG, "block 0 has 9223372036854775807 bytes"),
        ("pad", "table", "\n    {}", "expected 4 numbers"),
        ("pad", "table", "\n    [" + "9" * 1_000_000 + "]", "expected 4 numbers"),
    ],
    VERIFY: [
        ("pad", "blocks/1/2", 300, "row 2: its line begins at byte 340, not at 300"),
        ("own-sizes", "draft", bytes_of_another_block, "row 1: the blocks have other numbers of bytes than their rows"),
        ("own-sizes", "draft", wide_block, "row 12: the blocks have other numbers of bytes than their rows"),
        ("own-sizes", "head/height", 60, "its blocks, height and width are not those of the rows"),
        ("pad", "head/classes", ["ant"], "row 5: its target is 1, expected -1 to 0"),
        ("pad", "targets.memmap/q/5", 3, "row 5: its target is 3, expected -1 to 2"),
        ("pad", "targets.memmap/q/5", -2, "row 5: its target is -2"),
        ("pad", "targets.memmap/q/5", 1 << 62, "row 5: its target is 4611686018427387904"),
        ("pad", "targets.memmap/q/5", 0, "row 5: the target is not the one in samples.jsonl"),
        ("multi-hot", "targets.memmap/f/5", 7, "row 1: its target is [7.0, "),
        ("multi-hot", "targets.memmap/f/5", float("nan"), "row 1: its target is [nan, "),
        ("pad", "content.memmap/i/6", 25, "row 1: its content is [0, 9, 25, 31]"),
        ("pad", "content.memmap/i/4", -1, "row 1: its content is [-1"),
        ("pad", "content.memmap/i/6", 0, "row 1: its content is [0, 9, 0"),
        ("boxes", "box_targets.memmap/q/4", 9, "row 1"),
        ("boxes", "box_count.memmap/i/4", (1 << 31) - 1, "row 4"),
        ("boxes", "box_count.memmap/i/4", -3, "row 4"),
        ("own-sizes", "shapes.memmap/i/9", 0, "row 3"),
        ("own-sizes", "shapes.memmap/i/9", -4, "row 3"),
        ("own-sizes", "shapes.memmap/i/9", (1 << 31) - 1, "row 3"),
        ("own-sizes", "shapes.memmap/i/11", 4, "row 3"),
        ("own-sizes", "offsets.memmap/q/3", -8, "row 3"),
        ("own-sizes", "offsets.memmap/q/3", 1 << 62, "row 3"),
        ("own-sizes", "offsets.memmap/q/3", 0, "row 3: its bytes are not behind those of the row before it"),
        ("labels-own-sizes", "mask_offsets.memmap/q/3", 0, "row 3"),
        ("pad", "samples.jsonl/3", b"[1]\n", "row 3: '[1]\\n' is not a line of samples.jsonl"),
        ("pad", "samples.jsonl/3", b"\xff\xfe\n", "row 3"),
        ("pad", "samples.jsonl/3", b"[" * 100_000 + b"\n", "row 3"),
        ("pad", "samples.jsonl/3", b"", "samples.jsonl has 12 lines"),
        ("pad", "samples.jsonl/12", b"{}\n{}\n", "row 12"),
        ("pad", "samples.jsonl/12", b'{"path":"a"', "row 12"),
        ("pad", "samples.jsonl/3/path", 7, "row 3"),
        ("pad", "samples.jsonl/3/target", "cat", "row 3"),
        ("pad", "samples.jsonl/3/target", 9, "row 3: the target 9 is none of this store"),
        ("pad", "samples.jsonl/3/target", [[[1]]], "row 3"),
        ("pad", "samples.jsonl/3/sha256", "ab", "row 3"),
        ("pad", "samples.jsonl/3/bytes", 1 << 80, "row 3"),
        ("pad", "samples.jsonl/3/width", 1.5, "row 3"),
        ("pad", "samples.jsonl/3/height", 0, "row 3"),
        ("pad", "rejected.jsonl/0", b"5\n", "line 1 is 5"),
        ("pad", "rejected.jsonl/0", b"", "rejected.jsonl"),
        ("pad", "rejected.jsonl/0/reason", [1], "line 1 says reason = [1]"),
        ("pad", "after/model.pkl", pickled, "model.pkl: it is not a file of this store"),
        ("jpeg", "frames.memmap/q/10", -1, "row 5: its frame is not behind that of the row before it"),
        ("jpeg-own-sizes", "shapes.memmap/i/9", 3, "row 3: its JPEG has 55 x 55 x 3"),
        ("jpeg", "jpegs/5", nothing, "row 5"),
        ("jpeg", "jpegs/5", zeros, "row 5: its frame is no complete JPEG"),
        ("jpeg", "jpegs/5", and_a_byte, "row 5: its frame is no complete JPEG"),
        ("jpeg", "jpegs/5", and_20_kb, "row 5: its frame is not within the pixels"),
        ("jpeg", "jpegs/5", twice, "row 5: its JPEG has a marker in its scan"),
        ("jpeg", "jpegs/5", Encode(more=(8, 0), mode="L"), "row 5: its JPEG has 32 x 40 x 1"),
        ("jpeg", "jpegs/5", Encode(), "row 5: its JPEG has 32 x 32 x 3"),
        ("jpeg-own-sizes", "jpegs/5", Encode(mode="L"), "row 5: its JPEG has 36 x 40 x 1"),
        ("jpeg-own-sizes", "jpegs/5", Encode(mode="CMYK"), "row 5: its JPEG has a segment FFEE"),
        ("jpeg-own-sizes", "jpegs/5", Encode(option="progressive"), "row 5: its JPEG has a segment FFC2"),
        ("jpeg-own-sizes", "jpegs/5", Encode(option="subsampling", value=2), "row 5: its JPEG is subsampled"),
        ("jpeg-own-sizes", "jpegs/5", Encode(option="comment", value=b"x"), "row 5: its JPEG has a segment FFFE"),
        ("jpeg-own-sizes", "jpegs/5", Encode(option="restart_marker_blocks"), "row 5: its JPEG has a segment FFDD"),
        ("jpeg", "jpegs/5", Put(_SOF0, 5, b"\xff" * 4), "row 5: its JPEG has 65535 x 65535"),
        ("jpeg", "jpegs/5", Put(_SOF0, 5, b"\0\0"), "row 5: its JPEG has 0 x 32"),
        ("jpeg", "jpegs/5", Put(_SOF0, 4, b"\x0c"), "values of 12 bits"),
        ("jpeg", "jpegs/5", Put(_SOF0, 9, b"\xff"), "32 x 32 x 255"),
        ("jpeg", "jpegs/5", Put(_SOF0, 10, b"R"), "has other components than Y, Cb, Cr"),
        ("jpeg", "jpegs/5", Put(_SOF0, 11, b"\x44"), "row 5: its JPEG is subsampled"),
        ("jpeg", "jpegs/5", Put(_SOF0, 12, b"\x03"), "row 5: its frame is damaged"),
        ("jpeg", "jpegs/5", Put(_SOF0, 1, b"\xc9"), "row 5: its JPEG has a segment FFC9"),
        ("jpeg", "jpegs/5", Put(_DQT, 2, b"\xff\xff"), "row 5: its JPEG has no scan"),
        ("jpeg", "jpegs/5", Put(_DQT, 2, b"\0\0"), "row 5: its JPEG has no scan"),
        ("jpeg", "jpegs/5", Put(_SOS, 4, b"\2"), "has another scan than one of all components"),
        ("jpeg", "jpegs/5", Cut(_SOS, 0, _EOI), "row 5: its JPEG has no scan"),
        ("jpeg", "jpegs/5", Cut(_SOS, 40, _EOI), "row 5: its frame is damaged"),
        ("jpeg", "jpegs/5", Cut(_EOI, 0, b""), "row 5: its frame is no complete JPEG"),
    ],
    NOBODY: [
        ("pad", "head/classes", ["ant", "ant", "cat"], ""),
        ("pad", "head/classes", [EVIL, "b", "c"], ""),
        ("pad", "head/classes", ["\udcff\udc80", "b", "c"], ""),
        ("pad", "head/classes", ["x" * 200_000, "b", "c"], ""),
        ("pad", "head/options/fit", EVIL, ""),
        ("pad", "head/decoders/pillow", {EVIL: EVIL}, ""),
        ("pad", "samples.jsonl/3/path", EVIL, ""),
        ("pad", "samples.jsonl/3/path", "\udcff.jpg", ""),
        ("pad", "rejected.jsonl/0/reason", EVIL, ""),
        ("boxes", "boxes.memmap/f/8", float("nan"), ""),
        ("pad", "after/sheet.png", pickled, ""),
    ],
}
FAULTS = [Fault(who, *row) for who, rows in _TABLE.items() for row in rows]
