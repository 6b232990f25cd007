"""Computes the order of rows: pure arithmetic on (seed, epoch, rank, world size), resumable at any step by a few integers.

Nothing here reads a store. Rows are computed a range at a time; only weights need an array of N numbers.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from reader.rows import Rows

# Rounds of the bijection: with 4, neighbors, displacement and label mix of a class-sorted store are those of a uniform
# permutation (tests/loading/test_order.py); a fifth costs 20 % and has no measurable effect.
_ROUNDS = 4

# Positions of an order computed at a time: 65,536 is 40 % faster than 4,096, and takes 512 kB.
_CHUNK = 1 << 16
# The end of a window in an order without windows.
_NO_WINDOW = 1 << 62

_Word = TypeVar("_Word", bound=np.unsignedinteger)


def permuted(count: int, start: int, stop: int, *, seed: int, epoch: int = 0, part: int = 0) -> Rows:
    """Return positions [start, stop) of a permutation of range(count) fixed by (seed, epoch, part).

    A keyed bijection of the next power of two, walked until it falls inside (Kensler, "Correlated Multi-Jittered
    Sampling", Pixar 2013, section 3): no array of count entries, any range at once.

    Example:
        >>> sorted(permuted(5, 0, 5, seed=0).tolist())
        [0, 1, 2, 3, 4]
    """
    if count <= 1:
        return np.zeros(stop - start, dtype=np.int64)
    bits = max(2, (count - 1).bit_length())
    word = np.uint32 if bits <= 32 else np.uint64
    scramble = _scrambler(word, bits, _keys(seed, epoch, f"rows {part}"))
    values = scramble(np.arange(start, stop, dtype=word))
    outside = np.flatnonzero(values >= count)
    while len(outside):
        again = scramble(values[outside])
        values[outside] = again
        outside = outside[again >= count]
    return values.astype(np.int64)


def drawn(cumulative: npt.NDArray[np.float64], start: int, stop: int, *, seed: int, epoch: int = 0) -> Rows:
    """Return draws [start, stop), with replacement, fixed by (seed, epoch), from the cumulative sums of weights."""
    uniform = _uniform(np.arange(start, stop, dtype=np.uint64), _keys(seed, epoch, "draws"))
    # the last row with a weight above 0: a product may be rounded up to the sum itself
    last = np.searchsorted(cumulative, cumulative[-1])
    return np.minimum(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"), last)


class Step(NamedTuple):
    """A step of all ranks, and the part of it that one rank takes.

    position: the step's start in the order. rows: the rows of all ranks, with repeated ones. after: its end.
    start, stop: the positions of the rank; stop may exceed the number of rows: the first rows follow the last one.
    """

    position: int
    rows: int
    after: int
    start: int
    stop: int


class Order:
    """Gives the order of one epoch of `count` rows, of all ranks together. For one thread.

    Args:
        compute: the rows at positions [start, stop), both in [0, count].
    """

    # whether the rows of a window are in a few blocks of the store
    is_in_blocks = False

    def __init__(self, count: int, compute: Callable[[int, int], Rows]) -> None:
        self.count, self.compute = count, compute
        # the rows computed last, and their first position
        self._chunk_start, self._chunk = 0, np.zeros(0, dtype=np.int64)

    def rows(self, start: int, stop: int) -> Rows:
        """Return the rows at [start, stop); the order is computed a chunk at a time."""
        if not self._chunk_start <= start <= stop <= self._chunk_start + len(self._chunk):
            self._chunk_start, self._chunk = start, self.compute(start, min(self.count, max(stop, start + _CHUNK)))
        return self._chunk[start - self._chunk_start : stop - self._chunk_start]

    def of_step(self, step: Step) -> Rows:
        """Return the rows at [start, stop) of a step."""
        start, stop = step.start, step.stop
        return self.rows(start, stop) if stop <= self.count else wrapped(self.rows, self.count, start, stop)

    def window_end(self, position: int) -> int:
        """Return the end of a position's window; a huge position without windows."""
        lap = position // self.count * self.count
        return lap + self._window_end(position - lap)

    def _window_end(self, position: int) -> int:
        return _NO_WINDOW


class BlockOrder(Order):
    """Puts contiguous blocks in random order, and mixes rows inside a window of blocks: large reads, nearly full mixing.

    Positions are computed a window at a time; only an array of count / block entries is kept.
    """

    is_in_blocks = True

    def __init__(self, count: int, block: int, window: int, *, seed: int, epoch: int) -> None:
        super().__init__(count, self._blocks)
        self._window = window
        self._seed, self._epoch = seed, epoch
        blocks = -(-count // block)
        self._starts = permuted(blocks, 0, blocks, seed=seed, epoch=epoch) * block
        self._stops = np.minimum(self._starts + block, count)
        # [2, 0, 1] of 10 rows in blocks of 4 -> sizes [2, 4, 4], bounds [0, 2, 6, 10]
        self._bounds = np.concatenate([[0], np.cumsum(self._stops - self._starts)])

    def _blocks(self, start: int, stop: int) -> Rows:
        pieces = [np.zeros(0, dtype=np.int64)]
        while start < stop:
            window = (int(np.searchsorted(self._bounds, start, side="right")) - 1) // self._window
            pieces.append(self._window_rows(window, start, stop))
            start += len(pieces[-1])
        return np.concatenate(pieces)

    def _window_end(self, position: int) -> int:
        block = int(np.searchsorted(self._bounds, position, side="right")) - 1
        return int(self._bounds[min((block // self._window + 1) * self._window, len(self._starts))])

    def _window_rows(self, number: int, start: int, stop: int) -> Rows:
        """Return the rows at positions [start, stop) of the order within one window; computes no others."""
        first_block = number * self._window
        bounds = self._bounds[first_block : first_block + self._window + 1]
        first, last = int(bounds[0]), int(bounds[-1])
        span, part = (start - first, min(stop, last) - first), number + 1
        mixed = first + permuted(last - first, *span, seed=self._seed, epoch=self._epoch, part=part)
        block = np.searchsorted(bounds, mixed, side="right") - 1
        return self._starts[first_block + block] + mixed - bounds[block]


@dataclass(frozen=True)
class Cut:
    """Cuts one epoch's order of `count` rows into steps and ranks.

    Global step s takes positions [s * W * B, (s + 1) * W * B); rank r takes the r-th B of them. So the global order does
    not depend on the world size, and a checkpoint is the position reached. The last, short step is shared evenly. If it does
    not divide, it wraps around to the epoch's first rows. So every rank has the same number of steps and rows. Without pad,
    each of its rows goes to one rank only: later ranks have one row less, or no such step.
    """

    count: int
    batch_size: int
    drop_last: bool
    rank: int = 0
    world_size: int = 1
    pad: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank is {self.rank}, expected 0 <= rank < world_size = {self.world_size}.")
        if self.drop_last and self.full_step > self.count:
            raise ValueError(
                f"drop_last leaves nothing: {self.count} rows are fewer than batch_size {self.batch_size}"
                f" x world_size {self.world_size}. Use a smaller batch or drop_last=False."
            )

    @functools.cached_property
    def full_step(self) -> int:
        """The rows of a full step of all ranks."""
        return self.batch_size * self.world_size

    def steps(self, position: int = 0) -> int:
        """Return the steps of this rank from a global position to the epoch's end."""
        done, tail = divmod(max(0, self.count - position), self.full_step)
        return done + (not self.drop_last and tail > (0 if self.pad else self.rank))

    def step(self, position: int) -> Step:
        """Return the step at a global position."""
        share, rank, size, left = self.batch_size, self.rank, self.full_step, self.count - position
        # 5 rows, 3 ranks, no pad: [0, 2), [2, 4), [4, 5); the first ranks have one row more
        more = 0
        if left < size and not self.drop_last:
            if self.pad:
                share = -(-left // self.world_size)
                size = share * self.world_size
            else:
                (share, more), size = divmod(left, self.world_size), left
        start = position + rank * share + min(rank, more)
        return Step(position, size, min(position + self.full_step, self.count), start, start + share + (rank < more))


def wrapped(rows: Callable[[int, int], Rows], count: int, start: int, stop: int) -> Rows:
    """Return positions [start, stop) of an order of count rows; the first rows follow the last one."""
    pieces = list[Rows]()
    while start < stop:
        inside = start % count
        pieces.append(rows(inside, min(count, inside + stop - start)))
        start += len(pieces[-1])
    return np.concatenate(pieces)


def _keys(seed: int, epoch: int, purpose: str) -> list[int]:
    """Derive the bijection's constants; sha256, so that similar seeds and epochs give unrelated orders."""
    keys: list[int] = []
    for n in range(_ROUNDS):
        digest = hashlib.sha256(f"pixpack {purpose} {seed} {epoch} {n}".encode()).digest()
        keys += [int.from_bytes(digest[:8], "little") | 1, int.from_bytes(digest[8:16], "little")]
    return keys


def _scrambler(word: type[_Word], bits: int, keys: list[int]) -> Callable[[npt.NDArray[_Word]], npt.NDArray[_Word]]:
    """Return a bijection of [0, 2**bits): xor-shift, multiply by an odd number and add are each invertible modulo 2**bits."""
    mask = (1 << bits) - 1
    shift, limit, is_whole = word((bits + 1) // 2), word(mask), mask == np.iinfo(word).max
    constants = [(word(keys[2 * n] & mask | 1), word(keys[2 * n + 1] & mask)) for n in range(_ROUNDS)]

    def scramble(values: npt.NDArray[_Word]) -> npt.NDArray[_Word]:
        """Map the values one to one to the same range."""
        values = values + constants[0][1] & limit
        for factor, addend in constants:
            values ^= values >> shift
            values *= factor
            values += addend
            if not is_whole:
                values &= limit
        values ^= values >> shift
        return values

    return scramble


def _uniform(counters: npt.NDArray[np.uint64], keys: list[int]) -> npt.NDArray[np.float64]:
    """Hash counters to doubles in [0, 1) with 53 random bits."""
    values = _scrambler(np.uint64, 64, keys)(counters)
    return (values >> np.uint64(11)).astype(np.float64) * 2.0**-53
