"""Messages between the command and its workers: a block to decode, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from reader.format.values import Json, integer, text, texts, value_in

# A block is small enough that a worker holds several, and large enough that its journal line does not matter. It is small
# against the pack, so that workers end together.
BLOCK_BYTES = 8 << 20
LEAST_BLOCK_INPUTS = 8


@dataclass(frozen=True)
class Task:
    """Inputs [start, stop) of a pack, all or some of a block; refused ones are rejected with that reason, unopened.

    targets has a number, or a list of numbers, per input; members is empty, or has the place of each input in an archive;
    masks is empty, or has the path of each input's mask.
    """

    block: int
    start: int
    paths: list[str]
    targets: list[object]
    members: list[list[int]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)
    # only for tables and tars: the further columns of each input, a JSON object
    cells: list[str] = field(default_factory=list)
    # only in an update: input -> its row in the replaced store, and the byte of samples.jsonl where its line begins
    reused: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """The input after its last."""
        return self.start + len(self.paths)


@dataclass(frozen=True)
class RejectedInput:
    """An input of a block that became no row: its number in the pack, its path, and why. Field names are keys of the journal."""

    input: int
    path: str
    reason: str


@dataclass
class Result:
    """A decoded block without its pixels; one line of the journal, with the field names as keys.

    All inputs of the block except rejects are rows. size_bytes is the block's size in the file of rows. shapes, (height,
    width) of each row, is empty if all have one size. frames, bytes of each row in the file, is empty if rows are raw.
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
    rejects: list[RejectedInput] = field(default_factory=list)
    # size, mtime and ctime of each source, as they were when it was read
    sources: list[tuple[int, int, int]] = field(default_factory=list)
    source_bytes: int = 0
    size_bytes: int = 0
    shapes: list[tuple[int, int]] = field(default_factory=list)
    frames: list[int] = field(default_factory=list)
    # only with masks: those of each mask's file
    mask_sources: list[tuple[int, int, int]] = field(default_factory=list)
    # the values of the masks of its rows, ascending
    mask_values: list[int] = field(default_factory=list)
    # rows reused from the replaced store; the name is a key of the journal
    kept: int = 0


def read_result(line: Json) -> Result:
    """Return the block from a line of the journal.

    Raises:
        StoreError: a value is invalid in a block.
    """
    what = "a block of the journal"
    values: dict[str, Any] = {name: integer(what, line, name, 0) for name in _COUNTS}
    values |= {name: _lists(what, line, name, width) for name, width in _WIDTHS.items()}
    samples = [*texts(what, line, "samples")]
    rejects = [
        RejectedInput(integer(what, one, "input", 0), text(what, one, "path"), text(what, one, "reason"))
        for one in value_in(what, line, "rejects", lambda value: type(value) is list, "a list of objects")
    ]
    return Result(**values, samples=samples, rejects=rejects)


_COUNTS = ("block", "inputs", "rows", "crc32", "pixel_count", "source_bytes", "size_bytes", "kept")
# Lists of integers, or of lists of this length.
_WIDTHS = {
    **dict.fromkeys(("sums", "square_sums", "frames", "mask_values"), 0),
    "shapes": 2,
    "sources": 3,
    "mask_sources": 3,
    "content": 4,
}


def _lists(what: str, line: Json, name: str, width: int) -> list[Any]:
    def are_integers(values: Json, count: int) -> bool:
        """Whether this is a list of count integers; 0: of any length."""
        is_long = type(values) is list and count in (0, len(values))
        return is_long and all(type(value) is int for value in values)

    def are_lists(values: Json) -> bool:
        """Whether this is a list of lists of count integers."""
        return type(values) is list and all(are_integers(each, width) for each in values)

    holds = are_lists if width else lambda values: are_integers(values, 0)
    expected = f"a list of {width} integers each" if width else "a list of integers"
    found: list[Any] = value_in(what, line, name, holds, expected)
    return found


_BLOCK_INPUTS = 4096
_BLOCKS_AT_LEAST = 128


def block_inputs(inputs: int, row_bytes: int) -> int:
    """Return how many inputs make a block: the same for every run of a pack."""
    by_bytes = max(1, BLOCK_BYTES // row_bytes)
    return min(by_bytes, _BLOCK_INPUTS, max(LEAST_BLOCK_INPUTS, inputs // _BLOCKS_AT_LEAST))
