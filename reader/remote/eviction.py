"""Which blocks leave a cache that is full: those that will be used last."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Iterable

from reader.remote.folder import GUARDED_SHARE, CacheFolder

_MOST_GUARDED_BYTES = 512 << 20


class Plan:
    """When each block is used next, as far as an order is known: this epoch's, then the next one's.

    Without an order each block has a fixed rank: those that stay are then the same in every epoch, so that a cache of a share of
    the store serves that share, where one that kept what was used last would serve a scan nothing.
    """

    def __init__(self, orders: Iterable[Iterable[int]] = ()) -> None:
        """orders: of blocks, each as often as it is used."""
        # each block's uses, rising
        self._uses = [_uses_of_blocks(order) for order in orders]
        self._reached = 0

    @property
    def is_known(self) -> bool:
        """Whether there is an order."""
        return bool(self._uses)

    def reach(self, index: int) -> None:
        """Note that what stands before this index of the first order was used."""
        self._reached = max(self._reached, index)

    def next_use(self, block: int) -> tuple[int, int]:
        """Return a key that is larger the later a block is used."""
        if not self._uses:
            digest = hashlib.blake2b(block.to_bytes(8, "little"), digest_size=8).digest()
            return 0, int.from_bytes(digest, "little")
        if (index := self._next_use(block)) is not None:
            return 0, index
        later = self._uses[-1].get(block)
        return (1, later[0]) if later else (2, 0)

    def _next_use(self, block: int) -> int | None:
        """Return the first index of a block that is not behind what is used now; None: this epoch uses it no more."""
        uses = self._uses[0].get(block, [])
        index = bisect.bisect_left(uses, self._reached)
        return uses[index] if index < len(uses) else None


def _uses_of_blocks(order: Iterable[int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, block in enumerate(order):
        found.setdefault(block, []).append(index)
    return found


def chosen(folder: CacheFolder, plan: Plan, need: int, limit: int, is_free: Callable[[int], bool]) -> list[int]:
    """Choose blocks that leave, of so many bytes together or more where there are; of a file above the limit its end first.

    is_free: says of a block that is begun whether nobody writes it any more.
    """
    table = folder.table
    there = sorted((block for block in range(folder.count) if table.has(block)), key=table.age)
    left = [block for block in range(folder.count) if table.is_writing(block) and is_free(block)]
    # what came last is yet to be read; where the order is known, that protects it
    guarded = min(_MOST_GUARDED_BYTES, int(folder.present_bytes() * GUARDED_SHARE)) // (8 if plan.is_known else 1)
    while there and guarded > 0:
        guarded -= folder.room(there.pop())
    found: list[int] = []
    there.sort(key=lambda block: (folder.file.is_beyond(block, limit), plan.next_use(block)), reverse=True)
    for block in [*left, *there]:
        if need <= 0:
            break
        found.append(block)
        need -= folder.room(block)
    return found
