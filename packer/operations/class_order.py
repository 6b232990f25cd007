"""Whether the rows of a store, or the inputs of a pack, are ordered class by class: blocks then hold few classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader.tuning import tuning

# By far more often than rows at large.
_ALIKE = 0.9

ADVICE = (
    "are ordered class by class. For shuffle='block', as of a store larger than memory or at a URL, pack with --shuffle SEED:"
    " its windows of 256 MiB hold few classes otherwise"
)


class ClassOrder:
    """How often neighboring rows have one class."""

    def __init__(self) -> None:
        self._pairs = self._alike = 0
        self._last = np.zeros(0, np.int64)

    def add(self, targets: npt.NDArray[np.int64]) -> None:
        """Look at the next rows' classes, int64[n]."""
        following = np.concatenate([self._last, targets])
        self._pairs += max(0, len(following) - 1)
        self._alike += int((following[1:] == following[:-1]).sum())
        self._last = following[-1:]

    def is_by_class(self, counts: Sequence[int]) -> bool:
        """Say whether neighbors have one class far more often than by chance; counts: the rows of each class."""
        total = max(1, sum(counts))
        by_chance = sum((count / total) ** 2 for count in counts)
        return self._pairs > 0 and self._alike / self._pairs > _ALIKE > 2 * by_chance


def is_mixed_whole(size_bytes: int) -> bool:
    """Say whether all of a store of so many bytes is one window of shuffle="block"."""
    return size_bytes <= tuning().shuffle_window_blocks * tuning().shuffle_block_bytes


def lie_by_class(targets: Sequence[int]) -> bool:
    """Say whether inputs with these classes are ordered class by class."""
    order, values = ClassOrder(), np.asarray(targets, dtype=np.int64)
    order.add(values)
    return order.is_by_class(np.unique(values, return_counts=True)[1].tolist())
