"""Are two datasets of (image, target) the same? Rows are paired by path, some of them read, and differences named.

For moving a program: ImageFolder with its recipe is `a`, the store with its own is `b`. Knows no format of a store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from reader.compared_rows import ComparedRows
from reader.dataset.cropping import inexact_steps, repeated_steps
from reader.views import NORMALIZED, SAME_VIEW, mean_difference, resized, view_of

# What a mean difference of an image means, by the levels above and up to which it is; measured on 100 photographs at 224 x 224,
# see docs/how-to/migrate.md.
_MEANINGS = (
    (0.0, 1.0, "mean difference 0 to 1: rounding, or another JPEG decoder"),
    (1.0, SAME_VIEW, "mean difference 1 to 10: another filter, a resize in between, or a shift by a pixel"),
)
_MOST_SENTENCES = 6
# Rows that are read twice, to see whether pixels are drawn at random: a flip of half of them shows in all but 1 of 65,536 cases.
_READ_TWICE = 16

# What differs -> the rows of a where it does, each with what it shows.
_Seen = defaultdict[str, list[tuple[int, str]]]


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
        classes: names of classes that were compared; 0: a, b or both have none.
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
    classes: int = 0

    def __str__(self) -> str:
        levels = f"mean difference {self.mean:.2f}, worst {self.worst:.3g} of 255 levels" if self.compared else ""
        equal = f": {self.equal:.0%} are equal; {levels}" if self.compared else ""
        compared = (("classes", self.classes), ("counts", True), ("targets", self.targets), ("cuts", self.compared))
        *first, last = [what for what, is_compared in compared if is_compared]
        nothing = "no difference in " + " and ".join(filter(None, [", ".join(first), last]))
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
        TypeError: a or b is no such dataset, or a row or an image is something else.
        ValueError: rows is not 1 or more.

    Example:
        >>> from pixpack import MemmapDataset
        >>> print(compare(MemmapDataset(store_path), MemmapDataset(store_path), rows=8))
        8 rows compared: 100% are equal; mean difference 0.00, worst 0 of 255 levels
        no difference in classes, counts, targets and cuts
    """
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
        raise ValueError(f"rows is {rows!r}, expected an integer of 1 or more.")
    one, other = ComparedRows("a", a), ComparedRows("b", b)
    report = CompareReport((len(a), len(b)))
    if one.classes and other.classes:
        report.classes = len({*one.classes, *other.classes})
        report.differences += _other_classes(one.classes, other.classes)
    for side in (one, other):
        cropped, resized = repeated_steps(side.data)
        report.differences += [f"{side.name} is cropped twice: {cropped}"] if cropped else []
        report.notes += [f"{side.name} is resized twice: {resized}"] if resized else []
    pairs = _pairs(one, other, report)
    step = max(1.0, len(pairs) / rows)
    pairs = [pairs[int((n + 0.5) * step)] for n in range(min(rows, len(pairs)))]
    _compare_rows(one, other, pairs, report)
    for side, read in zip((one, other), zip(*pairs, strict=True), strict=False) if report.mean else ():
        report.notes += [
            f"values of {side.name} differ because it was packed {how}" for how in inexact_steps(side.data, read)
        ]
    return report


def _other_classes(a: list[str], b: list[str]) -> list[str]:
    if a != b and sorted(a) == sorted(b):
        number = next(n for n in range(len(a)) if a[n] != b[n])
        return [f"other order of classes: number {number} is {a[number]} in a, {b[number]} in b"]
    return _lacking(a, b, "class", "classes")


def _lacking(a: Collection[str], b: Collection[str], one: str, many: str) -> list[str]:
    """Say what names each of the two lacks of the other's."""
    missing = (("a", sorted({*b} - {*a})), ("b", sorted({*a} - {*b})))
    of = (f"{len(names):,} {one if len(names) == 1 else many}: {', '.join(names[:3])}" for _, names in missing)
    return [f"{side} lacks {what}" for (side, names), what in zip(missing, of, strict=True) if names]


def _pairs(a: ComparedRows, b: ComparedRows, report: CompareReport) -> list[tuple[int, int]]:
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


def _scales(
    a: ComparedRows, b: ComparedRows, pairs: list[tuple[int, int]], report: CompareReport
) -> tuple[float, float] | None:
    """Return by what images of a and of b become levels; None, with a note, where they cannot be compared."""
    (scale_a, why_a), (scale_b, why_b) = a.scale([row for row, _ in pairs]), b.scale([row for _, row in pairs])
    if why_a == why_b == NORMALIZED:
        report.notes.append("both are normalized: what a's values span counts as 255 levels")
        return scale_a, scale_a
    if not (why_a or why_b):
        return scale_a, scale_b
    report.notes.append(f"pixels were not compared: {f'a {why_a}' if why_a else f'b {why_b}'}")
    return None


def _compare_rows(a: ComparedRows, b: ComparedRows, pairs: list[tuple[int, int]], report: CompareReport) -> None:
    means, seen = list[float](), _Seen(list)
    scales = _scales(a, b, pairs[:: max(1, len(pairs) // _READ_TWICE)], report)
    for row_a, row_b in pairs:
        (one, target_a), (other, target_b) = a.row(row_a), b.row(row_b)
        if target_a is not None and target_b is not None:
            report.targets += 1
            if report.classes:
                target_a, target_b = a.class_of(target_a), b.class_of(target_b)
            if what := _other_part(target_a, target_b):
                seen[what.partition(":")[0]].append((row_a, f"another {what}"))
        if scales is None:
            continue
        one, other = one * scales[0], other * scales[1]
        if what := _other_shape(one, other):
            seen[what.partition("[")[0]].append((row_a, what))
        if len(one) != len(other) and 1 not in (len(one), len(other)):
            continue  # a gray image is compared with each channel
        other = resized(other, one.shape[1:])
        means.append(mean_difference(one, other))
        report.worst = max(report.worst or 0.0, float((one - other).abs().max()))
        if means[-1] > SAME_VIEW:
            view = view_of(one, other)
            seen[view].append((row_a, view))
    if pairs and not report.targets:
        report.notes.append("targets were not compared: a, b or both have none of the other's kind")
    _summarize(means, seen, len(pairs), report)


def _summarize(means: list[float], seen: _Seen, count: int, report: CompareReport) -> None:
    if means:
        report.compared, report.mean, report.equal = len(means), sum(means) / len(means), means.count(0) / len(means)
    for least, most, meaning in _MEANINGS:
        if alike := sum(least < mean <= most for mean in means):
            report.sizes.append(f"{alike} of {len(means)} rows, {meaning}")
    for found in sorted(seen.values(), key=len, reverse=True)[:_MOST_SENTENCES]:
        report.differences.append(f"{len(found)} of {count} rows, row {found[0][0]} of a first: {found[0][1]}")


def _other_shape(a: torch.Tensor, b: torch.Tensor) -> str:
    """Say in what the shapes of two images differ; "": in nothing."""
    if len(a) != len(b):
        return f"{len(a)} channel{'s' * (len(a) > 1)} in a, {len(b)} in b"
    if a.shape[1:] == b.shape[1:]:
        return ""
    return f"another size, [C, H, W] = {[*a.shape]} in a and {[*b.shape]} in b. Give both the same recipe"


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
    is_number = one.dtype.kind in "biuf" and other.dtype.kind in "biuf" and one.shape == other.shape
    if np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True) if is_number else np.array_equal(one, other):
        return ""
    is_shown = one.ndim == other.ndim == 0 and "O" not in (one.dtype.kind, other.dtype.kind)
    return f"{at}: {one} in a, {other} in b" if is_shown else at
