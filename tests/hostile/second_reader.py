"""A reader of stores written from the page of the format alone: knows nothing of ours, and refuses what it names, by any error.

Reads with numpy and the standard library, and JPEGs with libturbojpeg, as packer calls it.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from packer.pixels.pictures import decoded_jpeg

INT31, INT63 = 1 << 31, 1 << 63
DTYPES = {name: np.dtype(name).itemsize for name in ("uint8", "bool", "int32", "float32", "int64", "float64")}
TARGETS = {"class": "int64", "regression": "float32", "multi-hot": "float32"}
# key of the head -> the type of its value
TYPES: dict[str, type] = dict.fromkeys(("rows", "height", "width", "channels", "inputs", "rejected"), int)
TYPES |= dict.fromkeys(("own_sizes", "own_masks", "content"), bool)
TYPES |= dict.fromkeys(("targets", "extras", "labels", "options", "decoders", "files"), dict)
TYPES |= dict.fromkeys(("classes", "mask_values", "mean", "std"), list)
BLOCK = re.compile(r"    \[(\d{1,19}), (\d{1,10}), (\d{1,19}), (\d{1,19})\]")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
PIXELS, SAMPLES = "_tensordict/pixels.memmap", "samples.jsonl"


def integer(value: Any, least: int = 0, stop: int = INT63) -> int:
    """Return an integer in range."""
    assert type(value) is int
    assert least <= value < stop
    return value


def is_plain(value: Any, levels: int = 0) -> bool:
    """Return whether these are plain values, so many levels deep at most."""
    if type(value) in (dict, list):
        return levels > 0 and all(is_plain(v, levels - 1) for v in (value.values() if type(value) is dict else value))
    return value is None or type(value) in (bool, str) or is_number(value)


def is_number(value: Any) -> bool:
    """Return whether it is a finite number, as the page means it."""
    return type(value) in (int, float) and abs(value) < 10**300


class Store:
    """A store that passed the checks before mapping; head is the manifest's, tensors: name -> dtype, and shape of a row."""

    def __init__(self, root: Path) -> None:
        self.root = root
        raw = read_regular(root / "manifest.json", 1 << 30)
        digest = hashlib.sha256(raw[:-90]).hexdigest()
        assert raw[-90:] == f',\n  "digest": "sha256:{digest}"\n}}\n'.encode()
        head, found, self._blocks = raw[:-90].partition(b',\n  "blocks": [')
        assert found
        assert len(head) <= 128 << 20
        # int takes neither NaN nor infinities
        self.head = json.loads(head + b"}", object_pairs_hook=once, parse_constant=int)
        self._check_values()
        self._find_tensors()
        self._check_files()

    def _check_values(self) -> None:
        head = self.head
        # 1 == True, and not in its form
        assert (head["format"], repr(head["version"])) == ("pixpack", "[1, 0]")
        assert all(type(head[key]) is kind for key, kind in TYPES.items())
        self.rows, self.channels, self.classes = integer(head["rows"], 1), head["channels"], head["classes"]
        self.own, self.masks, self.jpeg = head["own_sizes"], head["own_masks"], head["jpeg"]
        self.is_flat = self.own or self.jpeg is not None
        self.sides = integer(head["height"], 1, INT31), integer(head["width"], 1, INT31)
        assert self.channels in (1, 3, 4)
        assert all(len(head[name]) == self.channels and all(map(is_number, head[name])) for name in ("mean", "std"))
        assert integer(head["inputs"], 1) == self.rows + integer(head["rejected"])
        assert not (head["content"] and self.own)
        assert not self.masks or (self.own and "masks" not in head["extras"])
        assert head["mask_values"] == sorted({integer(one, 0, 256) for one in head["mask_values"]})
        assert not head["mask_values"] or self.masks or "masks" in head["extras"]
        assert is_plain(head["options"], 8)
        assert is_plain(head["labels"], 8)
        assert all(type(one) is dict and all(map(is_plain, one.values())) for one in head["decoders"].values())
        assert all(type(name) is str for name in self.classes)
        if self.jpeg is not None:
            assert not self.masks
            assert self.channels != 4
            self.pixel_bytes = integer(self.jpeg["pixel_bytes"], 1)
            assert self.own or self.pixel_bytes == self.rows * math.prod(self.sides) * self.channels
            integer(self.jpeg["quality"], 1, 101)
            integer(self.jpeg["squared_error"], 0, 65_025 * self.pixel_bytes + 1)

    def _find_tensors(self) -> None:
        """Check targets and extras, which say what tensors there are."""
        head, kind, count = self.head, self.head["targets"]["kind"], self.head["targets"]["count"]
        assert count is None if kind == "class" else integer(count, 1, (1 << 24) + 1)
        assert kind != "multi-hot" or len(self.classes) in (0, count)
        self.tensors = {"pixels": ("uint8", [] if self.is_flat else [*self.sides, self.channels])}
        self.tensors["targets"] = (TARGETS[kind], [] if count is None else [count])
        self.tensors |= {"content": ("int32", [4])} if head["content"] else {}
        self.tensors |= {"offsets": ("int64", []), "shapes": ("int32", [3])} if self.own else {}
        self.tensors |= {"mask_offsets": ("int64", [])} if self.masks else {}
        self.tensors |= {"frames": ("int64", [2])} if self.jpeg is not None else {}
        for name, extra in sorted(head["extras"].items()):
            assert NAME.fullmatch(name)
            assert extra["dtype"] in DTYPES
            assert type(extra["shape"]) is list
            assert len(extra["shape"]) <= 30
            self.tensors[f"extras/{name}"] = extra["dtype"], [integer(side, 0, INT31) for side in extra["shape"]]

    def _check_files(self) -> None:
        files, metas = self.head["files"], self._metas()
        assert {*files} == {*map(_path, self.tensors), *metas, SAMPLES, "rejected.jsonl"}
        for name, entry in files.items():
            assert re.fullmatch(r"crc32:[0-9a-f]{8}" if name == PIXELS else r"sha256:[0-9a-f]{64}", entry["digest"])
            found = os.lstat(self.root / name)
            assert stat.S_ISREG(found.st_mode)
            assert found.st_size == integer(entry["size_bytes"])
        self.flat_bytes = files[PIXELS]["size_bytes"]
        for name, (dtype, shape) in self.tensors.items():
            is_flat = name == "pixels" and self.is_flat
            count = self.flat_bytes if is_flat else self.rows
            assert math.prod(max(1, side) for side in (count, *shape)) * DTYPES[dtype] < INT63
            assert files[_path(name)]["size_bytes"] == count * math.prod(shape) * DTYPES[dtype]
            assert not is_flat or (count % 4096 == 0 and count >= self.rows)
        assert self.jpeg is None or self.pixel_bytes < 256 * (self.flat_bytes + 1)
        assert all(read_regular(self.root / name, 1 << 20) == content for name, content in metas.items())
        assert not os.path.lexists(self.root / "other.pickle")
        for folder in ("_tensordict", "_tensordict/extras") if self.head["extras"] else ("_tensordict",):
            assert stat.S_ISDIR(os.lstat(self.root / folder).st_mode)
            names = {f"{folder}/{name}" for name in os.listdir(self.root / folder) if name[0] != "."}
            assert names <= {*files, "_tensordict/extras"}

    def _metas(self) -> dict[str, bytes]:
        """Return each meta.json as the manifest implies it."""
        kind = "ImageBatch" if not self.is_flat else "RaggedBatch" if self.jpeg is None else "CompressedRows"
        end = {"device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1}
        end |= {"_class": "tensordict:TensorDict"}
        tops, extras = dict[str, Any](), dict[str, Any]()
        for name, (dtype, shape) in self.tensors.items():
            is_flat = name == "pixels" and self.is_flat
            count = self.head["files"][PIXELS]["size_bytes"] if is_flat else self.rows
            entry = {"device": "cpu", "shape": [count, *shape], "dtype": f"torch.{dtype}", "is_nested": False}
            (extras if "/" in name else tops)[name.removeprefix("extras/")] = entry
        tops |= {"extras": {"type": "TensorDict"}} if extras else {}
        metas: dict[str, Any] = {"meta.json": {"_type": f"<class 'reader.store.{kind}'>"}}
        metas["_tensordict/meta.json"] = tops | {"shape": [] if self.is_flat else [self.rows]} | end
        if extras:
            metas["_tensordict/extras/meta.json"] = extras | {"shape": [self.rows]} | end
        return {name: json.dumps(content).encode() for name, content in metas.items()}

    def blocks(self) -> list[list[int]]:
        """Return the blocks."""
        text = self._blocks.decode("ascii")
        assert text[0] + text[-4:] == "\n\n  ]"
        found, least, row, used = list[list[int]](), 0, 0, 0
        for line in text[1:-4].split(",\n"):
            rows, crc, offset, size = map(int, BLOCK.fullmatch(line).groups())  # type: ignore[union-attr]
            assert 0 < rows <= self.rows - row
            assert crc < 1 << 32
            assert least <= offset < (self.head["files"][SAMPLES]["size_bytes"] if found else 1)
            assert rows <= size <= self.flat_bytes - used
            assert self.is_flat or size == rows * math.prod(self.sides) * self.channels
            found.append([rows, crc, offset, size])
            least, row, used = offset + 3 * rows, row + rows, used + size
        assert row == self.rows
        assert self.flat_bytes - used < (4096 if self.is_flat else 1)
        return found

    def row(self, number: int) -> dict[str, np.ndarray]:
        """Return what a row holds by the names of tensors, pixels and masks as they were packed; all numbers are checked."""
        row = {name: self._array(name)[number] for name in self.tensors if name != "pixels"}
        self._check_numbers(row)
        (height, width), begin = self.sides, number * math.prod(self.sides) * self.channels
        if self.own:
            height, width, channels = map(int, row.pop("shapes"))
            assert 0 < height <= self.sides[0]
            assert 0 < width <= self.sides[1]
            assert channels == self.channels
            begin = int(row.pop("offsets"))
        size = height * width * self.channels
        total = self.flat_bytes if self.jpeg is None else self.pixel_bytes
        assert 0 <= begin <= total - size - height * width * self.masks
        if self.masks:
            assert row.pop("mask_offsets") == begin + size
            row["masks"] = self._bytes(begin + size, height * width).reshape(height, width)
        if self.jpeg is None:
            row["pixels"] = self._bytes(begin, size).reshape(height, width, self.channels)
        else:
            row["pixels"] = self._decoded(*map(int, row.pop("frames")), height, width)
        return row

    def _check_numbers(self, row: dict[str, np.ndarray]) -> None:
        kind, count = self.head["targets"]["kind"], len(self.classes)
        least, stop = {"class": (-1, count), "multi-hot": (0, 2), "regression": (-math.inf, math.inf)}[kind]
        assert kind == "regression" or ((least <= row["targets"]) & (row["targets"] < stop)).all()
        if self.head["content"]:
            top, left, bottom, right = row["content"]
            assert 0 <= top < bottom <= self.sides[0]
            assert 0 <= left < right <= self.sides[1]
        boxes = [self.tensors.get(f"extras/{name}") for name in ("boxes", "box_targets", "box_count")]
        slots = boxes[0][1][0] if boxes[0] and boxes[0][1] else 0
        if boxes == [("float32", [slots, 4]), ("int64", [slots]), ("int32", [])]:
            assert 0 <= row["extras/box_count"] <= slots
            targets = row["extras/box_targets"]
            assert ((targets >= -1) & (targets < (count or INT31))).all()

    def _decoded(self, begin: int, end: int, height: int, width: int) -> np.ndarray:
        size, channels = height * width * self.channels, self.channels
        assert 0 <= begin < end <= self.flat_bytes
        assert size // 256 <= end - begin <= 4 * size + 4096
        frame = self._bytes(begin, end - begin).tobytes()
        data = frame[:-4]
        assert struct.pack("<I", zlib.crc32(data)) == frame[-4:]
        assert data[:2] + data[-2:] == b"\xff\xd8\xff\xd9"
        offset, headers = 2, []
        while (marker := data[offset : offset + 2]) != b"\xff\xda":
            length = int.from_bytes(data[offset + 2 : offset + 4], "big")
            assert marker in (b"\xff\xe0", b"\xff\xdb", b"\xff\xc4", b"\xff\xc0")
            assert length >= 2
            headers += [data[offset + 4 : offset + 2 + length]] if marker == b"\xff\xc0" else []
            offset += 2 + length
        assert data[offset + 4] == channels
        scan = data[offset + 2 + int.from_bytes(data[offset + 2 : offset + 4], "big") : -2]
        assert scan.count(b"\xff") == scan.count(b"\xff\0")
        (header,) = headers
        assert len(header) == 6 + 3 * channels
        assert header[:6] == struct.pack(">BHHB", 8, height, width, channels)
        assert {*zip(header[6::3], header[7::3], strict=True)} == {(n, 0x11) for n in range(1, channels + 1)}
        return decoded_jpeg(data, width, height)[:, :, :channels]

    def _array(self, name: str) -> np.ndarray:
        dtype, shape = self.tensors[name]
        return np.fromfile(self.root / _path(name), dtype).reshape(self.rows, *shape)

    def _bytes(self, begin: int, count: int) -> np.ndarray:
        return np.fromfile(self.root / PIXELS, np.uint8, count, offset=begin)


def _path(name: str) -> str:
    return f"_tensordict/{name}.memmap"


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file that is no link; a pipe is not waited for."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
        found = os.fstat(file.fileno())
        assert stat.S_ISREG(found.st_mode)
        assert found.st_size <= most_bytes
        return file.read()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that comes twice."""
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)
