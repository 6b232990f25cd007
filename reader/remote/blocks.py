"""The folder of one store in a cache, and the blocks in it.

    CACHE/<16 hex digits of the store's digest>/            the store's files except its pixels
    CACHE/<16 hex digits>/blocks/17, blocks/17.part         block 17, whole, and while it is fetched

A block's file gets its name once all of it is on the disk. Any process may read or remove it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader.format.blocks import read_blocks
from reader.format.manifest import Manifest, read_manifest


class Blocks:
    """The blocks of one store; block b holds bytes [starts[b], starts[b + 1]) of the pixels, with checksum crcs[b].

    Raises:
        StoreError: the folder holds no manifest, or a damaged one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.manifest: Manifest = read_manifest(root)
        table = read_blocks(root)
        self.crcs = [block.crc32 for block in table]
        self.starts = [*itertools.accumulate((block.size_bytes for block in table), initial=0)]
        self.largest_bytes = max(block.size_bytes for block in table)

    def path(self, block: int) -> Path:
        """Return the path of a block's file."""
        return self.root / "blocks" / str(block)

    def size(self, block: int) -> int:
        """Return the bytes of a block."""
        return self.starts[block + 1] - self.starts[block]

    def holding(self, begins: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> list[int]:
        """Return the sorted blocks that hold the bytes [begins[i], ends[i]), which are not empty."""
        first = np.searchsorted(self.starts, begins, side="right") - 1
        last = np.searchsorted(self.starts, ends, side="left") - 1
        return sorted(
            {n for pair in zip(first.tolist(), last.tolist(), strict=True) for n in range(pair[0], pair[1] + 1)}
        )

    def cut(self, start: int, size: int) -> Iterator[tuple[int, int, int]]:
        """Cut bytes of the pixels into (block, first byte in its file, count), without the padding after the last."""
        for block in self.holding(np.array([start]), np.array([min(start + size, self.starts[-1])])):
            first, stop = max(start, self.starts[block]), min(start + size, self.starts[block + 1])
            yield block, first - self.starts[block], stop - first


def folder_of(cache: str, digest: str) -> Path:
    """Return the folder of a store in a cache."""
    return Path(cache, digest.removeprefix("sha256:")[:16])
