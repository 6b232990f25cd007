"""Valid stores that are changed and sealed again: sizes, checksums and digests are correct, as from an attacker.

A change is a field, a place in a store, and the new value; GONE removes the old one:

    head/targets/kind            in the manifest, at any depth; %2f is a slash in a key
    blocks/0/1                   in the table of blocks; table: the text of all its lines
    files/samples.jsonl/digest   of a file, not made right again
    samples.jsonl/3/path         in a line, or all of the line
    targets.memmap/q/5           a number in a tensor; the letter is struct's
    jpegs/5                      a JPEG row: how it is encoded, or (behind which marker, how far, bytes removed, put there, times)
    after/samples.jsonl          a file or folder of the sealed store; the value is its size, or names a function below
    draft                        all of the store; the value names a function below
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import os
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from conftest import store_bytes
from PIL import Image

from reader.format.check import metadata_files
from reader.format.manifest import PIXELS, SAMPLES, manifest_of

FRAMES = "_tensordict/frames.memmap"
EVIL = "cat\x1b[2J\x07\x9b31m\u202eexe\n pack: done"
GONE = "(gone)"
# Who refuses a store: every reader and command; readers of the row, and `pack verify`; only `pack verify`; the same, for the
# table of blocks; nobody.
OPENING, ROWS, VERIFY, BLOCKS, NOBODY = "opening", "rows", "verify", "blocks", "nobody"
# words of the table that stand for longer values
_LONG = {"(evil)": EVIL, "(long)": "x" * 200_000, "(nines)": "9" * 10_000, "(deep)": "[" * 100_000}
_ROW_CHECKSUM_BYTES = 4


class Fault(NamedTuple):
    """One fault of a store of a kind of tests/laws/kinds.py; says: a part of the message."""

    who: str
    kind: str
    field: str
    value: Any
    says: str


def _faults() -> list[Fault]:
    text = Path(__file__).with_name("faults.jsonl").read_text(encoding="utf-8")
    for word, meant in _LONG.items():
        text = text.replace(word, json.dumps(meant)[1:-1])
    return [Fault(*json.loads(line)) for line in text.splitlines()]


class Draft:
    """A store in memory: the head and the blocks of its manifest as JSON, and its other files."""

    def __init__(self, base: Path) -> None:
        self.files = store_bytes(base)
        self.head: dict[str, Any] = json.loads(self.files.pop("manifest.json"))
        self.blocks: list[Any] = self.head.pop("blocks")
        self.head.pop("digest")
        self.table = ""
        # files whose size and digest in the head stay; (path, action) after all is written
        self._kept, self._after = set[str](), list[tuple[str, str | int]]()

    def put(self, field: str, value: Any) -> None:
        """Make a change."""
        place, _, rest = field.partition("/")
        if place == "after":
            self._after.append((rest, value))
        elif place == "draft":
            _OF_DRAFTS[value](self)
        elif place == "files":
            name, _, key = rest.rpartition("/")
            self._kept.add(name)
            self.head["files"][name][key] = value
        elif place in ("head", "blocks", "table"):
            _put(vars(self), field, value)
        elif place == "jpegs":
            jpegs = self.jpegs()
            jpegs[int(rest)] = _changed(jpegs[int(rest)], value)
            self._put_jpegs(jpegs)
        elif place.endswith(".jsonl"):
            self._put_line(place, *rest.split("/"), value=value)
        else:
            code, index = rest.split("/")
            (name,) = (name for name in self.files if name.endswith(f"/{place}"))
            data = bytearray(self.files[name])
            struct.pack_into(f"<{code}", data, int(index) * struct.calcsize(code), value)
            self.files[name] = bytes(data)

    def seal(self, out: Path) -> Path:
        """Write it with corrected sizes, meta.json and digests, as far as the head allows; returns out."""
        entries = self.head["files"] if type(self.head.get("files")) is dict else {}
        sealed = {name: entry for name, entry in entries.items() if name not in self._kept and type(entry) is dict}
        self._enter(sealed)
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            self.files |= metadata_files(manifest_of(self.head))
        self._enter(sealed)
        lines = self.table or ",".join(f"\n    {json.dumps(block)}" for block in self.blocks)
        body = f'{json.dumps(self.head, indent=2)[:-2]},\n  "blocks": [{lines}\n  ]'.encode()
        for name, data in (self.files | {"manifest.json": _with_digest(body)}).items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
        for name, what in self._after:
            # a missing file, or a folder, cannot be cut or linked; an empty one has no bit to flip
            with contextlib.suppress(OSError, IndexError):
                os.truncate(out / name, what) if isinstance(what, int) else _OF_FILES[what](out / name)
        return out

    def jpegs(self) -> list[bytes]:
        """Return the JPEG of each row, without its checksum."""
        spans = struct.iter_unpack("<2q", self.files[FRAMES])
        return [self.files[PIXELS][begin : end - _ROW_CHECKSUM_BYTES] for begin, end in spans]

    def seal_blocks(self) -> None:
        """Set the checksums of blocks to those of their bytes."""
        offset = 0
        for block in self.blocks:
            block[1] = zlib.crc32(self.files[PIXELS][offset : offset + block[3]])
            offset += block[3]

    def _put_jpegs(self, jpegs: Sequence[bytes]) -> None:
        """Replace all rows by JPEGs, with their table and blocks."""
        rows = [jpeg + struct.pack("<I", zlib.crc32(jpeg)) for jpeg in jpegs]
        ends, row = [*itertools.accumulate(map(len, rows), initial=0)], 0
        self.files[PIXELS] = b"".join(rows) + bytes(-ends[-1] % 4096)
        self.files[FRAMES] = b"".join(struct.pack("<2q", *span) for span in itertools.pairwise(ends))
        for block in self.blocks:
            block[3] = ends[row + block[0]] - ends[row]
            row += block[0]
        self.seal_blocks()

    def _put_line(self, name: str, number: str, *keys: str, value: Any) -> None:
        """Change a line, and the offsets of blocks with it."""
        lines = self.files[name].splitlines(keepends=True)
        if keys:
            line = json.loads(lines[int(number)])
            _put(line, "/".join(keys), value)
            lines[int(number)] = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        else:
            lines[int(number)] = value.encode("latin-1")
        self.files[name] = b"".join(lines)
        begins, row = [*itertools.accumulate(map(len, lines), initial=0)], 0
        for block in self.blocks if name == SAMPLES else ():
            block[2] = begins[row]
            row += block[0]

    def _enter(self, sealed: dict[str, dict[str, Any]]) -> None:
        """Record the current sizes and digests of the files."""
        for name, entry in sealed.items():
            if (data := self.files.get(name)) is not None:
                is_pixels = name == PIXELS
                digest = f"crc32:{zlib.crc32(data):08x}" if is_pixels else f"sha256:{hashlib.sha256(data).hexdigest()}"
                entry.update(size_bytes=len(data), digest=digest)


def _put(container: Any, keys: str, value: Any) -> None:
    """Put a value at a place of a JSON value, or remove the one there."""
    *outer, last = (int(key) if key.isdigit() else key.replace("%2f", "/") for key in keys.split("/"))
    for key in outer:
        container = container[key]
    if value == GONE:
        del container[last]
    else:
        container[last] = value


def _with_digest(body: bytes) -> bytes:
    """Return the bytes of a manifest.json: its body, and the digest of that."""
    return body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()


def _changed(jpeg: bytes, change: dict[str, Any] | list[Any]) -> bytes:
    """Encode a new JPEG of the same size, or wider; or change some of its bytes."""
    if isinstance(change, dict):
        with Image.open(io.BytesIO(jpeg)) as image:
            size = image.width + change.get("wider", 0), image.height
        written = io.BytesIO()
        options = {"subsampling": 0, "quality": 95} | change
        Image.new(change.get("mode", "RGB"), size).save(written, "JPEG", **options)
        return written.getvalue()
    marker, offset, removed, put, times = change
    start = jpeg.index(bytes.fromhex(marker)) + offset
    return jpeg[:start] + bytes.fromhex(put) * times + (b"" if removed is None else jpeg[start + removed :])


# -- what is done to a file of a sealed store


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def pickled(path: Path) -> None:
    path.write_bytes(b"cos\nsystem\n(S'true'\ntR.")


def link(path: Path) -> None:
    path.rename(path.with_name(f"{path.name}.elsewhere"))
    path.symlink_to(path.with_name(f"{path.name}.elsewhere"))


def flipped(path: Path) -> None:
    """Flip a bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def key_twice(path: Path) -> None:
    """Write a key twice, digest right."""
    body = path.read_bytes().rpartition(b',\n  "digest"')[0]
    path.write_bytes(_with_digest(body.replace(b'  "rows"', b'  "rows": 13,\n  "rows"', 1)))


_OF_FILES = {call.__name__: call for call in (pipe, folder, pickled, link, flipped, key_twice)}


# -- what is done to a draft


def wide_block(draft: Draft) -> None:
    """Declare a block of more than a GB of holes, which take a few kB on disk."""
    size_bytes = 1_400 << 20
    draft.blocks[-1][3] = size_bytes - sum(block[3] for block in draft.blocks[:-1])
    for key, value in (("size_bytes", size_bytes), ("digest", f"crc32:{1:08x}")):
        draft.put(f"files/{PIXELS}/{key}", value)
    draft.put(f"after/{PIXELS}", size_bytes)


def bytes_of_another_block(draft: Draft) -> None:
    draft.blocks[0][3] -= 24
    draft.blocks[1][3] += 24
    draft.seal_blocks()


_OF_DRAFTS = {call.__name__: call for call in (wide_block, bytes_of_another_block)}

FAULTS = _faults()


def make_faulty(base: Path, out: Path, fault: Fault) -> Path:
    """Write the hostile store of a fault; base is a valid one of its kind."""
    draft = Draft(base)
    draft.put(fault.field, fault.value)
    return draft.seal(out)
