"""One decoded row: its pixels and what is recorded of how they came about."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Row:
    """One decoded input. width and height are the upright source's, done is what samples.jsonl records beside them."""

    pixels: bytes
    content: tuple[int, int, int, int]
    width: int
    height: int
    done: dict[str, Any] = field(default_factory=dict)
