"""Are two datasets of (image, target) the same? Rows are paired by path, some of them read, and differences named.

For moving a program: ImageFolder with its recipe is `a`, the store with its own is `b`. Knows no format of a store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from reader.dataset.cropping import repeated_steps

# What a mean difference of an image means, in levels, up to which: of 100 photographs at 224 x 224, see docs/how-to/migrate.md.
# Another crop of one of them differs by less than 50 in 95 of 100.
_SAME_VIEW, _SAME_IMAGE = 10.0, 50.0
_MEANINGS = (
    (1.0, "rounding, or another JPEG decoder"),
    (_SAME_VIEW, "another filter, a resize in between, or a shift by a pixel"),
)
# A view explains a difference where it leaves less than this share of it.
_EXPLAINED = 0.6
# Sides of images that are looked at for that, pixels: 50 cuts of 64 rows take 10 s of CPU at 224.
_VIEW_SIDE = 112
_MOST_SENTENCES = 6
# Rows that are read twice, to see whether pixels are drawn at random: a flip of half of them shows in all but 1 of 65,536 cases.
_READ_TWICE = 16
# Images beyond 0 to 255 by more than a bicubic filter overshoots are normalized.
_OVERSHOOT = 40
_NORMALIZED = "is normalized. Leave Normalize out of it"
_DRAWN = "draws at random. Give it the recipe of validation"
# Floats that are all below are of 0 to 1, or normalized; such as go beyond, of 0 to 255.
_LEAST_LEVEL = 16


@dataclass
class CompareReport:
    """What `compare` found.

    Attributes:
        counts: rows of a and of b.
        compared: pairs of rows whose pixels were compared; 0: see the notes.
        targets: pairs of rows whose targets were compared.
        worst, mean: largest and mean difference of a value, in levels of 0 to 255; None where none were compared.
        equal: share of these pairs that have the same pixels, 0 to 1.
        sizes: a sentence on the rows of each size of difference that leaves the view the same, and what such a one means.
        differences: sentences on what is not the same: classes, counts, targets, sizes, cuts. [] where the two agree.
        notes: sentences on what was not compared, and on what is resized twice.
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
        lines = [f"{self.compared:,} rows compared"]
        if self.compared:
            lines[0] += (
                f": {self.equal:.0%} are equal; mean difference {self.mean:.2f}, worst {self.worst:.3g} of 255 levels"
            )
        lines += self.sizes
        compared = "classes, counts, targets and cuts" if self.targets else "classes, counts and cuts"
        lines += [f"differs: {sentence}" for sentence in self.differences] or [f"no difference in {compared}"]
        return "\n".join([*lines, *(f"note: {sentence}" for sentence in self.notes)])


def compare(a: Any, b: Any, rows: int = 64) -> CompareReport:
    """Compare two datasets of (image, target), such as a program's ImageFolder and the store that replaces it.

    Rows are paired by path where both have `samples`, else by position. Images are PIL images, arrays [H, W, C] or
    tensors [C, H, W], of 0 to 255 or of 0 to 1. Give both the recipe of validation: pixels that are drawn at random
    are not compared.

    Args:
        a, b: give (image, target); their `classes`, `samples` and `transform` are looked at where they have them.
        rows: pairs of rows to read, evenly spread.

    Raises:
        TypeError: a or b is no such dataset. ValueError: rows is not 1 or more.

    Example:
        >>> from reader import MemmapDataset
        >>> print(compare(MemmapDataset(store_path), MemmapDataset(store_path), rows=8))
        8 rows compared: 100% are equal; mean difference 0.00, worst 0 of 255 levels
        no difference in classes, counts, targets and cuts
    """
    if not isinstance(rows, int) or rows < 1:
        raise ValueError(f"rows is {rows!r}, expected 1 or more.")
    for name, data in (("a", a), ("b", b)):
        if isinstance(data, str) or not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
            raise TypeError(f"{name} is {type(data).__name__}, expected a dataset with a length and rows by number.")
    report = CompareReport((len(a), len(b)))
    _compare_classes(_classes(a), _classes(b), report)
    for name, data in (("a", a), ("b", b)):
        cropped, resized = repeated_steps(data)
        report.differences += [f"{name} is cropped twice: {cropped}"] if cropped else []
        report.notes += [f"{name} is resized twice: {resized}"] if resized else []
    pairs = _pairs(a, b, report)
    step = max(1.0, len(pairs) / rows)
    chosen = [pairs[int((n + 0.5) * step)] for n in range(min(rows, len(pairs)))]
    _compare_rows(a, b, chosen, report)
    return report


def _classes(data: Any) -> list[str] | None:
    """Return the class names of a dataset, or of that of which it is a torch Subset; None: it has none."""
    classes = getattr(data, "classes", None)
    return _classes(data.dataset) if classes is None and hasattr(data, "dataset") else classes and [*classes]


def _compare_classes(a: list[str] | None, b: list[str] | None, report: CompareReport) -> None:
    if a is not None and b is not None and a != b:
        for name, missing in (("a", [c for c in b if c not in a]), ("b", [c for c in a if c not in b])):
            what = "class" if len(missing) == 1 else "classes"
            report.differences += [f"{name} lacks {len(missing)} {what}: {', '.join(missing[:3])}"] if missing else []
        if sorted(a) == sorted(b):
            number = next(n for n in range(len(a)) if a[n] != b[n])
            report.differences.append(f"other order of classes: number {number} is {a[number]} in a, {b[number]} in b")


def _pairs(a: Any, b: Any, report: CompareReport) -> list[tuple[int, int]]:
    """Return positions (in a, in b) of the same image, and report what only one of the two has."""
    report.differences += [f"a has {len(a):,} rows, b has {len(b):,}"] if len(a) != len(b) else []
    for depth in (0, 2):
        in_a, in_b = ({path: n for n, path in enumerate(_paths(data, depth))} for data in (a, b))
        if shared := [(in_a[path], in_b[path]) for path in in_a if path in in_b]:
            for name, missing in (("a", in_b.keys() - in_a.keys()), ("b", in_a.keys() - in_b.keys())):
                named, what = ", ".join(sorted(missing)[:3]), "image" if len(missing) == 1 else "images"
                report.differences += [f"{name} lacks {len(missing):,} {what}: {named}"] if missing else []
            return shared
    report.notes.append("the two name no image alike, so rows are paired by position")
    return [(n, n) for n in range(min(len(a), len(b)))]


def _paths(data: Any, depth: int) -> list[str]:
    """Return the paths of all rows, below the dataset's root, or the last so many parts of them; [] where it has none."""
    if hasattr(data, "indices") and hasattr(data, "dataset"):  # torch's Subset
        paths = _paths(data.dataset, depth)
        return [paths[int(n)] for n in data.indices] if paths else []
    root = PurePath(str(getattr(data, "root", "")))
    found = [PurePath(str(sample[0])) for sample in getattr(data, "samples", ())]
    below = [path.relative_to(root) if path.is_relative_to(root) else path for path in found]
    return ["/".join(path.parts[-depth:]) for path in below]


def _compare_rows(a: Any, b: Any, pairs: list[tuple[int, int]], report: CompareReport) -> None:
    differences, seen = list[torch.Tensor](), dict[str, list[int]]()
    some = pairs[:: max(1, len(pairs) // _READ_TWICE)]
    scale_a, why_a = _scale("a", a, [row for row, _ in some])
    scale_b, why_b = _scale("b", b, [row for _, row in some])
    is_comparable = not (why_a or why_b) or why_a == why_b == _NORMALIZED
    if not is_comparable:
        report.notes.append(f"pixels were not compared: {f'a {why_a}' if why_a else f'b {why_b}'}")
    for row_a, row_b in pairs:
        (image_a, target_a), (image_b, target_b) = _row("a", a, row_a), _row("b", b, row_b)
        if target_a is not None and target_b is not None:
            report.targets += 1
            if what := _other(_label(a, target_a), _label(b, target_b)):
                seen.setdefault(f"another {what}", []).append(row_a)
        if not is_comparable:
            continue
        one, other = _values(image_a) * scale_a, _values(image_b) * scale_b
        if len(one) != len(other) and 1 not in (len(one), len(other)):
            seen.setdefault(f"{len(one)} channels in a, {len(other)} in b", []).append(row_a)
            continue
        if one.shape != other.shape:
            what = f"another size, [C, H, W] {[*one.shape]} in a and {[*other.shape]} in b"
            seen.setdefault(what, []).append(row_a)
            other = _resized(other, *one.shape[1:])
        differences.append((one - other).abs())
        if differences[-1].mean() > _SAME_VIEW:
            seen.setdefault(_view(one, other), []).append(row_a)
    if pairs and not report.targets:
        report.notes.append("targets were not compared: a, b or both have none of the other's kind")
    if differences:
        means = [float(each.mean()) for each in differences]
        report.compared, report.worst = len(means), max(float(each.max()) for each in differences)
        report.mean, report.equal = sum(means) / len(means), means.count(0) / len(means)
        report.sizes = _sizes(means)
    for what, rows in sorted(seen.items(), key=lambda one: -len(one[1]))[:_MOST_SENTENCES]:
        report.differences.append(f"{len(rows)} of {len(pairs)} rows, row {rows[0]} of a first: {what}")


def _sizes(means: list[float]) -> list[str]:
    """Say how many rows have a difference of each size that another view is not needed for, and what that means."""
    sentences, least = [], 0.0
    for most, meaning in _MEANINGS:
        if count := sum(least < mean <= most for mean in means):
            sentences.append(f"{count} of {len(means)} rows, mean difference {least:.0f} to {most:.0f}: {meaning}")
        least = most
    return sentences


def _row(name: str, data: Any, row: int) -> tuple[Any, Any]:
    """Return (image, target) of a row; raises TypeError where a dataset gives something else."""
    found = data[row]
    if not isinstance(found, tuple | list) or len(found) != 2:
        kind = f"{type(found).__name__} of {len(found)}" if isinstance(found, tuple | list) else type(found).__name__
        raise TypeError(f"row {row} of {name} is a {kind}, expected (image, target).")
    return found[0], found[1]


def _label(data: Any, target: Any) -> Any:
    """Return a target, in place of the number of a class its name."""
    classes, number = _classes(data), getattr(target, "tolist", lambda: target)()
    return classes[number] if classes and isinstance(number, int) and 0 <= number < len(classes) else target


def _other(a: Any, b: Any, at: str = "target") -> str:
    """Say which part of two targets is not the same, of numbers, names, and dicts, lists and tuples of them; "": none.

    Numbers may have been rounded to another type.
    """
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"{at}, which has {', '.join(map(str, a))} in a, {', '.join(map(str, b))} in b"
        return next(filter(None, (_other(a[key], b[key], f"{at}[{key!r}]") for key in a)), "")
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        found = (_other(*pair, at) for pair in zip(a, b, strict=False))
        return at if len(a) != len(b) else next(filter(None, found), "")
    one, other = (np.asarray(each.detach().cpu() if isinstance(each, torch.Tensor) else each) for each in (a, b))
    if one.dtype.kind in "biuf" and other.dtype.kind in "biuf" and one.shape == other.shape:
        return "" if np.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True) else at
    return "" if np.array_equal(one, other) else at


def _values(image: Any) -> torch.Tensor:
    """Return any image as float32[C, H, W]."""
    if isinstance(image, torch.Tensor):
        return image.detach().cpu().float()
    values = torch.from_numpy(np.array(image)).float()
    return (values if values.ndim == 3 else values[..., None]).movedim(-1, 0)


def _scale(name: str, data: Any, rows: list[int]) -> tuple[float, str]:
    """Return by what values of a dataset's images become levels, and why levels say nothing; "" where they do."""
    low, high, has_floats = 0.0, 0.0, False
    for row in rows:
        image, again = _row(name, data, row)[0], _row(name, data, row)[0]
        values = _values(image)
        if not torch.equal(values, _values(again)):
            return 1, _DRAWN
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        has_floats |= "float" in str(getattr(image, "dtype", ""))
    scale = 255 if has_floats and high < _LEAST_LEVEL else 1
    is_normalized = low * scale < -_OVERSHOOT or high * scale > 255 + _OVERSHOOT
    return scale, _NORMALIZED if is_normalized else ""


def _view(a: torch.Tensor, b: torch.Tensor) -> str:
    """Say which cut, turn, blur or order of channels of one image is nearest to the other."""
    small = (
        [max(1, side * _VIEW_SIDE // max(a.shape)) for side in a.shape[1:]]
        if max(a.shape) > _VIEW_SIDE
        else a.shape[1:]
    )
    a, b = (_resized(image, *small) for image in (a, b))
    views = {"b has the channels of a in reverse order": (a.flip(0), b), "b is a mirrored": (a.flip(2), b)}
    if a.shape[1] == a.shape[2]:
        views |= {f"b is a turned by {90 * n} degrees": (a.rot90(n, (1, 2)), b) for n in (1, 2, 3)}
    for share in range(50, 100, 2):
        views[f"b shows the middle {share}% of what a shows, as if it were cropped twice"] = _middle(a, share), b
        views[f"a shows the middle {share}% of what b shows, as if b lacked a crop"] = a, _middle(b, share)
    unexplained = {what: float((one - other).abs().mean()) for what, (one, other) in views.items()}
    nearest = min(unexplained, key=unexplained.__getitem__)
    mean = float((a - b).abs().mean())
    if unexplained[nearest] < _EXPLAINED * mean:
        return nearest
    return "another image" if mean > _SAME_IMAGE else "another crop, or another image"


def _middle(image: torch.Tensor, share: int) -> torch.Tensor:
    """Return the middle share percent of both sides, resized to all of them."""
    height, width = image.shape[1:]
    down, across = (side * (100 - share) // 200 for side in (height, width))
    return _resized(image[:, down : height - down, across : width - across], height, width)


def _resized(image: torch.Tensor, height: int, width: int) -> torch.Tensor:
    return interpolate(image[None], (height, width), mode="bilinear", antialias=True)[0]
