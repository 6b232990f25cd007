"""The lines of samples.jsonl, one a row, and of rejected.jsonl, one a rejected input."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from reader.format.errors import StoreError
from reader.format.filesystem import error_path, open_regular
from reader.format.manifest import REJECTED, SAMPLES, Manifest
from reader.format.samples import MOST_LINE_BYTES
from reader.format.shown import brief, shown
from reader.format.values import INT32_MOST, INT64_MOST, Json, integer, is_number, text

_REMEDY = "Copy the store again, or pack again."
_SHA256 = re.compile("[0-9a-f]{64}").fullmatch
# Optional fields that record how a row was decoded: a test of the value, and the expected value in words.
_DECODING: dict[str, tuple[Callable[[Json], bool], str]] = {
    **dict.fromkeys(("decoder", "format", "kept"), (lambda value: type(value) is str, "text")),
    "requantized": (lambda value: type(value) is bool, "true or false"),
    "exif_orientation": (lambda value: type(value) is int and 1 <= value <= 8, "an integer of 1 to 8"),
    "dct_scale": (lambda value: type(value) is int and 1 <= value <= 64, "an integer of 1 to 64"),
    "squared_error": (lambda value: type(value) is int and 0 <= value <= INT64_MOST, "an integer of 0 or more"),
    "warnings": (lambda value: type(value) is list and all(type(each) is str for each in value), "a list of texts"),
}

# Made once: json.dumps with options makes an encoder at each call.
_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))
# json.loads takes half as long again: it skips white space, which no line has.
_DECODE = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of samples.jsonl: the input that a row was packed from.

    width and height are pixels of the upright source; size_bytes and sha256 are None if it is not a file. decoding records
    the row's decoder and its settings, under the keys of the line. columns are the other columns of the table, or None.
    """

    path: str
    target: Json
    size_bytes: int | None
    sha256: str | None
    width: int
    height: int
    decoding: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Json] | None = None

    def encode(self) -> str:
        """Return the line; ASCII, so that names that are no UTF-8 survive too."""
        line: dict[str, object] = {"path": self.path, "target": self.target}
        if self.sha256 is not None:
            line |= {"bytes": self.size_bytes, "sha256": self.sha256}
        if self.columns is not None:
            line["columns"] = self.columns
        return encode_line(line | {"width": self.width, "height": self.height, **self.decoding})

    @classmethod
    def decode(cls, line: str | bytes) -> Sample:
        """Read a line.

        Raises:
            ValueError: it is invalid, or a value has another kind than in FORMAT.md.
        """
        given = line.decode("ascii") if isinstance(line, bytes) else line
        try:
            keys, end = _DECODE(given)
            take = keys.pop
            own = take("path"), take("target"), take("bytes", None), take("sha256", None), take("width"), take("height")
            columns = take("columns", None)
        except (TypeError, KeyError, AttributeError, RecursionError) as e:
            raise ValueError(f"{given[:60]!r} is not a line of {SAMPLES}.") from e
        if given[end:] not in ("\n", ""):
            raise ValueError(f"{given[:60]!r} is not a line of {SAMPLES}: there is text after the object.")
        path, target, size_bytes, sha256, width, height = own
        # a table of checks would take 3 us a row
        if not (
            type(path) is str
            and (type(target) is int or type(target) is list)
            and (size_bytes is None or (type(size_bytes) is int and 0 <= size_bytes <= INT64_MOST))
            and (columns is None or type(columns) is dict)
            and (sha256 is None or (type(sha256) is str and _SHA256(sha256)))
            and type(width) is type(height) is int
            and 0 < width <= INT32_MOST
            and 0 < height <= INT32_MOST
        ):
            raise ValueError(f"{given[:60]!r} is not a line of {SAMPLES}: a value is of another kind, or out of range.")
        if type(target) is list and not all(map(is_number, target)):
            raise ValueError(f"{given[:60]!r} is not a line of {SAMPLES}: its target is not a list of finite numbers.")
        for name, value in keys.items():
            if name in _DECODING and not _DECODING[name][0](value):
                raise ValueError(f"a line of {SAMPLES} says {name} = {brief(value)}, expected {_DECODING[name][1]}.")
        return cls(path, target, size_bytes, sha256, width, height, keys, columns)


@dataclass(frozen=True)
class Reject:
    """A line of rejected.jsonl: a rejected input and the reason; line: its line number in a list, or None."""

    path: str
    reason: str
    line: int | None = None

    def encode(self) -> str:
        """Return the line."""
        line = {} if self.line is None else {"line": self.line}
        return encode_line({"path": self.path, "reason": self.reason, **line})


def encode_line(value: Mapping[str, object]) -> str:
    """Encode one object as a line of ASCII."""
    return _JSON.encode(value) + "\n"


def read_samples(out: Path, manifest: Manifest | None = None) -> Iterator[Sample]:
    """Yield the lines of a store's samples.jsonl, in the order of its rows.

    Args:
        manifest: if given, the number of lines and their targets are compared with it.

    Raises:
        StoreError: a line is invalid; names the row.
    """
    return (sample for _, sample in read_samples_with_offsets(out, manifest))


def read_samples_with_offsets(
    out: Path, manifest: Manifest | None = None, *, first: int = 0, begin: int = 0
) -> Iterator[tuple[int, Sample]]:
    """Yield the lines as `read_samples` does, each with its offset in the file.

    first: the row to begin with, whose line begins at byte `begin`.
    """
    row = first - 1
    for row, line in enumerate(_lines(out / SAMPLES, begin), first):
        yield begin, _decoded(out, row, line, manifest)
        begin += len(line)
    if manifest is not None and row + 1 != manifest.rows:
        raise StoreError(f"{out / SAMPLES} has {row + 1} lines, the manifest says {manifest.rows} rows. {_REMEDY}")


def _decoded(out: Path, row: int, line: bytes, manifest: Manifest | None = None) -> Sample:
    """Parse a row's line; an error names the row."""
    try:
        sample = Sample.decode(line)
        if manifest is not None:
            check_sample(sample, manifest)
    except ValueError as e:
        raise StoreError(f"{out / SAMPLES}, row {row}: {shown(str(e), most=300)} {_REMEDY}") from None
    return sample


def check_sample(sample: Sample, manifest: Manifest) -> None:
    """Check that a line's target is valid in its store.

    Raises:
        ValueError: it is not.
    """
    target = sample.target
    if manifest.target_count is None:
        is_right = type(target) is int and -1 <= target < len(manifest.classes)
    else:
        is_right = type(target) is list and len(target) == manifest.target_count
        if is_right and manifest.target_kind == "multi-hot":
            is_right = all(type(value) is int and 0 <= value <= 1 for value in target)
    if not is_right:
        raise ValueError(f"the target {brief(target)} is not valid in this store.")


def read_rejects(out: Path) -> Iterator[Reject]:
    """Yield the lines of a store's rejected.jsonl, in the order of the inputs.

    Raises:
        StoreError: a line is invalid; names it.
    """
    for number, raw in enumerate(_lines(out / REJECTED)):
        what = f"{out / REJECTED}, line {number + 1}"
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            raise StoreError(f"{what}: {brief(raw)} is not JSON. {_REMEDY}") from None
        number_of_list = integer(what, line, "line", 0) if type(line) is dict and "line" in line else None
        yield Reject(text(what, line, "path"), text(what, line, "reason"), number_of_list)


def read_json_lines(path: Path) -> Iterator[dict[str, object]]:
    """Yield the objects of samples.jsonl or rejected.jsonl."""
    with error_path(path), open(path, encoding="ascii") as file:
        for line in file:
            yield json.loads(line)


def _lines(path: Path, begin: int = 0) -> Iterator[bytes]:
    """Yield the lines of a file from a byte offset; a line above the limit is cut, and then fails to parse."""
    with error_path(path), open_regular(path) as file:
        file.seek(begin)
        yield from iter(partial(file.readline, MOST_LINE_BYTES), b"")


def read_paths(out: Path) -> list[str]:
    """Return the paths of all inputs of a store: those of its rows, then the rejected ones."""
    return [*(sample.path for sample in read_samples(out)), *(reject.path for reject in read_rejects(out))]
