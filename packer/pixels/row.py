"""One decoded row: its pixels and what is recorded of how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Row:
    """One decoded input. width and height are the upright source's, done is what samples.jsonl records beside them.

    frame: the pixels as a store keeps them, where that is known already.
    """

    pixels: bytes | bytearray
    content: tuple[int, int, int, int]
    width: int
    height: int
    done: dict[str, Any] = field(default_factory=dict)
    frame: bytes = b""


class RowDecoder(Protocol):
    """Makes the rows of images, one after the other."""

    def row(self, data: bytes) -> Row:
        """Decode one image into a row; raises DecodeError."""
        ...
