"""The fields of manifest.json, their checks, and its parser. `check.py` compares a folder with it.

Specification: docs/FORMAT.md. Imports only the standard library, so that `pack` and its workers read stores without torch.
Never maps or decodes a pixel, and writes nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NoReturn

from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import error_path, open_regular, retry_missing, unreadable
from reader.format.shown import brief, shown
from reader.format.splits import FOLDER, ROLES, is_stage, stages
from reader.format.values import (
    INT32_MOST,
    INT64_MOST,
    Json,
    boolean,
    integer,
    is_number,
    is_plain,
    object_in,
    text,
    texts,
    value_in,
)

FORMAT_NAME = "pixpack"
FORMAT_VERSION = (1, 0)

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
REJECTED = "rejected.jsonl"
PIXELS = "_tensordict/pixels.memmap"
TOP_META, TENSORS_META, EXTRAS_META = "meta.json", "_tensordict/meta.json", "_tensordict/extras/meta.json"

EXTRA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
ITEM_BYTES = {"uint8": 1, "int32": 4, "int64": 8, "float32": 4, "float64": 8, "bool": 1}
TARGET_DTYPES = {"class": "int64", "regression": "float32", "multi-hot": "float32"}
# A line of samples.jsonl holds all numbers of a row's target.
MOST_TARGETS = 1 << 24
# Flat pixels are padded to whole pages: they are read by pages, even past the page cache.
PAGE_BYTES = 4096
# numpy has arrays of up to 32 dimensions, one of which is rows
_MOST_DIMENSIONS = 30
# 64 samples of a JPEG take 2 bits at least: no frame decodes to more than this for each of its bytes.
MOST_JPEG_RATIO = 1 << 8

_BLOCKS_OPEN = b',\n  "blocks": ['
_DIGEST_LINE = re.compile(rb',\n  "digest": "sha256:([0-9a-f]{64})"\n}\n')
_DIGEST_LINE_BYTES = len(b',\n  "digest": "sha256:"\n}\n') + 64
_READ_BYTES = 1 << 20
# A million classes take 30 MB. A block has 8 MB of rows and takes 40 bytes here, so 1 GiB holds the blocks of 200 TB.
_MOST_HEAD_BYTES = 128 << 20
MOST_MANIFEST_BYTES = 1 << 30


@dataclass(frozen=True)
class TensorSpec:
    """One per-row tensor: dtype name and the shape of one row."""

    dtype: str
    row_shape: tuple[int, ...] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return ITEM_BYTES[self.dtype] * math.prod(self.row_shape)


@dataclass(frozen=True)
class FileEntry:
    """Exact size and digest ("sha256:..." or, for pixels, "crc32:...") of one file of the store."""

    size_bytes: int
    digest: str


@dataclass(frozen=True)
class JpegRows:
    """JPEG rows: their quality, 1 to 100, the bytes of all decoded rows, and the sum of squared errors."""

    quality: int
    pixel_bytes: int
    squared_error: int

    @property
    def psnr(self) -> float:
        """The peak signal-to-noise ratio over all bytes of all rows, dB; infinite if nothing was lost."""
        if not self.squared_error:
            return math.inf
        return 10 * math.log10(255 * 255 * self.pixel_bytes / self.squared_error)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A parsed manifest.json, without its table of blocks (see `read_blocks`), which opening does not need.

    Attributes:
        rows, height, width, channels: the shape of the store; the largest height and width if rows have sizes of their own.
        has_own_sizes: pixels is flat; offsets and shapes locate each row.
        has_own_masks: rows have their own sizes, and each is followed by its mask.
        jpeg: for JPEG rows; None: raw rows.
        target_kind, target_count: "class", "regression" or "multi-hot", and the K of targets[N, K]; None for classes.
        has_content: rows hold padding; content is the box of the image.
        extras: name of a further tensor -> its dtype and shape.
        classes: names of the classes, in the order of their numbers.
        labels: how targets, classes and boxes were read, as given by options.
        mask_values: all values of masks, ascending; () if they are not recorded.
        mean, std: per channel, of pixels scaled to [0, 1], without padding.
        inputs, rejected: the number of inputs, and of those that became no row.
        options, decoders: the options that shaped the pixels, and the libraries that decoded them.
        files: path in the store -> size and digest.
        digest: "sha256:" and the sha256 of manifest.json.
    """

    rows: int
    height: int
    width: int
    channels: int
    has_own_sizes: bool = False
    has_own_masks: bool = False
    jpeg: JpegRows | None = None
    target_kind: str
    target_count: int | None
    has_content: bool
    extras: Mapping[str, TensorSpec]
    classes: tuple[str, ...]
    labels: Mapping[str, Any] = field(default_factory=dict)
    mask_values: tuple[int, ...] = ()
    mean: tuple[float, ...]
    std: tuple[float, ...]
    inputs: int
    rejected: int
    options: Mapping[str, Any]
    decoders: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    digest: str = field(default="", compare=False)

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor of the store by name; extras as "extras/<name>"."""
        specs = {
            "pixels": TensorSpec("uint8", () if self.is_flat else self.sides),
            "targets": TensorSpec(
                TARGET_DTYPES[self.target_kind], () if self.target_count is None else (self.target_count,)
            ),
        }
        if self.has_content:
            specs["content"] = TensorSpec("int32", (4,))
        if self.has_own_sizes:
            specs |= {"offsets": TensorSpec("int64"), "shapes": TensorSpec("int32", (3,))}
        if self.has_own_masks:
            specs["mask_offsets"] = TensorSpec("int64")
        if self.jpeg:
            # the bytes [begin, end) of each row's frame in pixels.memmap
            specs["frames"] = TensorSpec("int64", (2,))
        return specs | {f"extras/{name}": spec for name, spec in sorted(self.extras.items())}

    def tensor_paths(self) -> dict[str, str]:
        """Return tensor name -> path of its file inside the store."""
        return {name: f"_tensordict/{name}.memmap" for name in self.tensors}

    def metadata_names(self) -> list[str]:
        """Return the paths of the meta.json files of the store."""
        return [TOP_META, TENSORS_META, *([EXTRAS_META] if self.extras else [])]

    @property
    def has_masks(self) -> bool:
        """Whether rows have masks: in a separate tensor, or after their pixels."""
        return self.has_own_masks or "masks" in self.extras

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width of a row; the largest if rows have sizes of their own."""
        return self.height, self.width

    @property
    def common_sides(self) -> tuple[int, int] | None:
        """Height and width of every row, or None if they differ."""
        return None if self.has_own_sizes else self.largest

    @property
    def sides(self) -> tuple[int, int, int]:
        """Height, width and channels of a row; the largest if rows have sizes of their own."""
        return self.height, self.width, self.channels

    @property
    def shape_text(self) -> str:
        """The shape of a row in words: "uint8[224, 224, 3]", or "up to" that."""
        up_to = "up to " if self.has_own_sizes else ""
        return f"{up_to}uint8[{self.height}, {self.width}, {self.channels}]"

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        """The shape of all pixels, decoded."""
        return (self.pixel_bytes,) if self.has_own_sizes else (self.rows, *self.sides)

    @property
    def is_flat(self) -> bool:
        """Whether pixels.memmap has no dimension of rows: they have sizes of their own, or are frames."""
        return self.has_own_sizes or self.jpeg is not None

    def count(self, name: str) -> int:
        """Return the length of a tensor: N, or for flat pixels the bytes of their file."""
        return self.files[PIXELS].size_bytes if name == "pixels" and self.is_flat else self.rows

    @property
    def pixel_bytes(self) -> int:
        """Bytes of the pixels of all rows, decoded; for raw rows the size of their file."""
        return self.jpeg.pixel_bytes if self.jpeg else self.files[PIXELS].size_bytes

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the pixels of one row, masks included; the mean if rows have sizes of their own."""
        return max(1, self.pixel_bytes // self.rows) if self.has_own_sizes else math.prod(self.sides)

    @property
    def batch_type(self) -> str:
        """The class named in tensordict's files: the dotted path is part of the format, and never changes."""
        name = "CompressedRows" if self.jpeg else "RaggedBatch" if self.has_own_sizes else "ImageBatch"
        return f"<class 'reader.store.{name}'>"

    def file_bytes(self, used_bytes: int) -> int:
        """Return the size of a pixel file with this many bytes of rows."""
        return whole_pages(used_bytes) if self.is_flat else used_bytes


def whole_pages(used_bytes: int) -> int:
    """Return the size of a file with this many bytes of flat pixels."""
    return -(-used_bytes // PAGE_BYTES) * PAGE_BYTES


def read_manifest(out: str | os.PathLike[str]) -> Manifest:
    """Read and check OUT/manifest.json alone: its digest, version and fields. Takes milliseconds for any number of rows.

    Raises:
        IncompleteStoreError: OUT holds a pack that has not finished.
        StoreError: OUT is not a store, or its manifest was changed.
    """
    root = Path(out)
    with open_manifest(root) as file:
        return parse_manifest(file, root / MANIFEST)[0]


def open_manifest(root: Path) -> IO[bytes]:
    """Open OUT/manifest.json.

    Raises:
        StoreError: it is missing, is not a regular file, or may not be read.
    """
    path = root / MANIFEST
    try:
        return retry_missing(path, lambda: open_regular(path, most_bytes=MOST_MANIFEST_BYTES))
    except FileNotFoundError:
        raise _no_manifest(root) from None
    except NotADirectoryError:
        raise StoreError(f"{root} is a file, expected the folder of a store.") from None
    except PermissionError:
        raise unreadable(path) from None


def parse_manifest(file: IO[bytes], path: Path) -> tuple[Manifest, int]:
    """Read and check an open manifest.json; returns it and the byte where its first block begins.

    Raises:
        StoreError: it was changed, or its fields are not what FORMAT.md says.
    """
    with error_path(path):
        head, digest, begin = _read_head(file, path)
    try:
        return manifest_of(head, digest), begin
    except StoreError as e:
        raise StoreError(f"{path}: {e}") from None


def manifest_of(head: Mapping[str, Any], digest: str = "") -> Manifest:
    """Make a Manifest from the parsed head of a manifest.json, with all checks.

    Raises:
        StoreError: a field is missing or malformed, two contradict each other, or the version is unknown.
    """
    if head.get("format") != FORMAT_NAME:
        raise StoreError(f"the format is {brief(head.get('format'))}, expected {FORMAT_NAME!r}.")
    version = head.get("version")
    if version != [*FORMAT_VERSION] or any(type(number) is not int for number in version):
        known = ".".join(map(str, FORMAT_VERSION))
        raise StoreError(f"the format version is {brief(version)}, this reader knows {known}. Update pixpack.")
    it = "the manifest"
    targets = object_in(it, head, "targets")
    count = value_in("targets of the manifest", targets, "count", _is_count, f"1 to {MOST_TARGETS}, or null")
    manifest = Manifest(
        rows=integer(it, head, "rows", 1),
        height=integer(it, head, "height", 1, INT32_MOST),
        width=integer(it, head, "width", 1, INT32_MOST),
        channels=value_in(it, head, "channels", lambda value: type(value) is int and value in (1, 3, 4), "1, 3 or 4"),
        has_own_sizes=boolean(it, head, "own_sizes"),
        has_own_masks=boolean(it, head, "own_masks"),
        jpeg=_jpeg(head),
        target_kind=_target_kind("targets of the manifest", targets),
        target_count=count,
        has_content=boolean(it, head, "content"),
        extras={name: _spec(name, each) for name, each in object_in(it, head, "extras").items()},
        classes=texts(it, head, "classes"),
        labels=_plain_object(head, "labels"),
        mask_values=_mask_values(head),
        mean=_numbers(head, "mean"),
        std=_numbers(head, "std"),
        inputs=integer(it, head, "inputs", 1),
        rejected=integer(it, head, "rejected", 0),
        options=_plain_object(head, "options"),
        decoders=_decoders(head),
        files={name: _file_entry(name, each) for name, each in object_in(it, head, "files").items()},
        digest=digest,
    )
    _check_agreement(manifest)
    _check_files(manifest)
    return manifest


# -- the fields, one function each


def _is_count(value: object) -> bool:
    return value is None or (type(value) is int and 1 <= value <= MOST_TARGETS)


def _target_kind(what: str, entries: Mapping[str, Any]) -> str:
    kinds = "one of 'class', 'regression', 'multi-hot'"
    kind: str = value_in(what, entries, "kind", lambda value: type(value) is str and value in TARGET_DTYPES, kinds)
    return kind


def _jpeg(head: Mapping[str, Any]) -> JpegRows | None:
    if "jpeg" in head and head["jpeg"] is None:
        return None
    what, entries = "jpeg of the manifest", object_in("the manifest", head, "jpeg")
    return JpegRows(
        integer(what, entries, "quality", 1, 100),
        integer(what, entries, "pixel_bytes", 1),
        integer(what, entries, "squared_error", 0),
    )


def _spec(name: str, entries: object) -> TensorSpec:
    if not EXTRA_NAME.fullmatch(name):
        raise StoreError(f"the manifest names an extra {brief(name)}, expected letters, digits, _ and -.")
    what = f"the extra {brief(name)} of the manifest"
    dtype = value_in(what, entries, "dtype", _is_dtype, f"one of {', '.join(ITEM_BYTES)}")
    shape = value_in(what, entries, "shape", _is_shape, f"up to {_MOST_DIMENSIONS} integers of 0 or more")
    return TensorSpec(dtype, tuple(shape))


def _is_dtype(value: object) -> bool:
    return type(value) is str and value in ITEM_BYTES


def _is_shape(value: Json) -> bool:
    is_short = type(value) is list and len(value) <= _MOST_DIMENSIONS
    return is_short and all(type(side) is int and 0 <= side <= INT32_MOST for side in value)


def _mask_values(head: Mapping[str, Any]) -> tuple[int, ...]:
    def is_rising(value: Json) -> bool:
        """Whether this is a list of ascending bytes."""
        is_of_bytes = type(value) is list and all(type(each) is int and 0 <= each <= 255 for each in value)
        return is_of_bytes and value == sorted({*value})

    return tuple(value_in("the manifest", head, "mask_values", is_rising, "ascending integers from 0 to 255"))


def _numbers(head: Mapping[str, Any], name: str) -> tuple[float, ...]:
    def are_numbers(value: Json) -> bool:
        """Whether this is a list of one finite number per channel."""
        return type(value) is list and len(value) == head["channels"] and all(map(is_number, value))

    expected = f"{head['channels']} finite numbers"
    return tuple(map(float, value_in("the manifest", head, name, are_numbers, expected)))


def _plain_object(head: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    entries: Mapping[str, Any] = value_in("the manifest", head, name, _is_plain_object, "an object of plain values")
    return entries


def _is_plain_object(value: object) -> bool:
    return type(value) is dict and is_plain(value)


def _decoders(head: Mapping[str, Any]) -> Mapping[str, Any]:
    entries = object_in("the manifest", head, "decoders")
    for name in entries:
        value_in("decoders of the manifest", entries, name, _is_decoder, "an object of texts")
    return entries


def _is_decoder(value: object) -> bool:
    return type(value) is dict and is_plain(value, levels=1)


def _file_entry(name: str, entries: object) -> FileEntry:
    what = f"the entry of the file {brief(name)} in the manifest"
    form = r"crc32:[0-9a-f]{8}" if name == PIXELS else r"sha256:[0-9a-f]{64}"
    size_bytes, digest = integer(what, entries, "size_bytes", 0), text(what, entries, "digest")
    if not re.fullmatch(form, digest):
        raise StoreError(f"{what} says digest = {brief(digest)}, expected {form.partition(':')[0]}: and hex digits.")
    return FileEntry(size_bytes, digest)


# -- checks of fields against each other


def _check_agreement(m: Manifest) -> None:
    if (m.target_kind == "class") != (m.target_count is None):
        raise StoreError(f"the manifest says targets of kind {m.target_kind!r} x {m.target_count}.")
    if m.inputs != m.rows + m.rejected:
        raise StoreError(f"the manifest says {m.inputs} inputs, expected its {m.rows} rows and {m.rejected} rejects.")
    if m.has_own_masks and (not m.has_own_sizes or "masks" in m.extras):
        raise StoreError("the manifest says own_masks, expected own_sizes with it, and no extra 'masks' beside it.")
    if m.has_own_sizes and m.has_content:
        raise StoreError("the manifest says that rows have content and sizes of their own, expected one of them.")
    if m.jpeg and (m.has_own_masks or m.channels > 3):
        raise StoreError("the manifest says jpeg, expected 1 or 3 channels, and no own_masks.")
    if m.mask_values and not m.has_masks:
        raise StoreError(f"the manifest says mask_values {brief(m.mask_values)}, expected them with masks alone.")
    _check_targets(m)


def _check_targets(m: Manifest) -> None:
    """Check that targets have the shape of their kind, and as many numbers as classes."""
    shape = m.tensors["targets"].row_shape
    is_one_of_classes = m.target_kind == "multi-hot" and len(m.classes) > 0
    if len(shape) != (m.target_kind != "class") or (is_one_of_classes and shape != (len(m.classes),)):
        raise StoreError(
            f"the manifest says targets of kind {m.target_kind!r} with rows {list(shape)} and {len(m.classes)} classes."
        )


def _check_files(m: Manifest) -> None:
    """Check the list of files, and the sizes of the tensors' files."""
    expected = {*m.tensor_paths().values(), *m.metadata_names(), SAMPLES, REJECTED}
    if other := sorted({*m.files} ^ expected):
        named = ", ".join(map(brief, other[:5]))
        raise StoreError(f"the manifest lists other files than {sorted(expected)}: {named}.")
    for name, spec in m.tensors.items():
        count, path = m.count(name), f"_tensordict/{name}.memmap"
        # even if a side is 0: strides are products of the others
        sides = [max(1, side) for side in (count, *spec.row_shape)]
        if math.prod(sides) * ITEM_BYTES[spec.dtype] > INT64_MOST:
            raise StoreError(f"the manifest says {name} of the shape {sides}, which is larger than any file.")
        if (found := m.files[path].size_bytes) != (need := count * spec.row_bytes):
            raise StoreError(f"it lists {path} with {found} bytes, {m.rows} rows need {need}.")
    size_bytes = m.files[PIXELS].size_bytes
    if size_bytes < m.rows or size_bytes != m.file_bytes(size_bytes):
        raise StoreError(f"it lists {PIXELS} with {size_bytes} bytes, expected whole pages of {PAGE_BYTES}.")
    if m.jpeg:
        _check_jpeg(m, m.jpeg, size_bytes)


def _check_jpeg(m: Manifest, jpeg: JpegRows, size_bytes: int) -> None:
    if not m.has_own_sizes and jpeg.pixel_bytes != m.rows * math.prod(m.sides):
        need = m.rows * math.prod(m.sides)
        raise StoreError(f"it lists {jpeg.pixel_bytes} bytes of decoded pixels, the rows need {need}.")
    if jpeg.pixel_bytes // MOST_JPEG_RATIO > size_bytes:
        raise StoreError(
            f"it lists {jpeg.pixel_bytes} bytes of pixels, more than {size_bytes} bytes of JPEGs can hold."
        )
    if jpeg.squared_error > 255 * 255 * jpeg.pixel_bytes:
        raise StoreError(f"it says squared_error = {jpeg.squared_error}, more than its pixels can differ.")


# -- the bytes


def _read_head(file: IO[bytes], path: Path) -> tuple[Mapping[str, Any], str, int]:
    """Parse the part before the blocks and check the digest of the whole file, with the head and 1 MiB in memory.

    Returns the fields, the digest, and the byte after the "[" of the blocks.

    Raises:
        StoreError: it was changed or cut short, is not JSON, or is too large.
    """
    digest, head, tail, begin, size_bytes = hashlib.sha256(), bytearray(), b"", -1, 0
    while chunk := file.read(_READ_BYTES):
        size_bytes += len(chunk)
        if begin < 0:
            searched = max(0, len(head) - len(_BLOCKS_OPEN))
            head += chunk
            begin = head.find(_BLOCKS_OPEN, searched)
        if size_bytes > MOST_MANIFEST_BYTES or (begin < 0 and len(head) > _MOST_HEAD_BYTES):
            raise StoreError(f"{path} is larger than a manifest can be. Pack again.")
        # the last line is kept apart: it holds the digest of everything before it
        data = tail + chunk
        digest.update(data[:-_DIGEST_LINE_BYTES])
        tail = data[-_DIGEST_LINE_BYTES:]
    match = _DIGEST_LINE.fullmatch(tail)
    if not match or begin < 0 or match[1].decode() != digest.hexdigest():
        raise StoreError(
            f"{path} was changed after it was written or is cut short. Copy the store again, or pack again."
        )
    try:
        fields = json.loads(head[:begin] + b"\n}", object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as e:
        raise StoreError(f"{path} holds no JSON ({shown(str(e), most=200)}). Pack again.") from None
    if not isinstance(fields, dict):
        raise StoreError(f"{path} holds no JSON object. Pack again.")
    return fields, f"sha256:{digest.hexdigest()}", begin + len(_BLOCKS_OPEN)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a repeated key: two readers might take different values."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is repeated in one object")
    return fields


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _no_manifest(root: Path) -> StoreError:
    """Return the error that describes a folder without a manifest."""
    children = [name for name in ROLES if (root / name / MANIFEST).is_file()]
    if children and not is_stage(root):
        return StoreError(f"{root} holds {len(children)} stores. Open one of them: {root / children[0]}")
    if any(os.path.isdir(stage / FOLDER) for stage in stages(root)):
        return IncompleteStoreError(
            f"{root} is incomplete: its command is still running, or was interrupted."
            f" To see its progress and to resume it: {shlex.join(['pack', 'info', str(root)])}"
        )
    if not root.is_dir():
        command = shlex.join(["pack", "IMAGES", str(root)])
        return StoreError(f"{root} does not exist. Expected the folder of a store. Make one with: {command}")
    return StoreError(f"{root} is not a pixpack store: it has no {MANIFEST}. Make one with: pack IMAGES OUT")
