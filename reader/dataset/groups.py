"""Which of the datasets that were joined each row is from, and an order that mixes them in given shares.

The order is arithmetic on (seed, position), as those of `order.py` are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader.order import passes, permuted, place_of
from reader.rows import Rows

# Shares are integers out of this many rows.
PERIOD = 10_000
# Parts of `permuted` that the orders of a single store do not use.
_PATTERN, _DATASETS = -1, -2


@dataclass(frozen=True, eq=False)
class Groups:
    """Which dataset each position is from; names: of the datasets; of: int32[N], their numbers by position."""

    names: tuple[str, ...]
    of: npt.NDArray[np.int32]

    def at(self, positions: Rows) -> Groups:
        """Return those of some positions."""
        return Groups(self.names, self.of[positions])


class Mixture:
    """An endless order: the datasets take turns as one pattern of 10,000 rows says, which repeats.

    So any 10,000 rows that follow each other have the same number of each dataset's. A dataset's rows come in passes, each a
    permutation of its own: none comes twice before all have come once.

    Args:
        groups: which dataset each position is of.
        weights: of each dataset by name, in any proportion.

    Raises:
        ValueError: weights do not name each dataset once, are no shares, or give one to a dataset without rows.
    """

    def __init__(self, groups: Groups | None, weights: Mapping[str, float]) -> None:
        self.quotas = _quotas(groups, weights)
        assert groups is not None
        self.of = groups.of
        self._positions = [np.flatnonzero(groups.of == n) for n in range(len(groups.names))]
        for name, quota, positions in zip(groups.names, self.quotas, self._positions, strict=True):
            if quota and not len(positions):
                raise ValueError(f"weights give {name!r} a share, but the dataset has no row of it.")

    @property
    def drawn(self) -> Rows:
        """The positions that come at all, sorted."""
        return np.sort(np.concatenate([p for p, quota in zip(self._positions, self.quotas, strict=True) if quota]))

    def order(self, seed: int) -> Callable[[int, int], Rows]:
        """Return what gives turns [start, stop), counted from the first of epoch 0 on."""
        pattern = _pattern(tuple(self.quotas), seed)
        # how many turns of the same dataset come before each: the pattern [1, 0, 0, 1] gives [0, 0, 1, 1]
        before = np.empty(PERIOD, np.int64)
        for n, quota in enumerate(self.quotas):
            before[pattern == n] = np.arange(quota)

        def rows(start: int, stop: int) -> Rows:
            turns = np.arange(start, stop)
            inside, positions = turns % PERIOD, np.empty(stop - start, np.int64)
            which = pattern[inside]
            for n in np.unique(which).tolist():
                at = np.flatnonzero(which == n)
                # the draws of a dataset follow each other without a gap
                first = int(turns[at[0]]) // PERIOD * self.quotas[n] + int(before[inside[at[0]]])
                positions[at] = self._draws(n, first, first + len(at), seed)
            return positions

        return rows

    def turns_of(self, position: int, start: int, stop: int, seed: int) -> Iterator[int]:
        """Yield the turns in [start, stop) that are a position's: the inverse of `order`."""
        n = int(self.of[position])
        places = np.flatnonzero(_pattern(tuple(self.quotas), seed) == n)
        inside, count = int(np.searchsorted(self._positions[n], position)), len(self._positions[n])
        # the pass over its dataset in which a period begins
        first = start // PERIOD * len(places) // count
        for done in itertools.count(first) if len(places) else ():
            place = place_of(count, inside, seed=seed, epoch=done, part=_DATASETS - n)
            period, turn = divmod(done * count + place, len(places))
            if period * PERIOD > stop:
                return
            if start <= (nth := period * PERIOD + int(places[turn])) < stop:
                yield nth

    def _draws(self, n: int, start: int, stop: int, seed: int) -> Rows:
        """Return draws [start, stop) of one dataset."""
        positions = self._positions[n]

        def order(done: int) -> Callable[[int, int], Rows]:
            return lambda first, last: permuted(len(positions), first, last, seed=seed, epoch=done, part=_DATASETS - n)

        return positions[passes(order, len(positions), start, stop)]


# every epoch has it
@functools.lru_cache(maxsize=2)
def _pattern(quotas: tuple[int, ...], seed: int) -> npt.NDArray[np.int64]:
    """Return which dataset each of 10,000 turns is of."""
    pattern = np.repeat(np.arange(len(quotas)), quotas)[permuted(PERIOD, 0, PERIOD, seed=seed, part=_PATTERN)]
    pattern.setflags(write=False)
    return pattern


def _quotas(groups: Groups | None, weights: Mapping[str, float]) -> list[int]:
    """Return how many of 10,000 rows are each dataset's: those whose exact share is nearest to one more get one more."""
    if groups is None:
        raise ValueError(
            f"weights name {', '.join(map(repr, weights)) or 'nothing'}, and names are those of datasets that reader.concat"
            " joined. Give one weight a row, float[N]."
        )
    names = groups.names
    if len({*names}) < len(names) or {*names} != {*weights}:
        raise ValueError(
            f"weights name {', '.join(map(repr, weights)) or 'nothing'}, expected each of {', '.join(map(repr, names))} once;"
            " 0 leaves one out, and concat({...}) gives other names."
        )
    values = [weights[name] for name in names]
    if not all(isinstance(v, int | float | np.number) and math.isfinite(v) and v >= 0 for v in values) or not sum(
        values
    ):
        raise ValueError(f"weights are {dict(weights)}, expected finite numbers of 0 or more, not all 0.")
    exact = [PERIOD * value / sum(values) for value in values]
    quotas = [int(share) for share in exact]
    for n in sorted(range(len(names)), key=lambda n: quotas[n] - exact[n])[: PERIOD - sum(quotas)]:
        quotas[n] += 1
    for name, value, quota in zip(names, values, quotas, strict=True):
        if value and not quota:
            raise ValueError(f"the weight of {name!r}, {value}, is less than one row of {PERIOD:,}: give more, or 0.")
    return quotas
