"""Compares two datasets of (image, target): pairs rows by path or position, reads some of them, and names differences.

For a program that moves to a store: ImageFolder with its recipe is `a`, the store with its own is `b`. Knows no store's format.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate
from torch.utils.data import Subset

# Up to this mean difference, in levels, two images have the same view, despite rounding, decoder or filter. For 100
# photographs at 224 x 224, no other crop is nearer.
_SAME_VIEW = 10.0
# A view explains a difference if it leaves less than this share of it.
_EXPLAINED = 0.6
# Side in pixels at which views are compared.
_VIEW_SIDE = 112


@dataclass
class CompareReport:
    """The result of `compare`.

    Attributes:
        rows: pairs of rows that were compared.
        mean, worst: mean and largest difference of a value in images of one shape, in levels of 0 to 255.
        differences: sentences on counts, classes, paths, targets, sizes and views that differ. [] if the two agree.
    """

    rows: int
    mean: float
    worst: float
    differences: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = f"{self.rows:,} rows compared: mean difference {self.mean:.2f}, worst {self.worst:.3g} of 255 levels"
        return "\n".join([levels, *(f"differs: {what}" for what in self.differences or ["nothing"])])


def compare(a: Any, b: Any, rows: int = 64) -> CompareReport:
    """Compare two datasets of (image, target), such as a program's ImageFolder and the store that replaces it.

    Rows are paired by path if both have `samples`, else by position. Images are PIL images, arrays [H, W, C] or tensors
    [C, H, W], of integers 0 to 255 or of floats 0 to 1. Give both the validation recipe.

    Args:
        a, b: datasets that return (image, target) by index; their `classes`, `samples` and `root` are used if they exist.
        rows: pairs of rows to read, evenly spread.

    Raises:
        TypeError: a row is not (image, target), or an image is of another kind.
        ValueError: an image is normalized.

    Examples:
        >>> from pixpack import MemmapDataset
        >>> print(compare(MemmapDataset(store_path), MemmapDataset(store_path), rows=8))
        8 rows compared: mean difference 0.00, worst 0 of 255 levels
        differs: nothing
    """
    classes = [[*map(str, getattr(_whole(data)[0], "classes", None) or ())] for data in (a, b)]
    pairs, differences = _pairs(a, b)
    for n, (one, other) in enumerate(zip_longest(*classes) if all(classes) else ()):
        if one != other:
            differences.append(f"class {n} is {one} in a, {other} in b")
            break
    chosen = [pairs[i] for i in np.unique(np.linspace(0, len(pairs) - 1, min(rows, len(pairs))).astype(int))]
    means, largest, seen = list[float](), list[float](), defaultdict[str, list[int]](list)
    for row_a, row_b in chosen:
        (one, target), (other, other_target) = _row(a, row_a), _row(b, row_b)
        if all(classes):
            target, other_target = _named(target, classes[0]), _named(other_target, classes[1])
        # images without labels have no targets to compare
        if target is not None and not _is_same(target, other_target):
            seen["another target"].append(row_a)
        if one.shape != other.shape:
            seen[f"another size, [C, H, W] = {[*one.shape]} in a and {[*other.shape]} in b"].append(row_a)
            continue
        difference = (one - other).abs()
        means.append(float(difference.mean()))
        largest.append(float(difference.max()))
        if means[-1] > _SAME_VIEW:
            seen[_view(one, other)].append(row_a)
    for what, found in seen.items():
        differences.append(f"{len(found)} of {len(chosen)} rows, row {found[0]} of a first: {what}")
    return CompareReport(len(chosen), sum(means) / max(1, len(means)), max(largest, default=0.0), differences)


def _whole(data: Any) -> tuple[Any, list[int]]:
    """Return the dataset below torch's Subsets, and the rows of it that they select."""
    rows = list(range(len(data)))
    while isinstance(data, Subset):
        data, rows = data.dataset, [int(data.indices[row]) for row in rows]
    return data, rows


def _keys(data: Any) -> list[tuple[str, int]]:
    """Return (path below the root, number of earlier occurrences) of each row; [] for a dataset without paths."""
    whole, rows = _whole(data)
    samples, root = getattr(whole, "samples", None) or (), f"{getattr(whole, 'root', '')}".rstrip("/")
    if not all(isinstance(sample, tuple | list) and isinstance(sample[0], str | os.PathLike) for sample in samples):
        return []
    seen, keys = Counter[str](), []
    for row in rows if samples else ():
        path = os.fspath(samples[row][0]).removeprefix(f"{root}/")
        keys.append((path, seen[path]))
        seen[path] += 1
    return keys


def _pairs(a: Any, b: Any) -> tuple[list[tuple[int, int]], list[str]]:
    """Pair positions (in a, in b) of the same image; also returns sentences about images that one of the two lacks."""
    differences = [f"a has {len(a):,} rows, b has {len(b):,}"] if len(a) != len(b) else []
    in_a, in_b = ({key: n for n, key in enumerate(_keys(data))} for data in (a, b))
    shared = [(in_a[key], in_b[key]) for key in in_a if key in in_b]
    if not shared:
        return [(n, n) for n in range(min(len(a), len(b)))], differences
    for name, own, others in (("a", in_a, in_b), ("b", in_b, in_a)):
        if missing := [path for path, _ in others if (path, _) not in own]:
            differences.append(f"{name} lacks {len(missing):,} images: {', '.join(missing[:3])}")
    return shared, differences


def _row(data: Any, number: int) -> tuple[torch.Tensor, Any]:
    """Return the image in levels, float32[C, H, W], and the target."""
    found = data[number]
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise TypeError(
            f"row {number} is a {type(found).__name__}, expected (image, target). Open it with as_tuple=True."
        )
    image, target = found
    if not isinstance(image, torch.Tensor):
        array = np.array(image)
        image = torch.from_numpy(array[..., None] if array.ndim == 2 else array).movedim(-1, 0)
    if image.is_floating_point():
        if image.min() < 0 or image.max() > 1:
            raise ValueError(f"row {number} has floats beyond 0 to 1. Leave Normalize out of both.")
        image = image * 255
    return image.float(), target


def _named(target: Any, classes: list[str]) -> Any:
    index = getattr(target, "tolist", lambda: target)()
    return classes[index] if type(index) is int and 0 <= index < len(classes) else target


def _is_same(a: Any, b: Any) -> bool:
    """Compare two targets: numbers, names, arrays, and dicts, lists and tuples of them."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_is_same, a, b))
    one, other = np.asarray(a), np.asarray(b)
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf":
        return one.shape == other.shape and np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    return np.array_equal(one, other)


def _view(a: torch.Tensor, b: torch.Tensor) -> str:
    """Name the turn, mirror image, order of channels or cut of one image that is nearest to the other."""
    a, b = (interpolate(image[None], (_VIEW_SIDE, _VIEW_SIDE), mode="area")[0] for image in (a, b))
    left, nearest = min((float((one - other).abs().mean()), what) for what, one, other in _views(a, b))
    return nearest if left < _EXPLAINED * float((a - b).abs().mean()) else "another crop, or another image"


def _views(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield possible differences, such as "mirrored", and both images with that difference undone."""
    yield "b has the channels of a in reverse order", a.flip(0), b
    yield "b is a mirrored", a.flip(2), b
    for turns in (1, 2, 3):
        yield f"b is a turned by {90 * turns} degrees, as an EXIF orientation does", a.rot90(turns, (1, 2)), b
    for share in range(50, 100, 2):
        cut = slice((100 - share) * _VIEW_SIDE // 200, (100 + share) * _VIEW_SIDE // 200)
        yield f"b shows the middle {share}% of a, as if it were cropped twice", _enlarged(a[:, cut, cut]), b
        yield f"a shows the middle {share}% of b, as if b lacked a crop", a, _enlarged(b[:, cut, cut])


def _enlarged(image: torch.Tensor) -> torch.Tensor:
    return interpolate(image[None], (_VIEW_SIDE, _VIEW_SIDE), mode="bilinear")[0]
