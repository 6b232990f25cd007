"""Which blocks leave a cache that cannot hold all: those that will be used last."""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
import os
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from pathlib import Path

from reader.remote.block_files import BlockFiles
from reader.remote.leftovers import remove_abandoned

# The share of a small cache whose blocks came last and stay: they are yet to be read.
GUARDED_SHARE = 1 / 8
_MOST_GUARDED_BYTES = 512 << 20
# The share of the cache that is chosen to go at a time: each choice looks at all blocks, which takes 0.1 s of 60,000 blocks.
_CHOSEN_SHARE = 1 / 32
_NUMBER_BYTES = 8


class Plan:
    """Knows when each block is used next, as far as an order is known: this epoch's, then the next one's.

    Without an order each block has a fixed rank: those that stay are then the same in every epoch, so that a cache of a share of
    the store serves that share, where one that kept what was used last would serve a scan nothing.
    """

    def __init__(self, orders: Iterable[Iterable[int]] = ()) -> None:
        """Take the orders of blocks, each as often as it is used."""
        self._reached, self._uses = 0, defaultdict[int, list[int]](list)
        for index, block in enumerate(itertools.chain.from_iterable(orders)):
            self._uses[block].append(index)

    @property
    def is_known(self) -> bool:
        """Whether there is an order."""
        return bool(self._uses)

    def reach(self, index: int) -> None:
        """Note that the blocks before this index of the first order were used."""
        self._reached = max(self._reached, index)

    def next_use(self, block: int) -> float:
        """Return a number that is larger the later a block is used."""
        if not self.is_known:
            return int.from_bytes(hashlib.blake2b(block.to_bytes(8, "little"), digest_size=8).digest(), "little")
        uses = self._uses.get(block, [])
        index = bisect.bisect_left(uses, self._reached)
        return uses[index] if index < len(uses) else math.inf


class Eviction:
    """Makes room for blocks in a cache of a limited size by removing others.

    How much is there is a number in a small file, which whoever holds the lock of changes may read and change: so nothing is
    looked through for a block. What a process that was killed leaves wrong in it lasts until blocks are chosen next.

    Args:
        number: path of that file.
        room: returns the bytes of a block.
        limit: of the bytes of all blocks.
    """

    def __init__(self, files: BlockFiles, number: Path, room: Callable[[int], int], limit: int) -> None:
        self.plan = Plan()
        self._files, self._number, self._room, self._limit = files, number, room, limit
        # that leave next, and the plan by which they were chosen
        self._leaving, self._chosen_by = deque[int](), self.plan
        self._is_counted = False

    def make_room(self, block: int) -> None:
        """Make room for a block, and count it as there. The caller holds the lock of changes."""
        need, plan = self._room(block), self.plan
        if plan is not self._chosen_by:
            self._leaving.clear()
            self._chosen_by = plan
        descriptor = os.open(self._number, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if not self._is_counted:
                used, _ = self._look()
                self._is_counted = True
            else:
                used = int.from_bytes(os.pread(descriptor, _NUMBER_BYTES, 0), "little")
            while used + need > self._limit:
                if not self._leaving:
                    used = self._choose(plan, need)
                    if not self._leaving:
                        break
                elif self._files.remove(leaving := self._leaving.popleft()):
                    used -= self._room(leaving)
            os.pwrite(descriptor, max(0, used + need).to_bytes(_NUMBER_BYTES, "little"), 0)
        finally:
            os.close(descriptor)

    def _look(self) -> tuple[int, list[int]]:
        """Return the bytes of all blocks that are there or being written, and those that are there by when they came."""
        remove_abandoned(self._files.unfinished())
        # before the others: what has its name meanwhile is in both, not in none
        unfinished = self._files.unfinished().values()
        there = [block for block, _ in sorted(self._files.listed(), key=lambda found: found[1])]
        return sum(map(self._room, {*unfinished, *there})), there

    def _choose(self, plan: Plan, need: int) -> int:
        """Choose blocks that leave, more than are needed now; returns the bytes of all that are there."""
        used, there = self._look()
        # blocks that came last are yet to be read; where the order is known, it protects them
        guarded = min(_MOST_GUARDED_BYTES, int(used * GUARDED_SHARE)) // (8 if plan.is_known else 1)
        while there and guarded > 0:
            guarded -= self._room(there.pop())
        there.sort(key=plan.next_use)
        size = max(used + need - self._limit, int(self._limit * _CHOSEN_SHARE))
        while there and size > 0:
            size -= self._room(there[-1])
            self._leaving.append(there.pop())
        return used
