"""Rows of a store at the size that a crop needs: those of the store, or of one of its levels, read when a crop asks for them."""

from __future__ import annotations

import hashlib

import torch

from reader.dataset.dataset import MemmapDataset
from reader.dataset.opened_store import OpenedStore, fresh
from reader.format.errors import StoreError
from reader.format.manifest import MANIFEST, Manifest
from reader.format.tensors import level_name, level_path
from reader.store import Batch, RaggedBatch


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
            # its rows go with the targets of the store: another one may have taken the store's name since that was opened
            if not _is_level_of(store.manifest, level, factor):
                raise StoreError(
                    f"{level.path} was packed again since {store.path} was opened. Open the dataset again."
                )
            self._stores[factor] = level

    def read(self, rows: torch.Tensor, factor: int) -> Batch:
        """Return rows int64[B] of the store, smaller by a factor: an ImageBatch, or a RaggedBatch."""
        return self._stores[factor].gather(rows.numpy(), fresh)

    def content(self, rows: torch.Tensor, factor: int) -> torch.Tensor | None:
        """Return what is image in rows of a level, int64[B, 4] x0, y0, x1, y1; None: all is."""
        held = self._stores[factor].mapped
        if isinstance(held, RaggedBatch) or held.content is None:
            return None
        return held.content.index_select(0, rows)[:, [1, 0, 3, 2]].long()


def has_levels(dataset: MemmapDataset) -> bool:
    """Whether rows of a dataset can be read from levels: of one store on this machine, whose masks are not behind its pixels."""
    store = dataset.opened_store
    return bool(store.manifest.levels) and store.is_local and not store.manifest.has_own_masks


def _is_level_of(manifest: Manifest, level: OpenedStore, factor: int) -> bool:
    """Whether an opened level is the one that the manifest of its store lists."""
    content = (level.path / MANIFEST).read_bytes()
    listed = manifest.files[f"{level_name(factor)}/{MANIFEST}"].digest
    return listed == f"sha256:{hashlib.sha256(content).hexdigest()}" and level.manifest.digest.encode() in content
