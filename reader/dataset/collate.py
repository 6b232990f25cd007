"""Lets gathered batches of `MemmapDataset.__getitems__` pass torch's default_collate; importing this registers it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree
from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from reader.epoch import with_origin
from reader.store import Batch, ImageBatch, Images, RaggedBatch, Targets, row_of


def joined(samples: list[Any]) -> Any:
    """Join transformed samples as torch's default_collate does; raises ValueError without samples."""
    if not samples:
        raise ValueError("there are no rows to join: a transform of single samples needs one row or more.")
    return default_collate(samples)


class CollatedRow(tuple[Any, ...]):
    """(image, target) of one row of a gathered batch."""


class CollatedRows(Sequence[Any]):
    """The rows of a gathered batch, for torch's collate functions: default_collate takes the batch as it is.

    Other functions find a sequence of rows, each created on request. It pickles.
    """

    def __init__(self, batch: object, count: int, row: Callable[[int], object]) -> None:
        self.batch, self._count, self._row = batch, count, row

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self._row(n) for n in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"row {index} of a batch of {self._count}.")
        return self._row(index % self._count)


def seeded(batch: Batch) -> Batch:
    """Set a batch's seed from torch's generator, which DataLoader seeds for each worker and epoch; returns the batch.

    The epoch is unknown here. Random transforms draw from the seed.
    """
    with_origin(batch, seed=int(torch.empty((), dtype=torch.int64, device="cpu").random_()))
    return batch


def transformed_rows(result: object, count: int) -> CollatedRows:
    """Return the result of a transform of a batch, such as (views, targets), as rows."""
    return CollatedRows(result, count, functools.partial(row_at, result))


def row_at(result: object, n: int) -> Any:
    """Return row n of the result of a transform of a batch: row n of each tensor in it."""
    return pytree.tree_map(lambda each: each[n], result, is_leaf=lambda each: isinstance(each, ImageBatch))


def tuple_rows(images: Images, targets: Targets) -> CollatedRows:
    """Return (images, targets) of a batch as rows, each as indexing gives it: (image, target)."""
    return CollatedRows((images, targets), len(images), functools.partial(_tuple_row, images, targets))


def ragged_rows(batch: RaggedBatch) -> CollatedRows:
    """Return a batch as rows, each an ImageBatch without a batch dimension."""
    return CollatedRows(batch, len(batch), functools.partial(row_of, batch))


def _tuple_row(images: Images, targets: Targets, n: int) -> CollatedRow:
    return CollatedRow((images[n], _target(targets, n)))


def _target(values: Targets, n: int) -> object:
    """Return the target of one row, as a number if it is a scalar."""
    if isinstance(values, dict):
        return {name: _target(v, n) if name == "targets" and torch.is_tensor(v) else v[n] for name, v in values.items()}
    return values[n].item() if values.ndim == 1 else values[n]


def _collate(
    batch: CollatedRows | ImageBatch | Sequence[Any], *, collate_fn_map: Mapping[Any, object] | None = None
) -> object:
    """Return a gathered batch; rows that were read one by one, as ConcatDataset does, are joined."""
    if isinstance(batch, CollatedRows):
        return batch.batch
    if isinstance(batch, ImageBatch):
        return batch
    if isinstance(batch[0], ImageBatch):
        return seeded(cast(ImageBatch, torch.stack(list(batch))))
    return default_collate([tuple(b) for b in batch])


for _kind in (ImageBatch, RaggedBatch, CollatedRow):
    default_collate_fn_map[_kind] = _collate
# without this, a row is a leaf, which torchvision's transforms do not change
pytree.register_pytree_node(CollatedRow, lambda row: (list(row), None), lambda parts, _: tuple(parts))
