"""What manifest.json says: its fields, their checks, and how it is read. `check.py` compares a folder with it.

Byte-level specification: docs/FORMAT.md. Imports only the standard library, so that `pack` and its workers can
write stores without torch; it never maps or decodes a pixel, and writes nothing.
"""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.fields import (
    BOOL,
    BYTES,
    INT32_MOST,
    INT64_MOST,
    NUMBER,
    NUMBERS,
    OBJECT,
    TEXT,
    TEXTS,
    Kind,
    check_record,
    integer,
    key,
    list_of,
    matching,
    object_of,
    one_of,
    optional,
    read_values,
    record,
    records_of,
    tuple_of,
    values_of,
    with_known,
    write_record,
)
from reader.format.filesystem import error_path, open_regular, retry_missing, unreadable
from reader.format.head import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MOST_MANIFEST_BYTES,
    OWN_MASKS,
    OWN_SIZES,
    check_version,
    read_head,
)
from reader.format.row_kinds import PAGE_BYTES, RowKind, kind_of
from reader.format.shown import brief
from reader.format.splits import FOLDER, ROLES, is_stage, stages
from reader.format.tensors import (
    ITEM_BYTES,
    RAW,
    Compression,
    RawPixels,
    TensorSpec,
    metadata_names,
    text_files,
)

MANIFEST = "manifest.json"
SAMPLES = "samples.jsonl"
REJECTED = "rejected.jsonl"
PIXELS = "_tensordict/pixels.memmap"

EXTRA_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")

TARGET_DTYPES = {"class": "int64", "regression": "float32", "multi-hot": "float32"}

_SHA256 = matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hex digits")
_CRC32 = matching(r"crc32:[0-9a-f]{8}", "crc32: and 8 hex digits")
_TARGET_KIND = one_of(*TARGET_DTYPES)
_MASK_VALUES = Kind(
    "1 to 256 rising integers from 0 to 255",
    lambda value: BYTES.holds(value) and bool(value) and value == sorted({*value}),
    tuple,
    list,
)
_SIDE = integer(1, INT32_MOST)
_SHORT_SIDE = matching(r"short:[1-9]\d{0,8}(?:/[24])?|\d{1,9}/[24]", "short: and a number")
# A line of samples.jsonl has all numbers of a row's target.
MOST_TARGETS = 1 << 24
_DECODER = object_of(
    Kind(
        "text, a number, true, false or null",
        lambda value: value is None or type(value) is bool or TEXT.holds(value) or NUMBER.holds(value),
    ),
    "an object of texts",
)
# Those that an option of `pack` has today; others are of a later minor version, and any plain values.
_OPTIONS = with_known(
    "options of the manifest",
    {
        "size": optional(list_of(_SIDE, "two integers", count=2)),
        "fit": TEXT,
        "crop_fraction": Kind("a number above 0, up to 1", lambda value: NUMBER.holds(value) and 0 < value <= 1),
        "resample": TEXT,
        "exact": BOOL,
        "channels": TEXT,
        "shuffle": optional(integer(0, 1 << 256)),
        "requantize": integer(1, 31),
        "bit_depth": integer(1, 64),
        "mask_values": BYTES,
        "compress": TEXT,
        "max_size": Kind(
            'an integer, "short:" and one, or null',
            lambda value: value is None or _SIDE.holds(value) or _SHORT_SIDE.holds(value),
        ),
    },
)
_LABELS = replace(
    with_known(
        "labels of the manifest",
        {
            **dict.fromkeys(
                (
                    *("boxes", "extension", "inputs", "label_separator", "path_column", "sources"),
                    *("target_column", "text_column"),
                ),
                TEXT,
            ),
            **dict.fromkeys(("classes", "masks", "root"), BOOL),
        },
    ),
    write=lambda labels: dict(sorted(labels.items())),
)
_VERSION = tuple_of(integer(0), "two integers", count=2)
# Which class reads it follows from the reader features.
_COMPRESSION = replace(OBJECT, write=write_record)


@record()
class FileEntry:
    """Exact size and digest ("sha256:..." or, for pixels, "crc32:...") of one file of the store."""

    size_bytes: int = key(integer(0))
    digest: str = key(TEXT)


@record()
class FurtherTarget:
    """What an extra means that is a target beside `targets`: its kind, as that of `targets`, and the names of its classes."""

    kind: str = key(_TARGET_KIND)
    classes: tuple[str, ...] = key(TEXTS, default=())

    def __post_init__(self) -> None:
        check_record("a further target of the manifest", self)


@record(kw_only=True)
class Manifest:
    """What manifest.json says, without the table of blocks (see `read_blocks`), which an opening reader does not need.

    Attributes:
        rows, height, width, channels: the shape of the store; the largest height and width where rows have sizes of their own.
        target_kind, target_count: "class", "regression" or "multi-hot", and the K of targets[N, K]; None for classes.
        has_content: rows hold padding, and content says where.
        extras: name of a further tensor -> its dtype and shape.
        classes: names of the classes, in the order of their numbers.
        mean, std: of each channel, of pixels scaled to [0, 1], over the pixels that are image (padding left out).
        inputs, rejected: how many were packed from, and how many of these became no row.
        options, decoders: what shaped the pixels, and the libraries that decoded them.
        files: path in the store -> size and digest.
        version: of the format, (major, minor).
        reader_features, writer_features: what a program must know to read the store, or to write it.
        further_targets: name of a further target -> its kind and classes.
        labels: how targets, classes and boxes were read, as far as options said it.
        compression: how the pixels are compressed; None where they are raw.
        texts: names of the columns of texts, the first one first, each also an extra that says where they are.
        mask_values: values of masks, rising: no mask has another; () where they are not recorded.
        digest: "sha256:" and that of manifest.json.

    Raises:
        StoreError: the values contradict each other.
    """

    # In the order of FORMAT.md, which is that of the head.
    version: tuple[int, int] = key(_VERSION, default=FORMAT_VERSION)
    reader_features: tuple[str, ...] = key(TEXTS, default=())
    writer_features: tuple[str, ...] = key(TEXTS, default=())
    rows: int = key(integer(1))
    height: int = key(_SIDE)
    width: int = key(_SIDE)
    channels: int = key(one_of(1, 3, 4))
    target_kind: str = key(_TARGET_KIND, "kind", inside="targets")
    target_count: int | None = key(optional(integer(1, MOST_TARGETS)), "count", inside="targets")
    has_content: bool = key(BOOL, "content")
    extras: Mapping[str, TensorSpec] = key(records_of(TensorSpec, "the extra {} of the manifest"))
    classes: tuple[str, ...] = key(TEXTS)
    further_targets: Mapping[str, FurtherTarget] = key(
        records_of(FurtherTarget, "the further target {} of the manifest"), where_given=True, default_factory=dict
    )
    texts: tuple[str, ...] = key(TEXTS, where_given=True, default=())
    labels: Mapping[str, Any] = key(_LABELS, where_given=True, default_factory=dict)
    mask_values: tuple[int, ...] = key(_MASK_VALUES, where_given=True, default=())
    mean: tuple[float, ...] = key(NUMBERS)
    std: tuple[float, ...] = key(NUMBERS)
    inputs: int = key(integer(1))
    rejected: int = key(integer(0))
    options: Mapping[str, Any] = key(_OPTIONS)
    decoders: Mapping[str, Any] = key(values_of(_DECODER, "decoders of the manifest"))
    compression: Compression | None = key(_COMPRESSION, where_given=True, default=None)
    files: Mapping[str, FileEntry] = key(records_of(FileEntry, "the entry of the file {} in the manifest"))
    digest: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        check_record("the manifest", self, ("rows", "height", "width", "channels"))
        if self.target_kind not in TARGET_DTYPES or (self.target_kind == "class") != (self.target_count is None):
            raise StoreError(
                f"the manifest says targets of kind {brief(self.target_kind)} x {brief(self.target_count)}."
            )
        for name in self.extras:
            if not EXTRA_NAME.fullmatch(name):
                raise StoreError(f"the manifest names an extra {brief(name)}, expected letters, digits, _ and -.")
        for name, target in self.further_targets.items():
            if name not in self.extras or self.extras[name].dtype != TARGET_DTYPES[target.kind]:
                raise StoreError(f"the manifest says that the extra {brief(name)} is a target of kind {target.kind!r}.")
        if self.has_own_masks and (not self.has_own_sizes or "masks" in self.extras):
            raise StoreError(
                f"the manifest says {OWN_MASKS}, expected {OWN_SIZES} with it, and no extra 'masks' beside it."
            )
        if self.mask_values and not self.has_masks:
            raise StoreError(
                f"the manifest says mask_values {brief(self.mask_values)}, expected them with masks alone."
            )
        others = [SAMPLES, REJECTED, *text_files(self.texts, self.extras, self.reader_features)]
        expected = sorted([*self.tensor_paths().values(), *metadata_names(has_extras=bool(self.extras)), *others])
        if sorted(self.files) != expected:
            other = [brief(name) for name in sorted({*self.files} ^ {*expected})]
            raise StoreError(f"the manifest lists other files than {expected}: {', '.join(other[:5])}.")
        if self.has_own_sizes and self.has_content:
            raise StoreError("the manifest says that rows have content and sizes of their own, expected one of them.")

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Every tensor of the store by name; extras as "extras/<name>"."""
        target_shape = () if self.target_count is None else (self.target_count,)
        row_shape = () if self.is_flat else self.sides
        specs = {
            "pixels": TensorSpec("uint8", row_shape),
            "targets": TensorSpec(TARGET_DTYPES[self.target_kind], target_shape),
        }
        if self.has_content:
            specs["content"] = TensorSpec("int32", (4,))
        specs |= self.kind.tensors
        if self.has_own_masks:
            specs["mask_offsets"] = TensorSpec("int64", ())
        specs |= self.coding.tensors
        return specs | {f"extras/{name}": spec for name, spec in sorted(self.extras.items())}

    def tensor_paths(self) -> dict[str, str]:
        """Return tensor name -> path of its file inside the store."""
        return {name: f"_tensordict/{name}.memmap" for name in self.tensors}

    @cached_property
    def kind(self) -> RowKind:
        """What follows from whether rows have one size."""
        return kind_of(self.reader_features)

    @property
    def coding(self) -> Compression | RawPixels:
        """What follows from whether rows are raw or frames."""
        return self.compression or RAW

    @property
    def form(self) -> str:
        """What asks for such rows, as --compress has it: "" (raw), "zstd" or "jpeg:95"."""
        return self.coding.form

    @property
    def has_own_sizes(self) -> bool:
        """Whether rows have sizes of their own: pixels is then flat, and offsets and shapes say where each row is."""
        return self.kind.has_own_sizes

    @property
    def has_own_masks(self) -> bool:
        """Whether each row, which has a size of its own, has its mask behind its pixels."""
        return OWN_MASKS in self.reader_features

    @property
    def has_masks(self) -> bool:
        """Whether rows have masks: in a tensor of their own, or behind their pixels."""
        return self.has_own_masks or "masks" in self.extras

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width of a row, of rows with sizes of their own the most."""
        return self.height, self.width

    @property
    def sides(self) -> tuple[int, int, int]:
        """Height, width and channels of a row, of rows with sizes of their own the most."""
        return self.height, self.width, self.channels

    @property
    def pixel_shape(self) -> tuple[int, ...]:
        """The shape of all pixels, unpacked."""
        return self.kind.pixel_shape(self.rows, self.sides, self.pixel_bytes)

    @property
    def is_flat(self) -> bool:
        """Whether pixels.memmap has no dimension of rows: they have sizes of their own, or are frames."""
        return self.kind.is_flat or bool(self.form)

    def count(self, name: str) -> int:
        """Return the length of a tensor: N, but of flat pixels the bytes of their file."""
        return self.files[PIXELS].size_bytes if name == "pixels" and self.is_flat else self.rows

    @property
    def pixel_bytes(self) -> int:
        """Bytes of the pixels of all rows, unpacked; of raw rows those of their file."""
        return self.coding.unpacked_bytes(self.files[PIXELS].size_bytes)

    @cached_property
    def row_bytes(self) -> int:
        """Bytes of the pixels of one row, of rows with sizes of their own on average, masks included."""
        return self.kind.row_bytes(self.rows, self.sides, self.pixel_bytes)

    @property
    def block_numbers(self) -> int:
        """How many numbers the line of a block has."""
        return self.coding.block_numbers or self.kind.block_numbers

    @property
    def batch_type(self) -> str:
        """What tensordict's files name."""
        return self.coding.batch_type or self.kind.batch_type

    def file_bytes(self, used_bytes: int) -> int:
        """Return the size of the file of pixels whose rows take so many bytes in it."""
        return self.kind.file_bytes(used_bytes, self.form)

    def to_json(self) -> dict[str, object]:
        """Return the head of manifest.json, in its order."""
        return {"format": FORMAT_NAME, **write_record(self)}

    @classmethod
    def from_json(cls, head: Mapping[str, Any], digest: str = "") -> Manifest:
        """Build from the parsed head of manifest.json.

        Raises:
            StoreError: a field is missing or malformed, or the format is newer than this reader.
        """
        check_version(head)
        values = read_values(cls, "the manifest", head)
        # raw rows may have the key: of a later version, or of no meaning
        values["compression"] = Compression.of_head(head)
        manifest = cls(**values, digest=digest)
        manifest.check_sums()
        return manifest

    def check_sums(self) -> None:
        """Check what the fields say of each other: counts, classes of targets, digests and sizes of files.

        Raises:
            StoreError: two of them contradict each other.
        """
        if self.inputs != self.rows + self.rejected:
            raise StoreError(
                f"the manifest says {self.inputs} inputs, expected its {self.rows} rows and {self.rejected} rejects."
            )
        for name in ("mean", "std"):
            if len(given := getattr(self, name)) != self.channels:
                raise StoreError(f"the manifest says {name} = {brief(given)}, expected {self.channels} numbers.")
        tensors = self.tensors
        _check_classes("targets", self.target_kind, self.classes, tensors["targets"])
        for name, target in self.further_targets.items():
            _check_classes(name, target.kind, target.classes, self.extras[name])
        for name, entry in self.files.items():
            digest = _CRC32 if name == PIXELS else _SHA256
            digest.check(f"the entry of the file {brief(name)} in the manifest", "digest", entry.digest)
        for name, spec in tensors.items():
            self._check_size(name, spec)
        self.coding.check_sums(self.kind.required_bytes(self.rows, self.sides), self.files[PIXELS].size_bytes)

    def _check_size(self, name: str, spec: TensorSpec) -> None:
        """Check the size of a tensor's file."""
        count, path = self.count(name), f"_tensordict/{name}.memmap"
        # also where one side is 0: strides are products of the others
        sides = [max(1, side) for side in (count, *spec.row_shape)]
        if math.prod(sides) * ITEM_BYTES[spec.dtype] > INT64_MOST:
            raise StoreError(f"the manifest says {name} of the shape {sides}, which is larger than any file.")
        need, found = count * spec.row_bytes, self.files[path].size_bytes
        if found != need:
            raise StoreError(f"it lists {path} with {found} bytes, {self.rows} rows need {need}.")
        if name == "pixels" and (found < self.rows or found != self.file_bytes(found)):
            raise StoreError(f"it lists {path} with {found} bytes, expected whole pages of {PAGE_BYTES}.")


def _check_classes(name: str, kind: str, classes: tuple[str, ...], spec: TensorSpec) -> None:
    """Check that a target has the shape of its kind, and as many numbers as classes."""
    if len(spec.row_shape) != (kind != "class") or (
        kind == "multi-hot" and classes and spec.row_shape != (len(classes),)
    ):
        raise StoreError(
            f"the manifest says {name} of kind {kind!r} with rows {list(spec.row_shape)} and {len(classes)} classes."
        )
    if math.prod(spec.row_shape) > MOST_TARGETS:
        raise StoreError(f"the manifest says {name} with rows {list(spec.row_shape)}, expected up to {MOST_TARGETS}.")


def read_manifest(out: str | os.PathLike[str]) -> Manifest:
    """Read and check OUT/manifest.json alone: its digest, version and fields. Milliseconds, whatever the number of rows.

    Raises:
        IncompleteStoreError: OUT holds a pack that has not finished.
        StoreError: OUT is not a store, or its manifest was changed.
    """
    root = Path(out)
    path = root / MANIFEST
    with open_manifest(root) as file:
        return parse_manifest(file, path)[0]


def open_manifest(root: Path) -> IO[bytes]:
    """Open OUT/manifest.json.

    Raises:
        StoreError: there is none, it is not a regular file, or may not be read.
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
    """Read and check what an open manifest.json says; returns it and the byte where its first block begins.

    Raises:
        StoreError: it was changed, or its fields are not what FORMAT.md says.
    """
    with error_path(path):
        head = read_head(file, path)
    try:
        return Manifest.from_json(head.fields, head.digest), head.blocks_begin
    except StoreError as e:
        raise StoreError(f"{path}: {e}") from None


def _no_manifest(root: Path) -> StoreError:
    """Say what a folder without a manifest is instead of a store."""
    children = [name for name in ROLES if (root / name / MANIFEST).is_file()]
    if children and not is_stage(root):
        return StoreError(f"{root} holds {len(children)} stores. Open one of them: {root / children[0]}")
    if any(os.path.isdir(stage / FOLDER) for stage in stages(root)):
        return IncompleteStoreError(
            f"{root} is incomplete: what makes it is still running, or was interrupted."
            f" How far it came, and how to resume it: {shlex.join(['pack', 'info', str(root)])}"
        )
    if not root.is_dir():
        command = shlex.join(["pack", "IMAGES", str(root)])
        return StoreError(f"{root} does not exist. Expected the folder of a store. Make one with: {command}")
    return StoreError(f"{root} is not a pixpack store: it has no {MANIFEST}. Make one with: pack IMAGES OUT")
