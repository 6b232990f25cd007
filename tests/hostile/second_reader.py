"""A reader of stores written from the pages of the format alone: knows nothing of ours, and refuses what they name.

Reads with the standard library, and JPEGs with libturbojpeg, as packer calls it.
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
from typing import Any, NoReturn

from packer.errors import JpegError
from packer.pixels.formats import turbojpeg

INT31, INT63 = 1 << 31, 1 << 63
ITEMS = {
    "uint8": (1, "B"),
    "bool": (1, "?"),
    "int32": (4, "i"),
    "float32": (4, "f"),
    "int64": (8, "q"),
    "float64": (8, "d"),
}
TARGETS = {"class": "int64", "regression": "float32", "multi-hot": "float32"}
DIGEST = re.compile(rb',\n  "digest": "sha256:([0-9a-f]{64})"\n}\n')
BLOCK = re.compile(r"\[(\d{1,19}), (\d{1,10}), (\d{1,19}), (\d{1,19})\]")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


class Refused(ValueError):
    """A store fails a check of the page."""


def need(holds: object, what: str) -> None:
    """Refuse unless it holds."""
    if not holds:
        raise Refused(what)


def integer(value: Any, least: int = 0, stop: int = INT63) -> int:
    """Return an integer in range."""
    need(type(value) is int and least <= value < stop, f"{value!r:.50} is no integer from {least}")
    return int(value)


def number(value: Any) -> bool:
    """Return whether it is a finite number, as the page means it."""
    return type(value) in (int, float) and abs(value) < 10**300


def texts(value: Any) -> list[str]:
    """Return a list of strings."""
    need(type(value) is list and all(type(each) is str for each in value), "expected strings")
    return list(value)


def plain(value: Any, levels: int) -> bool:
    """Return whether these are plain values, so many levels deep at most."""
    if type(value) in (dict, list):
        return levels > 0 and all(plain(v, levels - 1) for v in (value.values() if type(value) is dict else value))
    return value is None or type(value) in (bool, str) or number(value)


class Store:
    """A store that passed the checks before mapping; head is the manifest's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        raw = read_regular(root / "manifest.json", 1 << 30)
        line = DIGEST.fullmatch(raw[-90:])
        need(line and line[1].decode() == hashlib.sha256(raw[:-90]).hexdigest(), "the digest")
        head, found, self._blocks = raw[:-90].partition(b',\n  "blocks": [')
        need(found and len(head) <= 128 << 20, "the head")
        try:
            self.head = json.loads(head + b"}", object_pairs_hook=once, parse_constant=refuse_constant)
        except (ValueError, RecursionError):
            raise Refused("no JSON") from None
        need(type(self.head) is dict, "the head is no object")
        try:
            self._check_version()
            self._check_types()
            self._check_plain()
            self.tensors = self._tensors()
            self._check_targets()
            self._check_files()
            self._check_folders()
        except (KeyError, TypeError, AttributeError):
            raise Refused("a key is missing, or a value of another type") from None

    def _check_version(self) -> None:
        head = self.head
        need(head["format"] == "pixpack" and head["version"] == [1, 0], "the version")
        need(all(type(part) is int for part in head["version"]), "the version")
        self.own, self.masks = head["own_sizes"], head["own_masks"]
        need(type(self.own) is type(self.masks) is bool, "own_sizes and own_masks")
        self.jpegs = head["jpeg"] is not None
        need(not self.jpegs or (not self.masks and head["channels"] != 4), "jpeg")

    def _check_types(self) -> None:
        head = self.head
        self.rows, self.channels = integer(head["rows"], 1), integer(head["channels"])
        need(self.channels in (1, 3, 4), "channels")
        self.sides = integer(head["height"], 1, INT31), integer(head["width"], 1, INT31)
        self.kind, self.count = head["targets"]["kind"], head["targets"]["count"]
        need(type(self.kind) is str and self.kind in TARGETS, "the kind of targets")
        need(self.count is None if self.kind == "class" else 0 < integer(self.count) <= 1 << 24, "the count of targets")
        need(type(head["content"]) is bool and not (head["content"] and self.own), "content")
        for name in ("mean", "std"):
            need(type(head[name]) is list and len(head[name]) == self.channels and all(map(number, head[name])), name)
        need(integer(head["inputs"], 1) == self.rows + integer(head["rejected"]), "inputs")
        self.classes = texts(head["classes"])
        self.further = head["further_targets"]
        need(type(self.further) is type(head["extras"]) is type(head["files"]) is dict, "an object is none")
        need(not self.masks or (self.own and "masks" not in head["extras"]), "own-masks")
        found = head["mask_values"]
        need(type(found) is list and found == sorted({integer(one, 0, 256) for one in found}), "mask_values")
        need(not found or self.masks or "masks" in head["extras"], "mask_values")

    def _check_plain(self) -> None:
        head = self.head
        decoders = head["decoders"]
        need(all(type(head[key]) is dict and plain(head[key], 8) for key in ("options", "labels")), "plain values")
        need(type(decoders) is dict, "decoders")
        need(all(type(v) is dict and all(plain(x, 0) for x in v.values()) for v in decoders.values()), "decoders")
        if self.jpegs:
            self.pixel_bytes = integer(head["jpeg"]["pixel_bytes"], 1)
            integer(head["jpeg"]["quality"], 1, 101)
            need(integer(head["jpeg"]["squared_error"]) <= 65_025 * self.pixel_bytes, "squared_error")
            flat = self.rows * self.sides[0] * self.sides[1] * self.channels
            need(self.own or self.pixel_bytes == flat, "the bytes of pixels")

    def _tensors(self) -> dict[str, tuple[str, list[int]]]:
        flat = self.own or self.jpegs
        found = {"pixels": ("uint8", [] if flat else [*self.sides, self.channels])}
        found["targets"] = (TARGETS[self.kind], [] if self.count is None else [self.count])
        found |= {"content": ("int32", [4])} if self.head["content"] else {}
        found |= {"offsets": ("int64", []), "shapes": ("int32", [3])} if self.own else {}
        found |= {"mask_offsets": ("int64", [])} if self.masks else {}
        found |= {"frames": ("int64", [2])} if self.jpegs else {}
        for name, extra in sorted(self.head["extras"].items()):
            need(NAME.fullmatch(name) and type(extra["dtype"]) is str and extra["dtype"] in ITEMS, "an extra")
            need(type(extra["shape"]) is list and len(extra["shape"]) <= 30, "the shape of an extra")
            found[f"extras/{name}"] = extra["dtype"], [integer(side, 0, INT31) for side in extra["shape"]]
        return found

    def _check_targets(self) -> None:
        each = [(self.kind, self.classes, self.tensors["targets"])]
        for name, target in self.further.items():
            need(target["kind"] in TARGETS and f"extras/{name}" in self.tensors, "a further target")
            each.append((target["kind"], texts(target["classes"]), self.tensors[f"extras/{name}"]))
        for kind, classes, (dtype, shape) in each:
            need(dtype == TARGETS[kind] and len(shape) == (kind != "class"), "the tensor of a target")
            need(kind != "multi-hot" or not classes or shape == [len(classes)], "the classes of a multi-hot target")

    def _check_files(self) -> None:
        files, metas = dict(self.head["files"]), self._metas()
        paths = {f"_tensordict/{name}.memmap" for name in self.tensors}
        need(
            {*files} == paths | {*metas, "samples.jsonl", "rejected.jsonl"},
            "files",
        )
        for name, entry in files.items():
            kind = r"crc32:[0-9a-f]{8}" if name.endswith("/pixels.memmap") else r"sha256:[0-9a-f]{64}"
            need(type(entry["digest"]) is str and re.fullmatch(kind, entry["digest"]), "a digest")
            found = os.lstat(self.root / name) if os.path.lexists(self.root / name) else None
            need(
                found and stat.S_ISREG(found.st_mode) and found.st_size == integer(entry["size_bytes"]),
                f"the file {name}",
            )
        self.flat_bytes = files["_tensordict/pixels.memmap"]["size_bytes"]
        for name, (dtype, shape) in self.tensors.items():
            is_flat = name == "pixels" and (self.own or self.jpegs)
            count, item = self.flat_bytes if is_flat else self.rows, ITEMS[dtype][0]
            need(math.prod(max(1, side) for side in (count, *shape)) * item < INT63, "a shape overflows")
            size = files[f"_tensordict/{name}.memmap"]["size_bytes"]
            need(size == count * math.prod(shape) * item, f"the size of {name}")
            need(not is_flat or (size % 4096 == 0 and size >= self.rows), "whole pages")
        need(not self.jpegs or self.pixel_bytes < 256 * (self.flat_bytes + 1), "the bytes of pixels")
        for name, content in metas.items():
            need(files[name]["size_bytes"] == len(content) and read_regular(self.root / name, 1 << 20) == content, name)

    def _metas(self) -> dict[str, bytes]:
        """Return each meta.json as the manifest implies it."""
        flat = self.own or self.jpegs
        kind = "CompressedRows" if self.jpegs else "RaggedBatch" if self.own else "ImageBatch"
        top = [name for name in self.tensors if "/" not in name]
        extras = {name.partition("/")[2]: spec for name, spec in self.tensors.items() if "/" in name}
        size = self.head["files"]["_tensordict/pixels.memmap"]["size_bytes"]
        entries = {
            name: self._entry(name, *self.tensors[name], size if flat and name == "pixels" else self.rows)
            for name in top
        }
        entries |= {"extras": {"type": "TensorDict"}} if extras else {}
        metas = {"meta.json": {"_type": f"<class 'reader.store.{kind}'>"}}
        metas["_tensordict/meta.json"] = entries | self._tail([] if flat else [self.rows])
        if extras:
            inner = {name: self._entry(name, *spec, self.rows) for name, spec in sorted(extras.items())}
            metas["_tensordict/extras/meta.json"] = inner | self._tail([self.rows])
        return {name: json.dumps(content).encode() for name, content in metas.items()}

    @staticmethod
    def _entry(name: str, dtype: str, shape: list[int], count: int) -> dict[str, Any]:
        return {"device": "cpu", "shape": [count, *shape], "dtype": f"torch.{dtype}", "is_nested": False}

    @staticmethod
    def _tail(shape: list[int]) -> dict[str, Any]:
        tail = {"shape": shape, "device": "cpu", "_type": "<class 'tensordict._td.TensorDict'>", "_format_version": 1}
        return tail | {"_class": "tensordict:TensorDict"}

    def _check_folders(self) -> None:
        need(not os.path.lexists(self.root / "other.pickle"), "other.pickle")
        for folder in ("_tensordict", "_tensordict/extras") if self.head["extras"] else ("_tensordict",):
            need(stat.S_ISDIR(os.lstat(self.root / folder).st_mode), f"{folder} is no folder")
            for name in os.listdir(self.root / folder):
                is_listed = f"{folder}/{name}" in self.head["files"] or (folder, name) == ("_tensordict", "extras")
                need(is_listed or name.startswith("."), f"{name} is not listed")

    def blocks(self) -> list[list[int]]:
        """Return the blocks."""
        text = self._blocks.decode("ascii", "replace")
        need(text.endswith("\n  ]") and text.startswith("\n    ["), "the table of blocks")
        found, cursor, row, used = [], 0, 0, 0
        samples = self.head["files"]["samples.jsonl"]["size_bytes"]
        for line in text[1:-4].split(",\n"):
            match = BLOCK.fullmatch(line[4:])
            need(match and line[:4] == "    ", "a line of the table of blocks")
            block = [int(digits) for digits in match.groups()]  # type: ignore[union-attr]
            rows, crc, offset, size = block
            need(0 < rows <= self.rows - row and crc < 1 << 32 and offset < samples, "a block")
            need(offset >= cursor if found else offset == 0, "the offset of a block")
            need(rows <= size <= self.flat_bytes - used, "the bytes of a block")
            need(self.own or self.jpegs or size == rows * math.prod(self.sides) * self.channels, "the bytes of a block")
            found, cursor, row, used = [*found, block], offset + 3 * rows, row + rows, used + size
        need(row == self.rows and self.flat_bytes - used < (4096 if self.own or self.jpegs else 1), "the blocks")
        return found

    def values(self, name: str, row: int) -> tuple[Any, ...]:
        """Return the numbers of a row of a tensor."""
        dtype, shape = self.tensors[name]
        item, code = ITEMS[dtype]
        count = math.prod(shape)
        return struct.unpack(
            f"<{count}{code}", self._bytes(f"_tensordict/{name}.memmap", row * count * item, count * item)
        )

    def row(self, row: int) -> bytes:
        """Return the pixels of a row, and behind them its mask, all of its numbers checked."""
        self._check_numbers(row)
        height, width = self.sides
        size, begin = height * width * (self.channels + self.masks), 0
        if self.own:
            height, width, channels = self.values("shapes", row)
            need(0 < height <= self.sides[0] and 0 < width <= self.sides[1] and channels == self.channels, "a shape")
            total = self.pixel_bytes if self.jpegs else self.flat_bytes
            size, begin = height * width * (channels + self.masks), *self.values("offsets", row)
            need(0 <= begin <= total - size, "the place of a row")
            need(not self.masks or self.values("mask_offsets", row)[0] == begin + height * width * channels, "a mask")
        else:
            begin = row * size
        if self.jpegs:
            return self._decoded(row, height, width)
        return self._bytes("_tensordict/pixels.memmap", begin, size)

    def pixels(self, row: int) -> bytes:
        """Return the pixels of a row as they were packed."""
        height, width = self.values("shapes", row)[:2] if self.own else self.sides
        return self.row(row)[: height * width * self.channels]

    def _check_numbers(self, row: int) -> None:
        each = {"targets": (self.kind, len(self.classes))}
        each |= {f"extras/{name}": (t["kind"], len(t["classes"])) for name, t in self.further.items()}
        for name, (kind, count) in each.items():
            if kind != "regression":
                least, stop = (-1, count) if kind == "class" else (0, 2)
                need(all(least <= value < stop for value in self.values(name, row)), f"a target of {name}")
        if self.head["content"]:
            top, left, bottom, right = self.values("content", row)
            need(0 <= top < bottom <= self.sides[0] and 0 <= left < right <= self.sides[1], "content")
        boxes = [self.tensors.get(f"extras/{name}") for name in ("boxes", "box_targets", "box_count")]
        slots = boxes[0][1][0] if boxes[0] and boxes[0][1] else 0
        if boxes == [("float32", [slots, 4]), ("int64", [slots]), ("int32", [])]:
            need(0 <= self.values("extras/box_count", row)[0] <= slots, "a count of boxes")
            stop = len(self.classes) or INT31
            need(all(-1 <= value < stop for value in self.values("extras/box_targets", row)), "the class of a box")

    def _decoded(self, row: int, height: int, width: int) -> bytes:
        begin, end = self.values("frames", row)
        size = height * width * self.channels
        need(0 <= begin < end <= self.flat_bytes, "the offset of a frame")
        need(size // 256 <= end - begin <= 4 * size + 4096, "the bytes of a frame")
        frame = self._bytes("_tensordict/pixels.memmap", begin, end - begin)
        data, crc = frame[:-4], frame[-4:]
        need(struct.pack("<I", zlib.crc32(data)) == crc, "the checksum of a JPEG")
        need(data[:2] == b"\xff\xd8" and data[-2:] == b"\xff\xd9", "a JPEG")
        offset, sizes = 2, []
        while data[offset : offset + 2] != b"\xff\xda":
            need(
                data[offset : offset + 2] in (b"\xff\xe0", b"\xff\xdb", b"\xff\xc4", b"\xff\xc0"), "a segment of a JPEG"
            )
            length = int.from_bytes(data[offset + 2 : offset + 4], "big")
            if data[offset + 1] == 0xC0:
                sizes.append(data[offset + 4 : offset + 2 + length])
            need(length >= 2, "the bytes of a segment")
            offset += 2 + length
        need(data[offset + 4 : offset + 5] == bytes([self.channels]), "the components of a scan")
        scan = data[offset + 2 + int.from_bytes(data[offset + 2 : offset + 4], "big") : -2]
        need(scan.count(b"\xff") == scan.count(b"\xff\0"), "a marker in a scan")
        need(len(sizes) == 1 and len(sizes[0]) == 6 + 3 * self.channels, "the frame header of a JPEG")
        need(sizes[0][:6] == struct.pack(">BHHB", 8, height, width, self.channels), "the size of a JPEG")
        components = {(n, 0x11) for n in range(1, self.channels + 1)}
        need({*zip(sizes[0][6::3], sizes[0][7::3], strict=True)} == components, "the components of a JPEG")
        try:
            pixels = turbojpeg.decode(data, width, height)
        except JpegError:
            raise Refused("a JPEG is damaged") from None
        return bytes(pixels[:, :, : self.channels].tobytes())

    def _bytes(self, name: str, begin: int, count: int) -> bytes:
        with open(self.root / name, "rb") as file:
            file.seek(begin)
            return file.read(count)


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file that is no link; a pipe is not waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        raise Refused(f"{path} cannot be opened") from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size > most_bytes:
        os.close(descriptor)
        raise Refused(f"{path} is no file of up to {most_bytes} bytes")
    with open(descriptor, "rb") as file:
        return file.read()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that comes twice."""
    need(len(dict(pairs)) == len(pairs), "a key comes twice")
    return dict(pairs)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities."""
    raise Refused(name)
