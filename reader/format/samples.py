"""The lines of samples.jsonl, one a row, and of rejected.jsonl, one an input that became none."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reader.format.filesystem import error_path
from reader.format.manifest import REJECTED, SAMPLES, read_json_lines

# Made once: json.dumps makes an encoder for each call that has options, 20 us between two images (2026-11-21).
_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))
# 1.5 us a line, where json.loads takes 2.4 to skip white space that no line has (2026-11-22).
_DECODE = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class Sample:
    """A line of samples.jsonl: the input that a row was made of.

    width and height are pixels of the upright source; size_bytes and sha256 are None for what is no file. decoding says which
    decoder made the row, and how, under the keys of the line.
    """

    path: str
    target: Any
    size_bytes: int | None
    sha256: str | None
    width: int
    height: int
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        """Return the line; ASCII, so that names that are no UTF-8 survive too."""
        line: dict[str, Any] = {"path": self.path, "target": self.target}
        if self.sha256 is not None:
            line |= {"bytes": self.size_bytes, "sha256": self.sha256}
        return encode_line(line | {"width": self.width, "height": self.height, **self.decoding})

    @classmethod
    def decode(cls, line: str | bytes) -> Sample:
        """Read a line.

        Raises:
            ValueError: it is none.
        """
        text = line.decode("ascii") if isinstance(line, bytes) else line
        try:
            keys, end = _DECODE(text)
            take = keys.pop
            own = take("path"), take("target"), take("bytes", None), take("sha256", None), take("width"), take("height")
        except (TypeError, KeyError, AttributeError) as e:
            raise ValueError(f"{text[:60]!r} is no line of {SAMPLES}.") from e
        if text[end:] not in ("\n", ""):
            raise ValueError(f"{text[:60]!r} is no line of {SAMPLES}: something is behind the object.")
        return cls(*own, keys)


@dataclass(frozen=True)
class Reject:
    """A line of rejected.jsonl: an input that became no row, and why; line is its line of a list, None where it has none."""

    path: str
    reason: str
    line: int | None = None

    def encode(self) -> str:
        """Return the line."""
        known = {"path": self.path, "reason": self.reason}
        return encode_line(known if self.line is None else known | {"line": self.line})


def encode_line(value: Mapping[str, Any]) -> str:
    """Encode one object as a line of ASCII."""
    return _JSON.encode(value) + "\n"


def read_samples(out: Path) -> Iterator[Sample]:
    """Yield the lines of a store's samples.jsonl, in the order of its rows."""
    with error_path(out / SAMPLES), open(out / SAMPLES, encoding="ascii") as file:
        yield from map(Sample.decode, file)


def read_rejects(out: Path) -> Iterator[Reject]:
    """Yield the lines of a store's rejected.jsonl, in the order of the inputs."""
    return (Reject(line["path"], line["reason"], line.get("line")) for line in read_json_lines(out / REJECTED))


def read_paths(out: Path) -> list[str]:
    """Return the paths of all inputs of a store: those of its rows, then the rejected ones."""
    return [*(sample.path for sample in read_samples(out)), *(reject.path for reject in read_rejects(out))]
