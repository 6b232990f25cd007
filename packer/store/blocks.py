"""Messages between the command and its workers: a block to decode, and its result."""

from __future__ import annotations

from dataclasses import dataclass, field

from packer.store.fields import BYTES, TEXT, integer, key, list_of, record, record_of
from reader.tuning import tuning


@dataclass(frozen=True)
class Task:
    """Inputs [start, stop) of a pack, all or some of a block; refused ones are rejected with that reason, unopened.

    targets has a number, or a list of them, for each; members is empty, or says where in an archive each one is; masks is
    empty, or has the path of each one's mask, or what it is drawn of.
    """

    block: int
    start: int
    paths: list[str]
    targets: list[object]
    members: list[list[int]] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    masks: list[str] = field(default_factory=list)
    # only of tables and tars: the further columns of each one, a JSON object
    cells: list[str] = field(default_factory=list)
    # only in an update: input -> its row in the store that is replaced, and the byte of samples.jsonl where its line begins
    reused: dict[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def stop(self) -> int:
        """The input behind its last."""
        return self.start + len(self.paths)


@record()
class RejectedInput:
    """An input of a block that became no row: its number in the pack, its path, and why. Field names are keys of the journal."""

    input: int = key(integer(0))
    path: str = key(TEXT)
    reason: str = key(TEXT)


_COUNT = integer(0)
_CRC32 = integer(0, (1 << 32) - 1)
_SUMS = list_of(integer(0, 1 << 128), "a list of integers")
_CONTENT = list_of(list_of(integer(0), "four integers", count=4), "a list of four integers each")
_REJECTS = list_of(record_of(RejectedInput), "a list of objects with input, path and reason")
_PAIRS = list_of(list_of(integer(-1), "two integers", count=2), "a list of pairs of integers")
# Bytes and times in ns: files may be dated before 1970, and after 2262, when 64 bits end.
_STATES = list_of(list_of(integer(-(1 << 127), 1 << 127), "three integers", count=3), "a list of three integers each")
_SIZES = list_of(integer(1), "a list of integers of 1 or more")


@record(frozen=False)
class Result:
    """What is known of a decoded block, all but its pixels; becomes one line of the journal.

    Inputs of the block that are no rejects are rows. size_bytes is what the block takes of the file of rows; shapes, (height,
    width) of each row, is empty where all have one size; frames, bytes of each row in the file, is empty where rows are raw.
    """

    block: int = key(_COUNT)
    inputs: int = key(_COUNT)
    rows: int = key(_COUNT, default=0)
    crc32: int = key(_CRC32, default=0)
    pixel_count: int = key(_COUNT, default=0)
    sums: list[int] = key(_SUMS, default_factory=list)
    square_sums: list[int] = key(_SUMS, default_factory=list)
    samples: list[str] = key(list_of(TEXT, "a list of texts"), default_factory=list)
    content: list[tuple[int, int, int, int]] = key(_CONTENT, default_factory=list)
    rejects: list[RejectedInput] = key(_REJECTS, default_factory=list)
    # size, mtime and ctime of each source, as they were when it was read
    sources: list[tuple[int, int, int]] = key(_STATES, default_factory=list)
    source_bytes: int = key(_COUNT, default=0)
    size_bytes: int = key(_COUNT, default=0)
    shapes: list[tuple[int, int]] = key(_PAIRS, default_factory=list)
    frames: list[int] = key(_SIZES, default_factory=list)
    # only with masks: of each one's file
    mask_sources: list[tuple[int, int, int]] = key(_STATES, default_factory=list)
    # which values the masks of its rows have, rising
    mask_values: list[int] = key(BYTES, default_factory=list)
    # rows that are reused of the store that is replaced; the name is a key of the journal
    kept: int = key(_COUNT, default=0)


_BLOCK_INPUTS = 4096
_BLOCKS_AT_LEAST = 128


def block_inputs(inputs: int, row_bytes: int) -> int:
    """Return how many inputs make a block: a function of the pack alone, so that any run cuts it alike."""
    by_bytes = max(1, tuning().block_bytes // row_bytes)
    return min(by_bytes, _BLOCK_INPUTS, max(tuning().least_block_inputs, inputs // _BLOCKS_AT_LEAST))
