"""Parts of one pack, on any hosts that share OUT's folder: what each one has, where it works, and which have started.

A part works in .packing/parts/2-of-4 of the stage as a pack works in the stage: no file is ever written by two hosts. The parts
become one store in `packer.packing.parts.seal_parts`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from packer.store.journal import FOLDER, header_of

PARTS = f"{FOLDER}/parts"
_NAME = re.compile(r"([1-9]\d*)-of-([1-9]\d*)")


@dataclass(frozen=True, order=True)
class Part:
    """The number-th of count equal parts, from 1; written 2/4."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Part:
        """Read "2/4", which the options have checked."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def span(self, inputs: int, block_inputs: int) -> range:
        """Return the span of inputs of this part, in complete blocks, so that parts have the blocks of one pack.

        Example:
            >>> [Part(number, 3).span(inputs=10, block_inputs=2) for number in (1, 2, 3)]
            [range(0, 2), range(2, 6), range(6, 10)]
        """
        blocks = -(-inputs // block_inputs)
        start, stop = (blocks * number // self.count * block_inputs for number in (self.number - 1, self.number))
        return range(min(start, inputs), min(stop, inputs))

    def folder(self, out: Path) -> Path:
        """Name the folder that this part of OUT works in."""
        return out / PARTS / f"{self.number}-of-{self.count}"


def started_parts(out: Path) -> list[Part]:
    """List the parts of OUT that have a journal, in order."""
    try:
        names = os.listdir(out / PARTS)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = sorted(Part(int(match[1]), int(match[2])) for match in map(_NAME.fullmatch, names) if match)
    return [part for part in found if header_of(part.folder(out))]
