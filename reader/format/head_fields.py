"""The fields of a manifest's head: kind and range of each, as FORMAT.md has them. What they say of each other is `manifest`'s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reader.format.errors import StoreError
from reader.format.fields import (
    BOOL,
    INT32_MOST,
    NUMBER,
    NUMBERS,
    OBJECT,
    PLAIN_OBJECT,
    TEXT,
    TEXTS,
    Check,
    check_fields,
    integer,
    list_of,
    matching,
    object_of,
    one_of,
    optional,
)
from reader.format.shown import brief
from reader.format.tensors import ITEM_BYTES

TARGET_DTYPES = {"class": "int64", "regression": "float32", "multi-hot": "uint8"}

_SHA256 = matching(r"sha256:[0-9a-f]{64}", "sha256: and 64 hex digits")
_CRC32 = matching(r"crc32:[0-9a-f]{8}", "crc32: and 8 hex digits")
_KIND = one_of(*TARGET_DTYPES)
# numpy has arrays of up to 32 dimensions, of which one is that of rows
_SHAPE = list_of(integer(0, INT32_MOST), "a list of integers of 0 or more")
_MOST_DIMENSIONS = 30

_BYTES = list_of(integer(0, 255), "a list of integers from 0 to 255")
_SIDE, _SHORT_SIDE = (
    integer(1, INT32_MOST),
    matching(r"short:[1-9]\d{0,8}(?:/[24])?|\d{1,9}/[24]", "short: and a number"),
)

_MASK_VALUES = Check(
    "1 to 256 rising integers from 0 to 255",
    lambda value: _BYTES.holds(value) and bool(value) and value == sorted({*value}),
)

_HEAD = {
    "reader_features": TEXTS,
    "writer_features": TEXTS,
    "rows": integer(1),
    "height": integer(1, INT32_MOST),
    "width": integer(1, INT32_MOST),
    "channels": one_of(1, 3, 4),
    "targets": OBJECT,
    "content": BOOL,
    "extras": OBJECT,
    "classes": TEXTS,
    "further_targets": OBJECT,
    "texts": TEXTS,
    "levels": list_of(integer(2, 4), "a list of 2 and 4"),
    "labels": PLAIN_OBJECT,
    "mask_values": _MASK_VALUES,
    "mean": NUMBERS,
    "std": NUMBERS,
    "inputs": integer(1),
    "rejected": integer(0),
    "options": PLAIN_OBJECT,
    "decoders": OBJECT,
    "icc": OBJECT,
    "compression": OBJECT,
    "files": OBJECT,
}
_MAY_LACK = frozenset({"further_targets", "texts", "levels", "labels", "mask_values", "icc", "compression"})
# A line of samples.jsonl has all numbers of a row's target.
MOST_TARGETS = 1 << 24
_TARGETS = {"kind": _KIND, "count": optional(integer(1, MOST_TARGETS))}
_DECODER = object_of(
    Check(
        "text, a number, true, false or null",
        lambda value: value is None or type(value) is bool or TEXT.holds(value) or NUMBER.holds(value),
    ),
    "an object of texts",
)
# Those that an option of `pack` has today; others are of a later minor version, and any plain values.
_OPTIONS = {
    "size": optional(list_of(integer(1, INT32_MOST), "two integers", count=2)),
    "fit": TEXT,
    "crop_fraction": Check("a number above 0, up to 1", lambda value: NUMBER.holds(value) and 0 < value <= 1),
    "resample": TEXT,
    "exact": BOOL,
    "channels": TEXT,
    "shuffle": optional(integer(0, 1 << 256)),
    "strict": BOOL,
    "max_pixels": integer(1),
    "requantize": integer(1, 31),
    "icc": TEXT,
    "bit_depth": integer(1, 64),
    "min_visibility": NUMBER,
    "max_boxes": optional(integer(1, INT32_MOST)),
    "upright_labels": BOOL,
    "masks": TEXT,
    "mask_values": _BYTES,
    "compress": TEXT,
    "lossy": TEXT,
    "levels": integer(1, 3),
    "max_size": Check(
        'an integer, "short:" and one, or null',
        lambda value: value is None or _SIDE.holds(value) or _SHORT_SIDE.holds(value),
    ),
}
_LABELS = {
    **dict.fromkeys(("boxes", "extension", "path_column", "target_column", "text_column", "mask_suffix"), TEXT),
    **dict.fromkeys(("classes", "root", "unknown"), BOOL),
    "missing": TEXTS,
}
_FURTHER_TARGET = {"kind": _KIND, "classes": TEXTS}
_EXTRA = {"dtype": one_of(*ITEM_BYTES), "shape": _SHAPE}
_FILE = {"size_bytes": integer(0), "digest": TEXT}


@dataclass(frozen=True)
class FileEntry:
    """Exact size and digest ("sha256:..." or, for pixels, "crc32:...") of one file of the store."""

    size_bytes: int
    digest: str


@dataclass(frozen=True)
class FurtherTarget:
    """What an extra means that is a target beside `targets`: its kind, as that of `targets`, and the names of its classes."""

    kind: str
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in TARGET_DTYPES or not all(isinstance(name, str) for name in self.classes):
            raise StoreError(
                f"the manifest says further targets of kind {brief(self.kind)} with classes {brief(self.classes)}."
            )


def check_head(head: Mapping[str, Any], pixels: str) -> None:
    """Check kind and range of every field of a parsed head; format and version are `check_version`'s.

    Args:
        pixels: the path of the file whose digest is a crc32.

    Raises:
        StoreError: names the field, what was found and what was expected.
    """
    check_fields("the manifest", head, _HEAD, may_lack=_MAY_LACK)
    check_fields("targets of the manifest", head["targets"], _TARGETS)
    for name, extra in head["extras"].items():
        check_fields(f"the extra {brief(name)} of the manifest", extra, _EXTRA)
        if len(extra["shape"]) > _MOST_DIMENSIONS:
            raise StoreError(
                f"the manifest names an extra of {len(extra['shape'])} dimensions, expected {_MOST_DIMENSIONS}."
            )
    for name, target in head.get("further_targets", {}).items():
        check_fields(f"the further target {brief(name)} of the manifest", target, _FURTHER_TARGET)
    check_fields("labels of the manifest", head.get("labels", {}), _LABELS, may_lack=frozenset(_LABELS))
    check_fields("options of the manifest", head["options"], _OPTIONS, may_lack=frozenset(_OPTIONS))
    check_fields("decoders of the manifest", head["decoders"], dict.fromkeys(head["decoders"], _DECODER))
    check_fields(
        "icc of the manifest", head.get("icc", {}), dict.fromkeys(head.get("icc", {}), integer(1, head["rows"]))
    )
    for name, entry in head["files"].items():
        what = f"the entry of the file {brief(name)} in the manifest"
        check_fields(what, entry, _FILE)
        check_fields(what, entry, {"digest": _CRC32 if name == pixels else _SHA256})
