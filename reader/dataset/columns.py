"""A dataset as HF datasets gives one: rows are dicts by column, and `set_transform` takes a function of columns.

Knows what programs ask of such a dataset beside its rows. Imports none of HF's packages.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch.utils.data import Dataset, default_collate

from reader.dataset.dataset import MemmapDataset
from reader.dataset.indexing import Index, is_row
from reader.order import permuted
from reader.store import Batch

Columns = dict[str, list[Any]]


class ColumnDataset(Dataset[Any]):
    """The rows of a MemmapDataset as dicts, {"image": ..., "label": ...}, for programs written for HF datasets.

    Args:
        dataset: as_pil=True gives the PIL images that HF's imagefolder gives.
        image: the name of the column of images.
        label: the name of the column of targets.

    Raises:
        ValueError: the dataset gives no tuples, or both columns have one name.

    Example:
        >>> from reader import MemmapDataset
        >>> train = ColumnDataset(MemmapDataset(store_path))
        >>> train.set_transform(lambda rows: {"pixel_values": [image / 255 for image in rows["image"]], **rows})
        >>> sorted(train[7]), train[7]["label"], len(train[2:5]["image"])
        (['image', 'label', 'pixel_values'], 0, 3)
    """

    def __init__(self, dataset: MemmapDataset, *, image: str = "image", label: str = "label") -> None:
        if not dataset.as_tuple or image == label:
            raise ValueError(
                f"ColumnDataset takes a dataset of tuples and two names, and was given as_tuple={dataset.as_tuple},"
                f" image={image!r}, label={label!r}."
            )
        self.dataset, self.image, self.label = dataset, image, label
        self._transform: Callable[[Columns], Columns] | None = None

    def __len__(self) -> int:
        return len(self.dataset)

    def __repr__(self) -> str:
        return f"ColumnDataset({self.dataset!r}, columns {', '.join(self.column_names)})"

    def __getitem__(self, index: Index) -> dict[str, Any]:
        """Return a row as a dict, or several as a dict of lists; the transform is called with lists either way."""
        if is_row(index):
            return _row(self._columns([self.dataset[operator.index(index)]]), 0)
        rows = np.arange(len(self))[index] if isinstance(index, slice) else self.dataset.positions(index)
        return self._columns([self.dataset[int(row)] for row in rows])

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the rows of a batch, each a dict; torch's DataLoader calls this, and the transform is called once."""
        columns = self[list(indices)]
        return [_row(columns, n) for n in range(len(indices))]

    def as_sample(self, row: Batch) -> dict[str, object]:
        """Return a row of the store, an ImageBatch without a batch dimension, as indexing gives it."""
        return _row(self._columns([self.dataset.as_sample(row)]), 0)

    def joined(self, samples: list[dict[str, object]]) -> object:
        """Join rows as torch's DataLoader does."""
        return default_collate(samples)

    @property
    def column_names(self) -> list[str]:
        """The names of the columns of images and of targets."""
        return [self.image, self.label]

    @property
    def features(self) -> dict[str, object]:
        """A description of each column; that of targets has `names`, the classes, like HF's ClassLabel."""
        classes = self.dataset.classes
        label = SimpleNamespace(names=classes, num_classes=len(classes), dtype="int64")
        return {self.image: SimpleNamespace(dtype="PIL.Image.Image"), self.label: label}

    def set_transform(self, transform: Callable[[Columns], Columns] | None) -> None:
        """Call transform with the rows that are read, a dict of lists, and return its result; None: return the columns."""
        self._transform = transform

    def with_transform(self, transform: Callable[[Columns], Columns] | None) -> ColumnDataset:
        """Return a copy of this dataset with another transform, as `set_transform` takes it."""
        made = copy.copy(self)
        made.set_transform(transform)
        return made

    def select(self, indices: Index) -> ColumnDataset:
        """Return a dataset of the rows at these indices, with the same transform."""
        made = copy.copy(self)
        made.dataset = self.dataset.subset(np.asarray(indices) if isinstance(indices, range) else indices)
        return made

    def shuffle(self, seed: int = 0) -> ColumnDataset:
        """Return a dataset of all rows in an order that depends only on the seed; it is not HF's order."""
        return self.select(permuted(len(self), 0, len(self), seed=seed))

    def train_test_split(self, test_size: float, seed: int = 0) -> dict[str, ColumnDataset]:
        """Return {"train", "test"}: test_size, a share between 0 and 1, is drawn by the seed for "test"."""
        test, train = self.dataset.split(test_size, seed=seed)
        made = {"train": copy.copy(self), "test": copy.copy(self)}
        made["train"].dataset, made["test"].dataset = train, test
        return made

    def _columns(self, samples: list[tuple[object, object]]) -> Columns:
        columns = {self.image: [image for image, _ in samples], self.label: [target for _, target in samples]}
        return columns if self._transform is None else self._transform(columns)


def _row(columns: Columns, n: int) -> dict[str, object]:
    return {name: values[n] for name, values in columns.items()}
