"""Rows of a store at the size that a crop needs: those of the store, or of one of its levels, read when a crop asks for them."""

from __future__ import annotations

import torch

from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore, fresh
from reader.format.errors import StoreError
from reader.format.tensors import level_path
from reader.store import Batch


class LevelRows:
    """The rows of a dataset's store, by what their sides are divided by.

    factors: of the levels, (2,) or (2, 4).

    Raises:
        StoreError: a level is none of this store any more.
    """

    def __init__(self, dataset: MemmapDataset) -> None:
        store = dataset.opened_store
        self.factors, self._stores = store.manifest.levels, {1: store}
        for factor in self.factors:
            level = OpenedStore(level_path(store.path, factor))
            # with the targets of the store, which its user may have changed, nothing of the level is checked but its pixels
            if level.manifest.rows != store.manifest.rows:
                raise StoreError(
                    f"{level.path} was packed again since {store.path} was opened. Open the dataset again."
                )
            self._stores[factor] = level

    def read(self, rows: torch.Tensor, factor: int) -> Batch:
        """Return rows int64[B] of the store, smaller by a factor: an ImageBatch, or a RaggedBatch."""
        return self._stores[factor].gather(rows.numpy(), fresh)


def has_levels(dataset: MemmapDataset) -> bool:
    """Whether rows of a dataset can be read from levels: of one store on this machine, whose masks are not behind its pixels."""
    store = dataset.opened_store
    return bool(store.manifest.levels) and store.is_local and not store.manifest.has_own_masks
