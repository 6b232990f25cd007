"""The faults of hostile stores, by name: what one thing is wrong with each, and who must say so.

"opening": every reader and command refuses the store; "verify" and "blocks": it opens, and `pack verify` refuses it, for what
it says of rows or of blocks; "harmless": both accept it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reader.format.manifest import PIXELS, REJECTED, SAMPLES
from reader.format.tensors import TEXTS_FILE
from tests.hostile._stores import (
    CONTENT,
    HAS_FRAMES,
    MASK_OFFSETS,
    OFFSETS,
    ROWS,
    SHAPES,
    SIDE,
    TARGETS,
    Draft,
    Fault,
)

EVIL = "cat\x1b[2J\x07\x9b31m\u202eexe\n pack: done"


def _set(key: str, value: Any, kind: str = "class", says: str = "opening") -> Fault:
    return Fault(kind, lambda draft: draft.head.__setitem__(key, value), says)


def _within(outer: str, key: str, value: Any, kind: str = "class", says: str = "opening") -> Fault:
    return Fault(kind, lambda draft: draft.head[outer].__setitem__(key, value), says)


def _patch(name: str, code: str, index: int, value: Any, kind: str = "class", says: str = "verify") -> Fault:
    return Fault(kind, lambda draft: draft.patch(name, code, index, value), says)


def _block(number: int, index: int, value: Any, kind: str = "class", says: str = "opening") -> Fault:
    return Fault(kind, lambda draft: draft.blocks[number].__setitem__(index, value), says)


def _sample(key: str, value: Any, says: str = "verify") -> Fault:
    return Fault("class", lambda draft: draft.line(SAMPLES, 3, lambda line: line | {key: value}), says)


def _lines(name: str, text: bytes, number: int = 3) -> Fault:
    return Fault("class", lambda draft: draft.line(name, number, lambda line: text), "verify")


def _after(after: Callable[[Path], object], says: str = "opening", kind: str = "class") -> Fault:
    return Fault(kind, lambda draft: None, says, after)


def _wide_block(draft: Draft) -> None:
    """Declare a block of more than a GB in a file of holes, which takes a few kB of a disk."""
    size_bytes = 1_400 << 20
    draft.blocks[1][3] = size_bytes - draft.blocks[0][3]
    draft.head["files"][PIXELS] = {"size_bytes": size_bytes, "digest": f"crc32:{1:08x}"}
    draft.kept.add(PIXELS)
    os.truncate(draft.out / PIXELS, size_bytes)


def _scalar_extra(draft: Draft, shape: list[int], size_bytes: int) -> None:
    draft.head["extras"]["weight"]["shape"] = shape
    draft.write("_tensordict/extras/weight.memmap", bytes(size_bytes))


def _pipe(name: str) -> Callable[[Path], None]:
    def put(out: Path) -> None:
        (out / name).unlink(missing_ok=True)
        os.mkfifo(out / name)

    return put


def _classes_of_200_kb(draft: Draft) -> None:
    draft.head["classes"] = ["x" * 200_000, "bee", "cat"]


def _twice(out: Path) -> None:
    """Write a key twice, digest right."""
    import hashlib

    raw = (out / "manifest.json").read_bytes()[:-90].replace(b'  "rows": 14,\n', b'  "rows": 14,\n  "rows": 14,\n')
    (out / "manifest.json").write_bytes(
        raw + f',\n  "digest": "sha256:{hashlib.sha256(raw).hexdigest()}"\n}}\n'.encode()
    )


def _second_block_table(table: str) -> Fault:
    return Fault("class", lambda draft: setattr(draft, "table", table), "blocks")


def _long_text(draft: Draft) -> None:
    """Make the last text, and its file, 2 MiB longer."""
    draft.write(TEXTS_FILE, draft.read(TEXTS_FILE) + b"x" * (2 << 20))
    draft.patch(_CAPTION, "q", 2 * ROWS - 1, len(draft.read(TEXTS_FILE)))


def _escaped_text(draft: Draft) -> None:
    """Put what paints a terminal in place of some bytes."""
    draft.write(TEXTS_FILE, b"\x1b[2J" + draft.read(TEXTS_FILE)[4:])


_CAPTION = "_tensordict/extras/caption.memmap"
BIG = (1 << 63) - 1
FAULTS: dict[str, Fault] = {
    # fields of the manifest
    "format is a list": _set("format", ["pixpack"]),
    "version is text": _set("version", "1.1"),
    "version has a float": _set("version", [1, 0.5]),
    "minor version is negative": _set("version", [1, -1]),
    "reader_features is a number": _set("reader_features", 5),
    "reader_features has a list": _set("reader_features", [["own-sizes"]]),
    "reader_features with escapes": _set("reader_features", [EVIL]),
    "writer_features is text": _set("writer_features", "abc"),
    "rows is a float": _set("rows", 14.0),
    "rows is huge": _set("rows", 1 << 70),
    "height is negative": _set("height", -8),
    "width is text": _set("width", "8"),
    "channels is 2": _set("channels", 2),
    "channels is 2^40": _set("channels", 1 << 40),
    "targets is a list": _set("targets", ["class", None]),
    "kind of targets is a list": _within("targets", "kind", ["class"]),
    "count of class targets": _within("targets", "count", 3),
    "count of targets is huge": _within("targets", "count", 1 << 40, kind="regression"),
    "count of multi-hot is not that of classes": _set("classes", ["a", "b"], kind="multi-hot"),
    "content is a number": _set("content", 1),
    "content is absent but its file is there": _set("content", False),
    "content and own sizes": _set("content", True, kind="own-sizes"),
    "extras is a list": _set("extras", []),
    "extra is null": _within("extras", "weight", None),
    "extra of a strange dtype": _within("extras", "weight", {"dtype": "object", "shape": []}),
    "extra named as a path": _within("extras", "../../x", {"dtype": "uint8", "shape": []}),
    "shape of an extra overflows": Fault("class", lambda d: _scalar_extra(d, [1 << 31, 1 << 31, 0], 0), "opening"),
    "shape of an extra has no bytes": Fault(
        "class", lambda d: _scalar_extra(d, [(1 << 31) - 1] * 3 + [0], 0), "opening"
    ),
    "shape of an extra has 64 sides": Fault("class", lambda d: _scalar_extra(d, [1] * 64, 56), "opening"),
    "shape of an extra is a float": _within("extras", "weight", {"dtype": "float32", "shape": [1.0]}),
    "classes is text": _set("classes", "abc"),
    "classes has numbers": _set("classes", ["a", 1, None]),
    "classes are fewer than targets": _set("classes", ["ant"], says="verify"),
    "a class name comes twice": _set("classes", ["ant", "ant", "cat"], says="harmless"),
    "a decoder has a number of 10^308": _within("decoders", "pillow", {"version": -1e308}),
    "class names with escapes": _set("classes", [EVIL, "b", "c"], says="harmless"),
    "class names that are no UTF-8": _set("classes", ["\udcff\udc80", "b", "c"], says="harmless"),
    "class names of 200 kB": Fault("class", _classes_of_200_kb, "harmless"),
    "mean has two numbers": _set("mean", [0.5, 0.5]),
    "mean is infinite": _set("mean", [float("inf"), 0.5, 0.5]),
    "std is not a number": _set("std", [float("nan"), 0.5, 0.5]),
    "std is text": _set("std", "abc"),
    "inputs are fewer than rows": _set("inputs", 3),
    "inputs beyond 64 bits": _set("inputs", 1 << 80),
    "rejected is negative": _set("rejected", -1),
    "rejected is not the lines there are": Fault(
        "class", lambda d: d.head.update(rejected=2, inputs=ROWS + 2), "verify"
    ),
    "options is a list": _set("options", [1]),
    "options.size is a text": _within("options", "size", "8x8"),
    "options.size has one number": _within("options", "size", [8]),
    "options.size has three numbers": _within("options", "size", [8, 8, 8]),
    "options.crop_fraction is 0": _within("options", "crop_fraction", 0),
    "options.max_pixels is text": _within("options", "max_pixels", "many"),
    "options.max_size is odd": _within("options", "max_size", "short:-9", kind="own-sizes"),
    "options.fit with escapes": _within("options", "fit", EVIL, says="harmless"),
    "options nested deep": _within("options", "x", eval("[" * 60 + "]" * 60)),
    "decoders is text": _set("decoders", "pillow"),
    "a decoder is a number": _within("decoders", "pillow", 5),
    "decoder versions with escapes": _within("decoders", "pillow", {EVIL: EVIL}, says="harmless"),
    "labels is a list": _set("labels", [1]),
    "labels.missing is a number": _within("labels", "missing", 5),
    "labels.extension is a list": _within("labels", "extension", [".jpg"]),
    "further_targets is a list": _set("further_targets", [1]),
    "further target of no extra": _set("further_targets", {"nothing": {"kind": "class", "classes": []}}),
    "further target of another dtype": _set("further_targets", {"weight": {"kind": "class", "classes": []}}),
    "further target outside its classes": _patch("_tensordict/extras/breed.memmap", "q", 4, 2, kind="further"),
    "further multi-hot of 2": _patch("_tensordict/extras/tags.memmap", "B", 4, 2, kind="further"),
    "texts is a number": _set("texts", 5, kind="texts"),
    "texts has a number": _set("texts", [5], kind="texts"),
    "texts names no extra": _set("texts", ["nothing"], kind="texts"),
    "texts names an extra of another dtype": _set("texts", ["weight"]),
    "texts has a name twice": _set("texts", ["caption", "caption"], kind="texts"),
    "texts is absent": Fault("texts", lambda d: d.head.pop("texts"), "opening"),
    "texts without text-columns": _set("reader_features", [], kind="texts"),
    "text-columns without texts": _set("reader_features", ["text-columns"]),
    "files is a list": _set("files", ["meta.json"]),
    "files lacks one": Fault("class", lambda d: d.head["files"].pop(SAMPLES), "opening"),
    "files has a path outside": _within("files", "../../etc/passwd", {"size_bytes": 1, "digest": f"sha256:{0:064x}"}),
    "size of a file is negative": Fault(
        "class", lambda d: (d.kept.add(SAMPLES), d.head["files"][SAMPLES].update(size_bytes=-1)), "opening"
    ),
    "digest of a file is a list": Fault(
        "class", lambda d: (d.kept.add(SAMPLES), d.head["files"][SAMPLES].update(digest=[])), "opening"
    ),
    "digest of samples is a crc32": Fault(
        "class", lambda d: (d.kept.add(SAMPLES), d.head["files"][SAMPLES].update(digest="crc32:00000000")), "opening"
    ),
    "digest of pixels is a sha256": Fault(
        "class", lambda d: (d.kept.add(PIXELS), d.head["files"][PIXELS].update(digest=f"sha256:{0:064x}")), "opening"
    ),
    "a key comes twice": _after(_twice),
    # blocks
    "a block of 19 rows": _block(0, 0, 19, says="blocks"),
    "a block of -5 rows": Fault(
        "class", lambda d: (d.blocks[0].__setitem__(0, 19), d.blocks[1].__setitem__(0, -5)), "blocks"
    ),
    "a block of no rows": Fault("class", lambda d: d.blocks.insert(0, [0, 0, 0]), "blocks"),
    "blocks of too few rows": Fault("class", lambda d: d.blocks.pop(), "blocks"),
    "no blocks": Fault("class", lambda d: d.blocks.clear(), "blocks"),
    "a checksum of 40 bits": _block(0, 1, 1 << 40, says="blocks"),
    "a checksum is text": _block(0, 1, "0", says="blocks"),
    "an offset behind the file": _block(1, 2, 1 << 40, says="blocks"),
    "offsets that fall": Fault(
        "class", lambda d: (d.blocks[0].__setitem__(2, 500), d.blocks[1].__setitem__(2, 0)), "blocks"
    ),
    "an offset amid a line": _block(1, 2, 700, says="verify"),
    "a block has four numbers": Fault("class", lambda d: d.blocks[0].append(5), "blocks"),
    "a block of own sizes has three numbers": Fault("own-sizes", lambda d: d.blocks[0].pop(), "blocks"),
    "bytes of a block are negative": _block(0, 3, -5, kind="own-sizes", says="blocks"),
    "bytes of a block are huge": _block(0, 3, BIG, kind="own-sizes", says="blocks"),
    "bytes of blocks are another's": Fault(
        "own-sizes",
        lambda d: (
            d.blocks[0].__setitem__(3, d.blocks[0][3] - 24),
            d.blocks[1].__setitem__(3, d.blocks[1][3] + 24),
            d.seal_blocks(),
        ),
        "verify",
    ),
    "the table of blocks is no table": _second_block_table("\n    {}"),
    "the table of blocks has one endless line": _second_block_table("\n    [" + "9" * 1_000_000 + "]"),
    "a block of holes of 1.4 GB": Fault("own-sizes", _wide_block, "verify"),
    # values of rows
    "a target of 3 classes is 3": _patch(TARGETS, "q", 5, 3),
    "a target is -2": _patch(TARGETS, "q", 5, -2),
    "a target is 2^28": _patch(TARGETS, "q", 5, 1 << 28),
    "a target is 2^62": _patch(TARGETS, "q", 5, 1 << 62),
    "a target is another's": _patch(TARGETS, "q", 5, 0),
    "a multi-hot target is 7": _patch(TARGETS, "B", 5, 7, kind="multi-hot"),
    "content is outside the row": _patch(CONTENT, "i", 6, SIDE + 1),
    "content is negative": _patch(CONTENT, "i", 4, -1),
    "content is empty": _patch(CONTENT, "i", 6, 0),
    "a class of a box is 3": _patch("_tensordict/extras/box_targets.memmap", "q", 4, 3, kind="boxes"),
    "a count of boxes is 2^31 - 1": _patch("_tensordict/extras/box_count.memmap", "i", 4, (1 << 31) - 1, kind="boxes"),
    "a count of boxes is negative": _patch("_tensordict/extras/box_count.memmap", "i", 4, -3, kind="boxes"),
    "a box is nowhere": _patch("_tensordict/extras/boxes.memmap", "f", 8, float("nan"), kind="boxes", says="harmless"),
    "a box is turned round": _patch("_tensordict/extras/boxes.memmap", "f", 8, 1e30, kind="boxes", says="harmless"),
    "a shape has a side of 0": _patch(SHAPES, "i", 9, 0, kind="own-sizes"),
    "a shape has a negative side": _patch(SHAPES, "i", 9, -4, kind="own-sizes"),
    "a shape exceeds its block": _patch(SHAPES, "i", 9, 1 << 20, kind="own-sizes"),
    "a shape overflows": Fault(
        "own-sizes", lambda d: [d.patch(SHAPES, "i", 9 + n, (1 << 31) - 1) for n in range(3)], "verify"
    ),
    "a shape has 4 channels": _patch(SHAPES, "i", 11, 4, kind="own-sizes"),
    "an offset is negative": _patch(OFFSETS, "q", 3, -8, kind="own-sizes"),
    "an offset is 2^62": _patch(OFFSETS, "q", 3, 1 << 62, kind="own-sizes"),
    "an offset is another row's": _patch(OFFSETS, "q", 3, 0, kind="own-sizes"),
    "a mask is elsewhere": _patch(MASK_OFFSETS, "q", 3, 0, kind="own-masks"),
    "height is not that of any row": _set("height", 9, kind="own-sizes", says="verify"),
    "a text begins before the file": _patch(_CAPTION, "q", 6, -1, kind="texts"),
    "a text begins behind the file": _patch(_CAPTION, "q", 6, 1 << 40, kind="texts"),
    "a text ends behind the file": _patch(_CAPTION, "q", 7, 1 << 40, kind="texts"),
    "a text ends at 2^63 - 1": _patch(_CAPTION, "q", 7, BIG, kind="texts"),
    "a text ends before it begins": _patch(_CAPTION, "q", 7, 0, kind="texts"),
    "two rows share a text": _patch(_CAPTION, "q", 6, 0, kind="texts"),
    "a text is larger than one may be": Fault("texts", _long_text, "verify"),
    "a text is no UTF-8": Fault("texts", lambda d: d.patch(TEXTS_FILE, "B", 3, 0xFF), "verify"),
    "a text ends amid a letter": _patch(_CAPTION, "q", 7, 27, kind="texts"),
    "there is something behind the texts": Fault(
        "texts", lambda d: d.write(TEXTS_FILE, d.read(TEXTS_FILE) + b"x"), "verify"
    ),
    "a text has escapes": Fault("texts", _escaped_text, "harmless"),
    # lines of text
    "a sample is no object": _lines(SAMPLES, b"[1]\n"),
    "a sample is no JSON": _lines(SAMPLES, b"\xff\xfe\n"),
    "a sample is nested deep": _lines(SAMPLES, b"[" * 100_000 + b"\n"),
    "a sample is missing": _lines(SAMPLES, b""),
    "a sample comes twice": Fault(
        "class", lambda d: d.write(SAMPLES, (d.out / SAMPLES).read_bytes() + b"{}\n"), "verify"
    ),
    "the last sample has no end": Fault(
        "class", lambda d: d.write(SAMPLES, (d.out / SAMPLES).read_bytes()[:-9]), "verify"
    ),
    "path of a sample is a number": _sample("path", 7),
    "path of a sample has escapes": _sample("path", EVIL, says="harmless"),
    "path of a sample is no UTF-8": _sample("path", "\udcff.jpg", says="harmless"),
    "target of a sample is a text": _sample("target", "cat"),
    "target of a sample is 9": _sample("target", 9),
    "target of a sample is nested": _sample("target", [[[1]]]),
    "sha256 of a sample is short": _sample("sha256", "ab"),
    "sha256 of a sample is a number": _sample("sha256", 7),
    "bytes of a sample are beyond 64 bits": _sample("bytes", 1 << 80),
    "width of a sample is a float": _sample("width", 1.5),
    "height of a sample is 0": _sample("height", 0),
    "warnings of a sample are a number": _sample("warnings", 3),
    "a reject is no object": _lines(REJECTED, b"5\n", number=0),
    "reason of a reject is a list": Fault(
        "class", lambda d: d.line(REJECTED, 0, lambda line: line | {"reason": [1]}), "verify"
    ),
    "line of a reject is a text": Fault(
        "class", lambda d: d.line(REJECTED, 0, lambda line: line | {"line": "x"}), "verify"
    ),
    "reason of a reject has escapes": Fault(
        "class", lambda d: d.line(REJECTED, 0, lambda line: line | {"reason": EVIL}), "harmless"
    ),
    # files
    "other.pickle beside": _after(lambda out: (out / "other.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")),
    "other.pickle in _tensordict": _after(
        lambda out: (out / "_tensordict/other.pickle").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    ),
    "other.pickle in extras": _after(lambda out: (out / "_tensordict/extras/other.pickle").write_bytes(b"")),
    "an unlisted folder in _tensordict": _after(lambda out: (out / "_tensordict" / EVIL).mkdir()),
    "a pickled file beside": _after(lambda out: (out / "model.pkl").write_bytes(b""), says="verify"),
    "a contact sheet beside": _after(lambda out: (out / "sheet.png").write_bytes(b""), says="harmless"),
    "a pipe as manifest.json": _after(_pipe("manifest.json")),
    "a pipe as samples.jsonl": _after(_pipe(SAMPLES)),
    "a pipe as pixels": _after(_pipe(PIXELS)),
    "manifest.json is a folder": _after(
        lambda out: ((out / "manifest.json").unlink(), (out / "manifest.json").mkdir())
    ),
    "manifest.json is of holes": _after(lambda out: os.truncate(out / "manifest.json", 1 << 42)),
    "manifest.json is empty": _after(lambda out: os.truncate(out / "manifest.json", 0)),
}
if HAS_FRAMES:
    from tests.hostile._frame_faults import FRAME_FAULTS
    from tests.hostile._jpegs import JPEG_FAULTS

    FAULTS |= FRAME_FAULTS | JPEG_FAULTS


def make_faulty(valid: Path, out: Path, name: str) -> Path:
    """Write the hostile store of a fault, from one of the stores in `valid`."""
    fault = FAULTS[name]
    draft = Draft.copy(valid / fault.kind, out)
    fault.change(draft)
    fault.after(draft.seal())
    return out
