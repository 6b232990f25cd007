"""How batches that `MemmapDataset.__getitems__` made at once pass torch's default_collate; importing this registers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from reader.epoch import stamped
from reader.store import ImageBatch, RaggedBatch


class Row(tuple[Any, ...]):
    """(image, target) of one row of a batch that was made at once."""


class Rows(Sequence[Any]):
    """The rows of a batch that was made at once, for torch's collate functions: default_collate takes the batch as it is.

    Any other one finds a sequence of rows, each made when it is asked for.
    """

    def __init__(self, batch: Any, count: int, row: Callable[[int], Any]) -> None:
        self.batch, self._count, self._row = batch, count, row

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._row(n) for n in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of a batch of {self._count}.")
        return self._row(index % self._count)


def seeded(batch: Any) -> Any:
    """Write on a batch a seed of torch's generator, which DataLoader seeds anew for each worker and epoch; returns it.

    Which epoch it is, nobody says here. Random transforms draw from it.
    """
    return stamped(batch, seed=int(torch.empty((), dtype=torch.int64, device="cpu").random_()))


def tuple_rows(images: Any, targets: Any) -> Rows:
    """Return (images, targets) of a batch as rows, each as the dataset gives it alone: (image, target)."""

    def target(values: Any, n: int) -> Any:
        """Return one row's, a number where it is one."""
        if isinstance(values, dict):
            return {name: target(value, n) if name == "targets" else value[n] for name, value in values.items()}
        return values[n].item() if values.ndim == 1 else values[n]

    return Rows((images, targets), len(images), lambda n: Row((images[n], target(targets, n))))


def _collate(batch: Any, *, collate_fn_map: Mapping[Any, Any] | None = None) -> Any:
    """Give what was made at once; rows that were made one by one, as ConcatDataset does, are joined."""
    if isinstance(batch, Rows):
        return batch.batch
    if isinstance(batch, ImageBatch):
        return batch
    first = batch[0]
    if isinstance(first, ImageBatch):
        return seeded(torch.stack(list(batch)))
    return default_collate([tuple(b) for b in batch])


for _kind in (ImageBatch, RaggedBatch, Row):
    default_collate_fn_map[_kind] = _collate
