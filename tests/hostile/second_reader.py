"""A reader of stores written from the page of the format alone: knows nothing of ours, and refuses what it names.

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
from packer.pixels.pictures import decoded_jpeg

INT31, INT63 = 1 << 31, 1 << 63
# dtype -> bytes and struct's letter
ITEMS = {
    "uint8": (1, "B"),
    "bool": (1, "?"),
    "int32": (4, "i"),
    "float32": (4, "f"),
    "int64": (8, "q"),
    "float64": (8, "d"),
}
TARGETS = {"class": "int64", "regression": "float32", "multi-hot": "float32"}
# key of the head -> the type of its value
TYPES: dict[str, type] = dict.fromkeys(("rows", "height", "width", "channels", "inputs", "rejected"), int)
TYPES |= dict.fromkeys(("own_sizes", "own_masks", "content"), bool)
TYPES |= dict.fromkeys(("targets", "extras", "labels", "options", "decoders", "files"), dict)
TYPES |= dict.fromkeys(("classes", "mask_values", "mean", "std"), list)
DIGEST = re.compile(rb',\n  "digest": "sha256:([0-9a-f]{64})"\n}\n')
BLOCK = re.compile(r"\[(\d{1,19}), (\d{1,10}), (\d{1,19}), (\d{1,19})\]")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
PIXELS, SAMPLES = "_tensordict/pixels.memmap", "samples.jsonl"


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


def is_number(value: Any) -> bool:
    """Return whether it is a finite number, as the page means it."""
    return type(value) in (int, float) and abs(value) < 10**300


def are_texts(value: Any) -> bool:
    """Return whether it is a list of strings."""
    return type(value) is list and all(type(each) is str for each in value)


def is_plain(value: Any, levels: int) -> bool:
    """Return whether these are plain values, so many levels deep at most."""
    if type(value) in (dict, list):
        return levels > 0 and all(is_plain(v, levels - 1) for v in (value.values() if type(value) is dict else value))
    return value is None or type(value) in (bool, str) or is_number(value)


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
        try:
            self._check_values()
            self._check_targets()
            self._check_files()
        except (KeyError, TypeError, AttributeError):
            raise Refused("a key is missing, or a value of another type") from None

    def _check_values(self) -> None:
        head = self.head
        # 1 == True, and not in its form
        need((head["format"], repr(head["version"])) == ("pixpack", "[1, 0]"), "the version")
        need(all(type(head[key]) is kind for key, kind in TYPES.items()), "a value is of another type")
        self.rows, self.channels, self.classes = integer(head["rows"], 1), head["channels"], head["classes"]
        self.own, self.masks, self.jpeg = head["own_sizes"], head["own_masks"], head["jpeg"]
        self.is_flat = self.own or self.jpeg is not None
        self.sides = integer(head["height"], 1, INT31), integer(head["width"], 1, INT31)
        need(self.channels in (1, 3, 4) and not (head["content"] and self.own), "channels or content")
        for name in ("mean", "std"):
            need(len(head[name]) == self.channels and all(map(is_number, head[name])), name)
        need(integer(head["inputs"], 1) == self.rows + integer(head["rejected"]), "inputs")
        need(not self.masks or (self.own and "masks" not in head["extras"]), "own_masks")
        values = head["mask_values"]
        need(values == sorted({integer(one, 0, 256) for one in values}), "mask_values")
        need(not values or self.masks or "masks" in head["extras"], "mask_values")
        need(is_plain(head["options"], 8) and is_plain(head["labels"], 8), "plain values")
        need(
            all(type(one) is dict and all(is_plain(x, 0) for x in one.values()) for one in head["decoders"].values()),
            "decoders",
        )
        if self.jpeg is not None:
            need(not self.masks and self.channels != 4, "jpeg")
            self.pixel_bytes = integer(self.jpeg["pixel_bytes"], 1)
            integer(self.jpeg["quality"], 1, 101)
            integer(self.jpeg["squared_error"], 0, 65_025 * self.pixel_bytes + 1)
            need(
                self.own or self.pixel_bytes == self.rows * math.prod(self.sides) * self.channels, "the bytes of pixels"
            )

    def _check_targets(self) -> None:
        """Check targets and extras, and find the tensors: name -> dtype, and shape of a row."""
        head, first = self.head, self.head["targets"]
        count = None if first["kind"] == "class" else integer(first["count"], 1, (1 << 24) + 1)
        need(first["count"] == count, "the count of targets")
        found = {"pixels": ("uint8", [] if self.is_flat else [*self.sides, self.channels])}
        found["targets"] = (TARGETS[first["kind"]], [] if count is None else [count])
        found |= {"content": ("int32", [4])} if head["content"] else {}
        found |= {"offsets": ("int64", []), "shapes": ("int32", [3])} if self.own else {}
        found |= {"mask_offsets": ("int64", [])} if self.masks else {}
        found |= {"frames": ("int64", [2])} if self.jpeg is not None else {}
        for name, extra in sorted(head["extras"].items()):
            need(NAME.fullmatch(name) and extra["dtype"] in ITEMS and len(extra["shape"]) <= 30, "an extra")
            need(type(extra["shape"]) is list, "a shape")
            found[f"extras/{name}"] = extra["dtype"], [integer(side, 0, INT31) for side in extra["shape"]]
        self.tensors = found
        kind, shape = first["kind"], found["targets"][1]
        need(are_texts(self.classes) and len(shape) == (kind != "class"), "a target")
        need(kind != "multi-hot" or not self.classes or shape == [len(self.classes)], "the classes of a target")

    def _check_files(self) -> None:
        files, metas = self.head["files"], self._metas()
        paths = {f"_tensordict/{name}.memmap" for name in self.tensors}
        need({*files} == paths | {*metas, SAMPLES, "rejected.jsonl"}, "files")
        for name, entry in files.items():
            kind = r"crc32:[0-9a-f]{8}" if name == PIXELS else r"sha256:[0-9a-f]{64}"
            need(re.fullmatch(kind, entry["digest"]), "a digest")
            found = os.lstat(self.root / name) if os.path.lexists(self.root / name) else None
            size = integer(entry["size_bytes"])
            need(found and stat.S_ISREG(found.st_mode) and found.st_size == size, f"the file {name}")
        self.flat_bytes = files[PIXELS]["size_bytes"]
        for name, (dtype, shape) in self.tensors.items():
            is_flat, item = name == "pixels" and self.is_flat, ITEMS[dtype][0]
            size, count = files[f"_tensordict/{name}.memmap"]["size_bytes"], self.flat_bytes if is_flat else self.rows
            need(math.prod(max(1, side) for side in (count, *shape)) * item < INT63, "a shape overflows")
            need(size == count * math.prod(shape) * item, f"the size of {name}")
            need(not is_flat or (size % 4096 == 0 and size >= self.rows), "whole pages")
        need(self.jpeg is None or self.pixel_bytes < 256 * (self.flat_bytes + 1), "the bytes of pixels")
        for name, content in metas.items():
            need(files[name]["size_bytes"] == len(content) and read_regular(self.root / name, 1 << 20) == content, name)
        need(not os.path.lexists(self.root / "other.pickle"), "other.pickle")
        for folder in ("_tensordict", "_tensordict/extras") if self.head["extras"] else ("_tensordict",):
            need(stat.S_ISDIR(os.lstat(self.root / folder).st_mode), f"{folder} is no folder")
            for name in os.listdir(self.root / folder):
                is_listed = f"{folder}/{name}" in files or (folder, name) == ("_tensordict", "extras")
                need(is_listed or name.startswith("."), f"{name} is not listed")

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
        text = self._blocks.decode("ascii", "replace")
        need(text.endswith("\n  ]") and text.startswith("\n    ["), "the table of blocks")
        found, least, row, used = [], 0, 0, 0
        for line in text[1:-4].split(",\n"):
            match = BLOCK.fullmatch(line[4:])
            need(match and line[:4] == "    ", "a line of the table of blocks")
            rows, crc, offset, size = block = [int(digits) for digits in match.groups()]  # type: ignore[union-attr]
            need(0 < rows <= self.rows - row and crc < 1 << 32, "a block")
            need(least <= offset < (self.head["files"][SAMPLES]["size_bytes"] if found else 1), "the offset of a block")
            need(rows <= size <= self.flat_bytes - used, "the bytes of a block")
            need(self.is_flat or size == rows * math.prod(self.sides) * self.channels, "the bytes of a block")
            found, least, row, used = [*found, block], offset + 3 * rows, row + rows, used + size
        need(row == self.rows and self.flat_bytes - used < (4096 if self.is_flat else 1), "the blocks")
        return found

    def values(self, name: str, row: int) -> tuple[Any, ...]:
        """Return the numbers of a row of a tensor."""
        dtype, shape = self.tensors[name]
        (item, code), count = ITEMS[dtype], math.prod(shape)
        return struct.unpack(
            f"<{count}{code}", self._bytes(f"_tensordict/{name}.memmap", row * count * item, count * item)
        )

    def pixels(self, row: int) -> bytes:
        """Return the pixels of a row as they were packed, all of its numbers checked."""
        self._check_numbers(row)
        (height, width), begin = self.sides, row * math.prod(self.sides) * self.channels
        if self.own:
            height, width, channels = self.values("shapes", row)
            need(0 < height <= self.sides[0] and 0 < width <= self.sides[1] and channels == self.channels, "a shape")
            (begin,) = self.values("offsets", row)
        size = height * width * self.channels
        total = self.flat_bytes if self.jpeg is None else self.pixel_bytes
        need(0 <= begin <= total - size - height * width * self.masks, "the place of a row")
        need(not self.masks or self.values("mask_offsets", row)[0] == begin + size, "a mask")
        return self._bytes(PIXELS, begin, size) if self.jpeg is None else self._decoded(row, height, width)

    def _check_numbers(self, row: int) -> None:
        kind, count = self.head["targets"]["kind"], len(self.classes)
        least, stop = {"class": (-1, count), "multi-hot": (0, 2), "regression": (-math.inf, math.inf)}[kind]
        need(kind == "regression" or all(least <= one < stop for one in self.values("targets", row)), "a target")
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
        (begin, end), size, channels = self.values("frames", row), height * width * self.channels, self.channels
        need(
            0 <= begin < end <= self.flat_bytes and size // 256 <= end - begin <= 4 * size + 4096,
            "the bytes of a frame",
        )
        frame = self._bytes(PIXELS, begin, end - begin)
        data, crc = frame[:-4], frame[-4:]
        need(struct.pack("<I", zlib.crc32(data)) == crc, "the checksum of a JPEG")
        need(data[:2] == b"\xff\xd8" and data[-2:] == b"\xff\xd9", "a JPEG")
        offset, headers = 2, []
        while (marker := data[offset : offset + 2]) != b"\xff\xda":
            length = int.from_bytes(data[offset + 2 : offset + 4], "big")
            need(marker in (b"\xff\xe0", b"\xff\xdb", b"\xff\xc4", b"\xff\xc0") and length >= 2, "a segment of a JPEG")
            headers += [data[offset + 4 : offset + 2 + length]] if marker == b"\xff\xc0" else []
            offset += 2 + length
        need(data[offset + 4 : offset + 5] == bytes([channels]), "the components of a scan")
        scan = data[offset + 2 + int.from_bytes(data[offset + 2 : offset + 4], "big") : -2]
        need(scan.count(b"\xff") == scan.count(b"\xff\0"), "a marker in a scan")
        need(len(headers) == 1 and len(headers[0]) == 6 + 3 * channels, "the frame header of a JPEG")
        need(headers[0][:6] == struct.pack(">BHHB", 8, height, width, channels), "the size of a JPEG")
        sampled = {*zip(headers[0][6::3], headers[0][7::3], strict=True)}
        need(sampled == {(n, 0x11) for n in range(1, channels + 1)}, "the components of a JPEG")
        try:
            return bytes(decoded_jpeg(data, width, height)[:, :, :channels].tobytes())
        except JpegError:
            raise Refused("a JPEG is damaged") from None

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
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise Refused(f"{path} is no file")
    with open(descriptor, "rb") as file:
        need(found.st_size <= most_bytes, f"{path} has more than {most_bytes} bytes")
        return file.read()


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that comes twice."""
    need(len(dict(pairs)) == len(pairs), "a key comes twice")
    return dict(pairs)


def refuse_constant(name: str) -> NoReturn:
    """Refuse NaN and infinities."""
    raise Refused(name)
