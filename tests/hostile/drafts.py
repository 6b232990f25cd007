"""Valid stores that are changed and sealed again: sizes, checksums and digests are correct, as from an attacker.

A change is a field, a place in a store, and the new value; GONE removes the old one:

    head/targets/kind      in the manifest, at any depth; %2f is a slash in a key; changes of head/files are made last
    blocks/0/1             in the table of blocks; text: more text of the manifest
    samples.jsonl/3/path   in a line, or the whole line: a string is its text
    targets.memmap/q/5     a number in a tensor; the letter is struct's
    jpegs/5                in a JPEG row: a marker, the distance behind it, how many bytes are removed, the inserted bytes
    after/samples.jsonl    a file of the sealed store: its size, its text, "pipe" or "folder"
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conftest import store_bytes

from reader.format.check import metadata_files
from reader.format.manifest import PIXELS, REJECTED, SAMPLES, manifest_of

FRAMES = "_tensordict/frames.memmap"
EVIL = "cat\x1b[2J\x07\x9b31m\u202eexe\n pack: done"
PICKLE = "cos\nsystem\n(S'true'\ntR."
GONE = "(gone)"
# words of the table that stand for others
_WORDS = {"(evil)": EVIL, "(pickle)": PICKLE, "(long)": "x" * 200_000, "(deep)": "[" * 100_000}
_ROW_CHECKSUM_BYTES = 4


def read_faults() -> list[tuple[str, str, dict[str, Any], str]]:
    """Read the table of faults.

    Returns:
        (who refuses the store, its kind of tests/laws/kinds.py, its changes, a part of the message). Who: "opening", every
        reader and command; "rows", readers of the row, and `pack verify`; "verify", `pack verify` alone; "blocks", `pack
        verify`, and readers of a URL; "nobody".
    """
    text = Path(__file__).with_name("faults.jsonl").read_text(encoding="utf-8")
    for word, meant in _WORDS.items():
        text = text.replace(word, json.dumps(meant)[1:-1])
    return [tuple(json.loads(line)) for line in text.splitlines()]


def make_store(base: Path, out: Path, changes: Mapping[str, Any]) -> Path:
    """Write a valid store with these changes; a change that no longer applies after another is left out."""
    draft = Draft(base)
    for field, value in changes.items():
        with contextlib.suppress(Exception):
            draft.put(field, value)
    return draft.seal(out)


class Draft:
    """A store in memory: its files, and the content that changes are put in, by their first word."""

    def __init__(self, base: Path) -> None:
        self.files = store_bytes(base)
        head = json.loads(self.files.pop("manifest.json"))
        del head["digest"]
        self.content: dict[str, Any] = {"blocks": head.pop("blocks"), "head": head, "text": ""}
        for name in (SAMPLES, REJECTED):
            self.content[name] = [*map(json.loads, self.files[name].splitlines())]
        if FRAMES in self.files:
            spans = struct.iter_unpack("<2q", self.files[FRAMES])
            self.content["jpegs"] = [self.files[PIXELS][begin : end - _ROW_CHECKSUM_BYTES] for begin, end in spans]
        # changes after sizes and digests are right
        self._late = list[tuple[str, Any]]()

    def put(self, field: str, value: Any) -> None:
        """Make a change, and correct the values that depend on it."""
        place, _, rest = field.partition("/")
        if place == "after" or field.startswith("head/files/"):
            self._late.append((field, value))
        elif place in self.content:
            _put(self.content, field, value)
            if place in (SAMPLES, REJECTED):
                self._put_lines(place)
            elif place == "jpegs":
                self._put_jpegs()
            elif place == "blocks" and field.endswith("/3"):
                self._seal_blocks()
        else:
            code, index = rest.split("/")
            (name,) = (name for name in self.files if name.endswith(f"/{place}"))
            data = bytearray(self.files[name])
            struct.pack_into(f"<{code}", data, int(index) * struct.calcsize(code), value)
            self.files[name] = bytes(data)

    def seal(self, out: Path) -> Path:
        """Write it with corrected sizes, meta.json and digests, as far as the head allows; returns out."""
        head = self.content["head"]
        # meta.json holds sizes of files, and is one of them
        for _ in range(2):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                self.files |= metadata_files(manifest_of(head))
            for name, data in self.files.items():
                digest = (
                    f"crc32:{zlib.crc32(data):08x}" if name == PIXELS else f"sha256:{hashlib.sha256(data).hexdigest()}"
                )
                with contextlib.suppress(KeyError, TypeError):
                    head["files"][name] |= {"size_bytes": len(data), "digest": digest}
        for field, value in self._late:
            with contextlib.suppress(KeyError, TypeError):
                _put(self.content, field, value)
        lines = ",".join(f"\n    {json.dumps(block)}" for block in self.content["blocks"])
        body = f'{json.dumps(head, indent=2)[:-2]}{self.content["text"]},\n  "blocks": [{lines}\n  ]'.encode()
        manifest = body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
        for name, data in (self.files | {"manifest.json": manifest}).items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_bytes(data)
        for field, value in self._late:
            # a missing file, or a folder, cannot be cut
            with contextlib.suppress(OSError):
                if field.startswith("after/"):
                    _make_file(out / field.removeprefix("after/"), value)
        return out

    def _put_lines(self, name: str) -> None:
        lines = [
            line.encode("latin-1")
            if isinstance(line, str)
            else json.dumps(line, separators=(",", ":")).encode() + b"\n"
            for line in self.content[name]
        ]
        self.files[name] = b"".join(lines)
        begins, row = [*itertools.accumulate(map(len, lines), initial=0)], 0
        for block in self.content["blocks"] if name == SAMPLES else ():
            block[2] = begins[row]
            row += block[0]

    def _put_jpegs(self) -> None:
        """Replace all rows by the JPEGs, with their table and blocks."""
        rows = [jpeg + struct.pack("<I", zlib.crc32(jpeg)) for jpeg in self.content["jpegs"]]
        ends, row = [*itertools.accumulate(map(len, rows), initial=0)], 0
        self.files[PIXELS] = b"".join(rows) + bytes(-ends[-1] % 4096)
        self.files[FRAMES] = b"".join(struct.pack("<2q", *span) for span in itertools.pairwise(ends))
        for block in self.content["blocks"]:
            block[3] = ends[row + block[0]] - ends[row]
            row += block[0]
        self._seal_blocks()

    def _seal_blocks(self) -> None:
        """Set the checksums of blocks to those of their bytes."""
        offset = 0
        for block in self.content["blocks"]:
            block[1] = zlib.crc32(self.files[PIXELS][offset : offset + block[3]])
            offset += block[3]


def _put(container: Any, keys: str, value: Any) -> None:
    """Put a value at a place of a JSON value, or remove the one there; of bytes, replace a part."""
    *outer, last = (int(key) if key.isdigit() else key.replace("%2f", "/") for key in keys.split("/"))
    for key in outer:
        container = container[key]
    if value == GONE:
        del container[last]
    elif isinstance(container, list) and isinstance(container[last], bytes):
        (marker, offset, removed, put), data = value, container[last]
        start = data.index(bytes.fromhex(marker)) + offset
        container[last] = data[:start] + bytes.fromhex(put) + (b"" if removed is None else data[start + removed :])
    else:
        container[last] = value


def _make_file(path: Path, what: str | int) -> None:
    if isinstance(what, int):
        os.truncate(path, what)
        return
    path.unlink(missing_ok=True)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.write_text(what)
