"""What the command and its workers tell each other: a block to do, and what is known of it when it is decoded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

# Made once: json.dumps makes an encoder for each call that has options, 20 us between two images (2026-11-21).
_JSON = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"))


@dataclass(frozen=True)
class Task:
    """Inputs [start, start + len(paths)) of a pack; refused ones are rejected with that reason, unopened.

    first: inputs to decode before all others, since a worker ended with them in flight: what an image does to its process
    must not be laid to the charge of the next one.
    targets has a number, or a list of them, for each; places is empty, or says where in an archive each one is; masks is
    empty, or has the path of each one's mask, or what it is drawn of.
    """

    block: int
    start: int
    paths: list[str]
    targets: list[Any]
    places: list[list[int]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    first: tuple[int, ...] = ()
    masks: list[str] = field(default_factory=list)
    # only in an update: input -> its row in the store that is replaced, and the byte of samples.jsonl where its line begins
    kept: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass
class Result:
    """What is known of a decoded block, all but its pixels; becomes one line of the journal.

    A reject is {"input": its number in the pack, "path": ..., "reason": ...}; all other inputs of the block are rows.
    shapes, (height, width) of each row, is empty where all rows have one size.
    """

    block: int
    inputs: int
    rows: int = 0
    crc32: int = 0
    pixel_count: int = 0
    sums: list[int] = field(default_factory=list)
    square_sums: list[int] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)
    content: list[tuple[int, int, int, int]] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    sources: list[tuple[int, int]] = field(default_factory=list)
    source_bytes: int = 0
    size_bytes: int = 0
    shapes: list[tuple[int, int]] = field(default_factory=list)
    # only with masks: of each one's file
    mask_sources: list[tuple[int, int]] = field(default_factory=list)
    # rows that were taken over from the store that is replaced
    kept: int = 0

    @property
    def places(self) -> int:
        """How much the block takes of the file: rows, or bytes where rows have sizes of their own."""
        return self.size_bytes if self.shapes else self.rows


def encode_line(value: dict[str, Any]) -> str:
    """Encode one line of samples.jsonl or rejected.jsonl; ASCII, so that names that are no UTF-8 survive too."""
    return _JSON.encode(value) + "\n"
