"""Are two datasets of (image, target) the same? Rows are paired by path, some of them read, and differences named.

For moving a program: ImageFolder with its recipe is `a`, the store with its own is `b`. Knows no format of a store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reader.dataset.cropping import inexact_steps, repeated_steps
from reader.views import SAME_VIEW, levels_of, mean_difference, resized, scale_of, view_of

# What a mean difference of an image means, by the levels above and up to which it is; measured on 100 photographs at 224 x 224,
# see docs/how-to/migrate.md.
_MEANINGS = (
    (0.0, 1.0, "mean difference 0 to 1: rounding, or another JPEG decoder"),
    (1.0, SAME_VIEW, "mean difference 1 to 10: another filter, a resize in between, or a shift by a pixel"),
)
_MOST_SENTENCES = 6
# Rows that are read twice, to see whether pixels are drawn at random: a flip of half of them shows in all but 1 of 65,536 cases.
_READ_TWICE = 16
_NORMALIZED = "is normalized. Leave Normalize out of it"
_DRAWN = "draws at random. Give it the recipe of validation"


@dataclass
class CompareReport:
    """The result of `compare`.

    Attributes:
        counts: rows of a and of b.
        compared: pairs of rows whose pixels were compared; 0: see the notes.
        targets: pairs of rows whose targets were compared.
        worst, mean: largest and mean difference of a value, in levels of 0 to 255; None where none were compared.
        equal: share of these pairs that have the same pixels, 0 to 1.
        sizes: a sentence on the rows of each size of difference that leaves the view the same, and what such a one means.
        differences: sentences on what is not the same: classes, counts, targets, sizes, cuts. [] where the two agree.
        notes: sentences on what was not compared, what is resized twice, and what `pack` did to values.
    """

    counts: tuple[int, int]
    compared: int = 0
    targets: int = 0
    worst: float | None = None
    mean: float | None = None
    equal: float | None = None
    sizes: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        levels = f"mean difference {self.mean:.2f}, worst {self.worst:.3g} of 255 levels" if self.compared else ""
        equal = f": {self.equal:.0%} are equal; {levels}" if self.compared else ""
        nothing = f"no difference in classes, counts{', targets' if self.targets else ''} and cuts"
        differences = [f"differs: {sentence}" for sentence in self.differences] or [nothing]
        notes = [f"note: {sentence}" for sentence in self.notes]
        return "\n".join([f"{self.compared:,} rows compared{equal}", *self.sizes, *differences, *notes])


def compare(a: Any, b: Any, rows: int = 64) -> CompareReport:
    """Compare two datasets of (image, target), such as a program's ImageFolder and the store that replaces it.

    Rows are paired by path where both have `samples`, else by position. Images are PIL images, arrays [H, W, C] or
    tensors [C, H, W], of 0 to 255 or of 0 to 1, or both normalized alike. Give both the recipe of validation: pixels
    that are drawn at random are not compared.

    Args:
        a, b: give (image, target); their `classes`, `samples` and `transform` are looked at where they have them.
        rows: pairs of rows to read, evenly spread.

    Raises:
        TypeError: a or b is no such dataset. ValueError: rows is not 1 or more.

    Example:
        >>> from pixpack import MemmapDataset
        >>> print(compare(MemmapDataset(store_path), MemmapDataset(store_path), rows=8))
        8 rows compared: 100% are equal; mean difference 0.00, worst 0 of 255 levels
        no difference in classes, counts, targets and cuts
    """
    if not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows is {rows!r}, expected 1 or more.")
    one, other = _Side("a", a), _Side("b", b)
    report = CompareReport((len(a), len(b)))
    report.differences += _other_classes(one.classes, other.classes)
    for side in (one, other):
        cropped, resized = repeated_steps(side.data)
        report.differences += [f"{side.name} is cropped twice: {cropped}"] if cropped else []
        report.notes += [f"{side.name} is resized twice: {resized}"] if resized else []
    pairs = _pairs(one, other, report)
    step = max(1.0, len(pairs) / rows)
    _compare_rows(one, other, [pairs[int((n + 0.5) * step)] for n in range(min(rows, len(pairs)))], report)
    for side in (one, other) if report.mean else ():
        report.notes += [f"{side.name} was packed {how}; this changes values" for how in inexact_steps(side.data)]
    return report


class _Side:
    """One of the two datasets: its rows, and where it has them, names of classes and paths below its root."""

    def __init__(self, name: str, data: Any) -> None:
        if isinstance(data, str) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(f"{name} is {type(data).__name__}, expected a dataset with a length and rows by number.")
        self.name, self.data = name, data
        whole, rows = data, list(range(len(data)))
        while hasattr(whole, "indices") and hasattr(whole, "dataset"):  # torch's Subset
            whole, rows = whole.dataset, [int(whole.indices[row]) for row in rows]
        self.classes: list[str] = [*(getattr(whole, "classes", None) or ())]
        samples, root = getattr(whole, "samples", ()), f"{getattr(whole, 'root', '')}".rstrip("/")
        self.paths = [f"{samples[row][0]}".removeprefix(f"{root}/") for row in rows if samples]

    def row(self, number: int) -> tuple[Any, Any]:
        """Return an image and its target, a class by its name; raises TypeError where the row is something else."""
        found = self.data[number]
        if not isinstance(found, tuple | list) or len(found) != 2:
            kind = f"{type(found).__name__}{f' of {len(found)}' if isinstance(found, tuple | list) else ''}"
            raise TypeError(f"row {number} of {self.name} is a {kind}, expected (image, target).")
        image, target = found
        index = getattr(target, "tolist", lambda: target)()
        return image, self.classes[index] if isinstance(index, int) and 0 <= index < len(self.classes) else target

    def scale(self, rows: Sequence[int]) -> tuple[float, str]:
        """Return by what values of images become levels, and why levels say nothing; "" where they do."""
        images = [self.row(row)[0] for row in rows]
        values = [levels_of(image) for image in images]
        if not all(torch.equal(one, levels_of(self.row(row)[0])) for one, row in zip(values, rows, strict=True)):
            return 1, _DRAWN
        scale, are_normalized = scale_of(values, any("float" in str(getattr(image, "dtype", "")) for image in images))
        return scale, _NORMALIZED if are_normalized else ""


def _other_classes(a: list[str], b: list[str]) -> list[str]:
    if a != b and sorted(a) == sorted(b):
        number = next(n for n in range(len(a)) if a[n] != b[n])
        return [f"other order of classes: number {number} is {a[number]} in a, {b[number]} in b"]
    return _lacking(a, b, "class", "classes") if a and b else []


def _lacking(a: Collection[str], b: Collection[str], one: str, many: str) -> list[str]:
    """Say what names each of the two lacks of the other's."""
    missing = (("a", sorted({*b} - {*a})), ("b", sorted({*a} - {*b})))
    of = (f"{len(names):,} {one if len(names) == 1 else many}: {', '.join(names[:3])}" for _, names in missing)
    return [f"{side} lacks {what}" for (side, names), what in zip(missing, of, strict=True) if names]


def _pairs(a: _Side, b: _Side, report: CompareReport) -> list[tuple[int, int]]:
    """Return positions (in a, in b) of the same image, and report what only one of the two has."""
    counts = report.counts
    report.differences += [f"a has {counts[0]:,} rows, b has {counts[1]:,}"] if counts[0] != counts[1] else []
    for depth in (0, 2):  # all of a path, or its last two parts
        in_a, in_b = ({"/".join(path.split("/")[-depth:]): n for n, path in enumerate(side.paths)} for side in (a, b))
        if shared := [(in_a[path], in_b[path]) for path in in_a if path in in_b]:
            report.differences += _lacking(in_a, in_b, "image", "images")
            return shared
    report.notes.append("the two name no image alike, so rows are paired by position")
    return [(n, n) for n in range(min(counts))]


def _scales(a: _Side, b: _Side, pairs: list[tuple[int, int]], report: CompareReport) -> tuple[float, float] | None:
    """Return by what images of a and of b become levels; None, with a note, where they cannot be compared."""
    (scale_a, why_a), (scale_b, why_b) = a.scale([row for row, _ in pairs]), b.scale([row for _, row in pairs])
    if why_a == why_b == _NORMALIZED:
        report.notes.append("both are normalized: what a's values span counts as 255 levels")
        return scale_a, scale_a
    if not (why_a or why_b):
        return scale_a, scale_b
    report.notes.append(f"pixels were not compared: {f'a {why_a}' if why_a else f'b {why_b}'}")
    return None


def _compare_rows(a: _Side, b: _Side, pairs: list[tuple[int, int]], report: CompareReport) -> None:
    means, seen = list[float](), defaultdict[str, list[int]](list)
    scales = _scales(a, b, pairs[:: max(1, len(pairs) // _READ_TWICE)], report)
    for row_a, row_b in pairs:
        (image_a, target_a), (image_b, target_b) = a.row(row_a), b.row(row_b)
        if target_a is not None and target_b is not None:
            report.targets += 1
            if what := _other_part(target_a, target_b):
                seen[f"another {what}"].append(row_a)
        if scales is None:
            continue
        one, other = levels_of(image_a) * scales[0], levels_of(image_b) * scales[1]
        if len(one) != len(other) and 1 not in (len(one), len(other)):
            seen[f"{len(one)} channels in a, {len(other)} in b"].append(row_a)
            continue
        if one.shape != other.shape:
            seen[f"another size, [C, H, W] {[*one.shape]} in a and {[*other.shape]} in b"].append(row_a)
            other = resized(other, one.shape[1:])
        means.append(mean_difference(one, other))
        report.worst = max(report.worst or 0.0, float((one - other).abs().max()))
        if means[-1] > SAME_VIEW:
            seen[view_of(one, other)].append(row_a)
    if pairs and not report.targets:
        report.notes.append("targets were not compared: a, b or both have none of the other's kind")
    if means:
        report.compared, report.mean, report.equal = len(means), sum(means) / len(means), means.count(0) / len(means)
    for least, most, meaning in _MEANINGS:
        if count := sum(least < mean <= most for mean in means):
            report.sizes.append(f"{count} of {len(means)} rows, {meaning}")
    for what, rows in sorted(seen.items(), key=lambda one: -len(one[1]))[:_MOST_SENTENCES]:
        report.differences.append(f"{len(rows)} of {len(pairs)} rows, row {rows[0]} of a first: {what}")


def _other_part(a: Any, b: Any, at: str = "target") -> str:
    """Say which part of two targets is not the same, of numbers, names, and dicts, lists and tuples of them; "": none.

    Numbers may have been rounded to another type.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"{at}, which has {', '.join(map(str, a))} in a, {', '.join(map(str, b))} in b"
        return next(filter(None, (_other_part(a[key], b[key], f"{at}[{key!r}]") for key in a)), "")
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        found = (_other_part(*pair, at) for pair in zip(a, b, strict=False))
        return at if len(a) != len(b) else next(filter(None, found), "")
    one, other = (np.asarray(each.detach().cpu() if isinstance(each, torch.Tensor) else each) for each in (a, b))
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf" and one.shape == other.shape:
        return "" if np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True) else at
    return "" if np.array_equal(one, other) else at
