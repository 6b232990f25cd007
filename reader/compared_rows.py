"""One of two datasets that are compared: its rows as (image in levels, target), its classes by name, its paths below its root."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset

from reader.views import levels_of, scale_of

_EXPECTED = "expected a dataset of (image, target) with a length and rows by number"
_DRAWN = "draws at random. Give it the recipe of validation"


class ComparedRows:
    """A dataset of (image, target): an ImageFolder, a MemmapDataset, torch's Subset of one, or any other.

    Args:
        name: of the dataset in sentences: "a".
        data: the dataset; its `classes`, `samples` and `root` are looked at where it has them.

    Raises:
        TypeError: data is no such dataset.
    """

    def __init__(self, name: str, data: Any) -> None:
        is_mapped = hasattr(data, "__len__") and hasattr(data, "__getitem__")
        if not is_mapped or isinstance(data, str | bytes | os.PathLike | Mapping | IterableDataset):
            opened = f" Open it: MemmapDataset({data!r})." if isinstance(data, str | os.PathLike) else ""
            raise TypeError(f"{name} is a {type(data).__name__}, {_EXPECTED}.{opened}")
        self.name, self.data = name, data
        whole, rows = data, list(range(len(data)))
        while hasattr(whole, "indices") and hasattr(whole, "dataset"):  # torch's Subset
            whole, rows = whole.dataset, [int(whole.indices[row]) for row in rows]
        self.classes = [*map(str, _sequence(whole, "classes"))]
        paths, root = [*map(_path, _sequence(whole, "samples"))], f"{getattr(whole, 'root', '')}".rstrip("/")
        has_paths = all(paths) and max(rows, default=0) < len(paths)
        self.paths = [paths[row].removeprefix(f"{root}/") for row in rows] if has_paths else []

    def row(self, number: int) -> tuple[torch.Tensor, Any]:
        """Return the values of an image, float32[C, H, W], and its target; raises TypeError where the row is something else."""
        levels, target, _ = self._row(number)
        return levels, target

    def class_of(self, target: Any) -> Any:
        """Return the name of a target that is the number of a class; any other as it is."""
        index = getattr(target, "tolist", lambda: target)()
        return self.classes[index] if type(index) is int and 0 <= index < len(self.classes) else target

    def scale(self, rows: Sequence[int]) -> tuple[float, str]:
        """Return by what values of images become levels, and why levels say nothing; "" where they do."""
        read = [self._row(row) for row in rows]
        if not all(torch.equal(levels, self.row(row)[0]) for (levels, _, _), row in zip(read, rows, strict=True)):
            return 1, _DRAWN
        return scale_of([levels for levels, _, _ in read], any(is_float for _, _, is_float in read))

    def _row(self, number: int) -> tuple[torch.Tensor, Any, bool]:
        found = self.data[number]
        if not isinstance(found, tuple | list) or len(found) != 2:
            kind = f"{type(found).__name__}{f' of {len(found)}' if isinstance(found, tuple | list) else ''}"
            remedy = " Open it with as_tuple=True." if getattr(self.data, "as_tuple", True) is False else ""
            raise TypeError(f"row {number} of {self.name} is a {kind}, expected (image, target).{remedy}")
        image, target = found
        try:
            return levels_of(image), target, "float" in str(getattr(image, "dtype", ""))
        except (TypeError, ValueError) as e:
            raise TypeError(f"row {number} of {self.name}: {e}") from None


def _sequence(data: Any, name: str) -> Sequence[Any]:
    """Return an attribute that is a sequence, such as a list or an array; any other is as none."""
    value: Any = getattr(data, name, None)
    value = value.tolist() if hasattr(value, "tolist") else value
    return value if isinstance(value, Sequence) and not isinstance(value, str) else ()


def _path(sample: Any) -> str:
    """Return the path of (path, target); "" of anything else."""
    is_named = isinstance(sample, tuple | list) and sample and isinstance(sample[0], str | os.PathLike)
    return os.fspath(sample[0]) if is_named else ""
