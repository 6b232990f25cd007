"""Valid stores that are changed and sealed again: sizes, checksums and digests are right, as a stranger would make them.

Knows how a store is sealed; not what its fields mean.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reader.format.check import metadata_files
from reader.format.manifest import PIXELS, SAMPLES, manifest_of

FRAMES = "_tensordict/frames.memmap"
# read into memory to be sealed; larger files are sparse, and keep the digest that they were given
_MOST_SEALED_BYTES = 64 << 20
_ROW_CHECKSUM_BYTES = 4


class Draft:
    """A copy of a store: the head and the blocks of its manifest as JSON, and its folder.

    Attributes:
        kept: files whose size and digest stay as the head says.
        table: the text in place of the lines of blocks, if any.
    """

    def __init__(self, base: Path, out: Path) -> None:
        shutil.copytree(base, out)
        self.out, self.kept, self.table = out, set[str](), ""
        self.head: dict[str, Any] = json.loads(self.read("manifest.json"))
        self.blocks: list[Any] = self.head.pop("blocks")
        self.head.pop("digest")

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return (self.out / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        """Put a file into the store."""
        (self.out / name).write_bytes(content)

    def put_number(self, name: str, code: str, index: int, value: Any) -> None:
        """Change one number of a tensor's file; code is struct's."""
        data = bytearray(self.read(name))
        struct.pack_into(f"<{code}", data, index * struct.calcsize(code), value)
        self.write(name, bytes(data))

    def put_lines(self, name: str, lines: Sequence[bytes]) -> None:
        """Write samples.jsonl or rejected.jsonl, and the offsets of blocks with it."""
        self.write(name, b"".join(lines))
        begins, row = [*itertools.accumulate(map(len, lines), initial=0)], 0
        for block in self.blocks if name == SAMPLES else ():
            block[2] = begins[min(row, len(lines))]
            row += block[0]

    def jpegs(self) -> list[bytes]:
        """Return the JPEG of each row, without its checksum."""
        pixels, spans = self.read(PIXELS), struct.iter_unpack("<2q", self.read(FRAMES))
        return [pixels[begin : end - _ROW_CHECKSUM_BYTES] for begin, end in spans]

    def put_jpegs(self, jpegs: Sequence[bytes]) -> None:
        """Put JPEGs in place of all rows, with the table and the blocks that they have."""
        rows = [jpeg + struct.pack("<I", zlib.crc32(jpeg)) for jpeg in jpegs]
        ends, row = [*itertools.accumulate(map(len, rows), initial=0)], 0
        self.write(PIXELS, b"".join(rows) + bytes(-ends[-1] % 4096))
        self.write(FRAMES, b"".join(struct.pack("<2q", *span) for span in itertools.pairwise(ends)))
        for block in self.blocks:
            block[3] = ends[row + block[0]] - ends[row]
            row += block[0]
        self.seal_blocks()

    def seal_blocks(self) -> None:
        """Make the checksums of blocks those of the bytes that are where the blocks say."""
        data, offset = self.read(PIXELS), 0
        for block in self.blocks:
            block[1] = zlib.crc32(data[offset : offset + block[3]])
            offset += block[3]

    def seal(self) -> Path:
        """Make sizes, meta.json and digests right again, as far as the head allows it; returns the store."""
        files = self.head["files"] if type(self.head.get("files")) is dict else {}
        sealed = {name: entry for name, entry in files.items() if name not in self.kept and type(entry) is dict}
        for name, entry in sealed.items():
            if (self.out / name).is_file():
                entry["size_bytes"] = (self.out / name).stat().st_size
        try:
            contents = metadata_files(manifest_of(self.head))
        except (ValueError, TypeError, KeyError, AttributeError):
            contents = {}
        for name, content in contents.items():
            self.write(name, content)
        for name, entry in sealed.items():
            if (self.out / name).is_file() and (self.out / name).stat().st_size <= _MOST_SEALED_BYTES:
                data = self.read(name)
                entry["size_bytes"] = len(data)
                is_pixels = name == PIXELS
                entry["digest"] = (
                    f"crc32:{zlib.crc32(data):08x}" if is_pixels else f"sha256:{hashlib.sha256(data).hexdigest()}"
                )
        lines = self.table or ",".join(f"\n    {json.dumps(block)}" for block in self.blocks)
        body = f'{json.dumps(self.head, indent=2)[:-2]},\n  "blocks": [{lines}\n  ]'.encode()
        self.write("manifest.json", with_digest(body))
        return self.out


def with_digest(body: bytes) -> bytes:
    """Return the bytes of a manifest.json: its body, and the digest of that."""
    return body + f',\n  "digest": "sha256:{hashlib.sha256(body).hexdigest()}"\n}}\n'.encode()
