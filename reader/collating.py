"""How batches that `MemmapDataset.__getitems__` made whole pass torch's default_collate; importing this tells it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from reader.draws import stamped
from reader.store import ImageBatch, RaggedBatch


class TupleBatch(tuple[Any, ...]):
    """(images, targets) of a whole batch on its way through default_collate, which looks at the type of batch[0]."""

    def __getitem__(self, index: Any) -> Any:
        return self if index == 0 else super().__getitem__(index)


def seeded(batch: Any) -> Any:
    """Write on a batch a seed of torch's generator, which DataLoader seeds anew for each worker and epoch; returns it.

    Which epoch it is, nobody says here. Random transforms draw from it.
    """
    return stamped(batch, seed=int(torch.empty((), dtype=torch.int64, device="cpu").random_()))


def _collate_batch(batch: Any, *, collate_fn_map: Mapping[Any, Any] | None = None) -> Any:
    # __getitems__ gives one ImageBatch; ConcatDataset gives a list of one-row ones
    return batch if isinstance(batch, ImageBatch) else seeded(torch.stack(list(batch)))


def _collate_ragged(batch: Any, *, collate_fn_map: Mapping[Any, Any] | None = None) -> Any:
    # __getitems__ gives a list of one: default_collate looks at the type of batch[0]
    return batch[0]


def _collate_tuple(batch: Any, *, collate_fn_map: Mapping[Any, Any] | None = None) -> tuple[Any, ...]:
    return tuple(iter(batch)) if isinstance(batch, TupleBatch) else default_collate([tuple(b) for b in batch])


default_collate_fn_map[ImageBatch] = _collate_batch
default_collate_fn_map[RaggedBatch] = _collate_ragged
default_collate_fn_map[TupleBatch] = _collate_tuple
