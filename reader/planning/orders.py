"""Chooses the orders of a loader's epochs from all its arguments but the seed."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from reader.dataset.dataset import MemmapDataset
from reader.format.manifest import PAGE_BYTES, Manifest
from reader.planning.given_sampler import GivenSampler, Item
from reader.shuffling import BlockOrder, Cut, Order, drawn, permuted

# shuffle="block": 8 MiB are sequential for any disk; 32 of them mixed together are 1,700 rows of 224 x 224.
SHUFFLE_BLOCK_BYTES = 8 << 20
SHUFFLE_WINDOW_BLOCKS = 32

Weights = Sequence[float] | torch.Tensor | npt.NDArray[np.floating]

# shuffle=True takes "full" up to this many bytes of pixels: the page cache of a training machine holds them.
_FULL_BYTES = 64 << 30


class Orders:
    """Gives the order of each epoch for a seed; ranks share it, see `cut`.

    name: "sequential", "full", "block", "weighted" (by weights, float[N]) or "sampler".

    Args:
        shuffle, weights, sampler: one of them decides the order, see `MemmapLoader`.
        drop_last, pad: see `Cut`.

    Raises:
        ValueError: arguments request two orders at once, or contradict each other.
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        shuffle: bool | str = False,
        *,
        weights: Weights | None = None,
        sampler: Iterable[Item] | None = None,
        drop_last: bool = False,
        pad: bool = True,
    ) -> None:
        if (weights is not None) + (sampler is not None) + bool(shuffle) > 1:
            raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
        if sampler is not None and not pad:
            raise ValueError("pad=False is for orders of the loader: a sampler decides its own epochs.")
        self.dataset, self.drop_last, self._pad = dataset, drop_last, pad
        self.sampler = None if sampler is None else GivenSampler(sampler)
        self._cumulative: npt.NDArray[np.float64] | None = None
        if self.sampler is not None:
            self.name = "sampler"
        elif weights is not None:
            self.name, self._cumulative = "weighted", _cumulative(weights, len(dataset))
        else:
            self.name = _shuffled(dataset, shuffle)

    def cut(self, batch_size: int, rank: int, world_size: int) -> Cut:
        """Return the cut of an epoch into steps of these ranks.

        Raises:
            ValueError: there is no such rank, or drop_last leaves it no rows.
        """
        # a sampler may yield more or fewer rows than the dataset has
        drop_last = self.drop_last and self.sampler is None
        return Cut(len(self.dataset), batch_size, drop_last, rank, world_size, self._pad)

    @functools.cached_property
    def fingerprint(self) -> int:
        """A number that differs if the same positions are other rows."""
        number = int(self.dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
        for decides in (self.dataset._rows, self._cumulative):
            if decides is not None:
                number ^= zlib.crc32(decides.tobytes())
        return number

    def order(self, epoch: int, seed: int) -> Order:
        """Return the order of an epoch."""
        count, fixed = len(self.dataset), {"seed": seed, "epoch": epoch}
        if self.name == "block":
            return BlockOrder(count, block_rows(self.dataset.manifest), SHUFFLE_WINDOW_BLOCKS, **fixed)
        if self.name == "full":
            return Order(count, functools.partial(permuted, count, **fixed))
        if self._cumulative is not None:
            return Order(count, functools.partial(drawn, self._cumulative, **fixed))
        # a sampler's order is unknown before its pass
        return Order(count, np.arange)


def _cumulative(weights: Weights, count: int) -> npt.NDArray[np.float64]:
    """Return the cumulative sums of weights, float64[N]."""
    values = np.asarray(weights.detach().cpu() if isinstance(weights, torch.Tensor) else weights, dtype=np.float64)
    if values.shape != (count,):
        raise ValueError(f"weights have the shape {list(values.shape)}, expected one a row: [{count}].")
    cumulative = np.cumsum(values)
    if count and (not np.isfinite(cumulative[-1]) or (values < 0).any() or cumulative[-1] == 0):
        raise ValueError("weights must be finite, 0 or more, and not all 0; their sum must be finite too.")
    return cumulative


def block_rows(manifest: Manifest) -> int:
    """Return the rows of a block of shuffle="block"."""
    return max(1, SHUFFLE_BLOCK_BYTES // manifest.row_bytes)


def window_bytes(manifest: Manifest) -> int:
    """Return the most bytes that a window of blocks takes in memory."""
    # a page that two rows of their own sizes share is read for each
    shared_bytes = block_rows(manifest) * PAGE_BYTES if manifest.has_own_sizes else 0
    block = max(SHUFFLE_BLOCK_BYTES, manifest.row_bytes) + shared_bytes
    return SHUFFLE_WINDOW_BLOCKS * block


def _shuffled(dataset: MemmapDataset, shuffle: bool | str) -> str:
    """Return the name of the order for shuffle=. True chooses only by the store, so that all ranks choose the same."""
    if not shuffle or isinstance(shuffle, str):
        return shuffle or "sequential"
    is_full = dataset._opened.remote is None and dataset.manifest.pixel_bytes <= _FULL_BYTES
    return "full" if is_full else "block"
