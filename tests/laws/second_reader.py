"""A reader of valid stores, written only from the page of the format: knows nothing about `reader`.

Reads with numpy and the standard library, and JPEGs with libturbojpeg, as in packer.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from packer.pixels.pillow import decoded_jpeg

TARGETS = {"class": "int64", "regression": "float32", "multi-hot": "float32"}
PIXELS = "_tensordict/pixels.memmap"


class Store:
    """A store; head is the manifest's, tensors: name -> dtype, and shape of a row."""

    def __init__(self, root: Path) -> None:
        self.root = root
        raw = (root / "manifest.json").read_bytes()
        digest = hashlib.sha256(raw[:-90]).hexdigest()
        assert raw[-90:] == f',\n  "digest": "sha256:{digest}"\n}}\n'.encode()
        head, _, blocks = raw[:-90].partition(b',\n  "blocks": [')
        self.head = head = json.loads(head + b"}")
        assert (head["format"], head["version"]) == ("pixpack", [1, 0])
        self.rows, self.channels, self.masks = head["rows"], head["channels"], head["own_masks"]
        self.sides, self.jpeg = (head["height"], head["width"]), head["jpeg"]
        self.tensors = self._tensors()
        self._check_files()
        self._check_blocks(json.loads(b"[" + blocks))

    def _tensors(self) -> dict[str, tuple[str, list[int]]]:
        """Return the arrays of the store, except pixels."""
        head, targets = self.head, self.head["targets"]
        tensors = {"targets": (TARGETS[targets["kind"]], [] if targets["count"] is None else [targets["count"]])}
        tensors |= {"content": ("int32", [4])} if head["content"] else {}
        tensors |= {"offsets": ("int64", []), "shapes": ("int32", [3])} if head["own_sizes"] else {}
        tensors |= {"mask_offsets": ("int64", [])} if self.masks else {}
        tensors |= {"frames": ("int64", [2])} if self.jpeg else {}
        return tensors | {f"extras/{name}": (one["dtype"], one["shape"]) for name, one in head["extras"].items()}

    def _check_files(self) -> None:
        metas = ["meta.json", "_tensordict/meta.json"] + ["_tensordict/extras/meta.json"] * bool(self.head["extras"])
        arrays = [PIXELS, *(f"_tensordict/{name}.memmap" for name in self.tensors)]
        assert [*self.head["files"]] == sorted([*arrays, *metas, "samples.jsonl", "rejected.jsonl"])
        for name, entry in self.head["files"].items():
            data = (self.root / name).read_bytes()
            digest = f"crc32:{zlib.crc32(data):08x}" if name == PIXELS else f"sha256:{hashlib.sha256(data).hexdigest()}"
            assert entry == {"size_bytes": len(data), "digest": digest}

    def _check_blocks(self, blocks: list[list[int]]) -> None:
        pixels, lines = (self.root / PIXELS).read_bytes(), (self.root / "samples.jsonl").read_bytes()
        row = begin = 0
        for rows, crc, offset, size in blocks:
            assert crc == zlib.crc32(pixels[begin : begin + size])
            assert lines[:offset].count(b"\n") == row
            row, begin = row + rows, begin + size
        assert row == self.rows == lines.count(b"\n")
        assert not any(pixels[begin:])

    def row(self, number: int) -> dict[str, np.ndarray]:
        """Return the content of a row by tensor name, with pixels and masks as packed."""
        row = {name: self._array(name)[number] for name in self.tensors}
        (height, width), begin = self.sides, number * math.prod(self.sides) * self.channels
        if self.head["own_sizes"]:
            height, width, _ = map(int, row.pop("shapes"))
            begin = int(row.pop("offsets"))
        size = height * width * self.channels
        if self.masks:
            row["masks"] = self._bytes(int(row.pop("mask_offsets")), height * width).reshape(height, width)
        if self.jpeg:
            frame_begin, frame_end = map(int, row.pop("frames"))
            frame = self._bytes(frame_begin, frame_end - frame_begin).tobytes()
            assert struct.pack("<I", zlib.crc32(frame[:-4])) == frame[-4:]
            row["pixels"] = decoded_jpeg(frame[:-4], width, height)[:, :, : self.channels]
        else:
            row["pixels"] = self._bytes(begin, size).reshape(height, width, self.channels)
        return row

    def _array(self, name: str) -> np.ndarray:
        dtype, shape = self.tensors[name]
        return np.fromfile(self.root / f"_tensordict/{name}.memmap", dtype).reshape(self.rows, *shape)

    def _bytes(self, begin: int, count: int) -> np.ndarray:
        return np.fromfile(self.root / PIXELS, np.uint8, count, offset=begin)
