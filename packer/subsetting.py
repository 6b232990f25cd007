"""`pack subset`: a store of some rows of another, in its order. Chooses them; `copying.py` makes the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import numpy as np

from packer.changes import some
from packer.classlists import load_classes
from packer.copying import Plan, copy_rows
from packer.options import OptionsError
from packer.pipeline import settled_out
from packer.report import PackError, PackReport, Progress
from packer.rowreader import Ints
from packer.shares import Share, opened
from reader.manifest import Manifest


def subset(
    store: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    rows: slice | Iterable[int] | None = None,
    classes: str | os.PathLike[str] | Sequence[str] | None = None,
    per_class: int | None = None,
    fraction: float | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Copy some rows of a store into the store OUT, without decoding. The same as the command `pack subset STORE OUT`.

    What is given is applied in this order: rows, classes, per_class or fraction.

    Args:
        rows: a slice, or row numbers, which OUT then has in their order; None: all.
        classes: only rows of these classes, which become the list of OUT, in this order: names, or as the path of a store or
            a file. Without it, OUT has the list of the store.
        per_class: so many rows of each class, or all there are of it, drawn by seed; those without a class are left out.
        fraction: this share of the rows, drawn by seed.
        overwrite: replace a store OUT, which may be the store itself.

    Raises:
        OptionsError: nothing is chosen, or what is not there.
        PackError: the store is none or damaged, OUT is in the way, or DiskFullError.

    Example:
        >>> subset(store_path, out_path, classes=["class2", "class0"], per_class=5).rows
        10
    """
    path, manifest = opened(store)
    if rows is None and classes is None and per_class is None and fraction is None:
        raise OptionsError(f"nothing says which rows of {path}: give rows, classes, per_class or fraction.")
    if per_class is not None and fraction is not None:
        raise OptionsError("per_class and fraction both say how many rows: give one of them.")
    chosen = _numbered(rows, manifest.rows)
    names, numbers = manifest.classes, {}
    if classes is not None or per_class is not None:
        _check_classes(path, manifest)
        targets = np.fromfile(path / manifest.tensor_paths()["targets"], "<i8")
    if classes is not None:
        names = _listed(classes, path, manifest)
        new = tuple(names.index(name) if name in names else -1 for name in manifest.classes)
        chosen = chosen[np.append(np.array(new, np.int64), -1)[targets[chosen]] >= 0]
        numbers = {"targets": new}
    draw = Random(seed)
    if per_class is not None:
        chosen = _of_each_class(chosen, targets, _counted("per_class", per_class), draw)
    if fraction is not None:
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise OptionsError(f"fraction is {fraction!r}, expected a share above 0, up to 1.")
        chosen = _drawn(chosen, round(fraction * len(chosen)), draw)
    if not len(chosen):
        raise PackError(f"no row of {path} is chosen, so there would be no store.")
    plan = Plan(
        [Share(path, manifest, chosen, numbers)],
        classes=names,
        target_count=manifest.target_count,
        extras=manifest.extras,
        further_targets=manifest.further_targets,
        options=manifest.options,
    )
    return copy_rows(plan, settled_out(out), overwrite=overwrite, progress=progress)


def _numbered(rows: slice | Iterable[int] | None, count: int) -> Ints:
    """Return row numbers; raises OptionsError where there are no such rows."""
    if rows is None or isinstance(rows, slice):
        return np.arange(count)[rows or slice(None)]
    try:
        values = np.asarray(rows if hasattr(rows, "__array__") or hasattr(rows, "__len__") else list(rows))
        if values.size and (values.ndim != 1 or values.dtype.kind not in "iu"):
            raise TypeError(f"{values.dtype}{list(values.shape)}")
    except (TypeError, ValueError) as e:
        raise OptionsError(f"rows is {e}, expected a slice, or row numbers in one dimension.") from None
    numbers = values.astype(np.int64).reshape(-1)
    wrong = numbers[(numbers < 0) | (numbers >= count)]
    if len(wrong):
        raise OptionsError(f"row {wrong[0]} is out of range: the store has rows 0 to {count - 1}.")
    return numbers


def _check_classes(path: Any, manifest: Manifest) -> None:
    """Refuse to choose by class where a row has not one."""
    if manifest.target_kind != "class":
        raise OptionsError(f"{path} has {manifest.target_kind} targets: its rows cannot be chosen by class.")
    if "box_targets" in manifest.extras:
        raise OptionsError(f"the classes of {path} are those of its boxes: its rows cannot be chosen by class.")


def _listed(classes: str | os.PathLike[str] | Sequence[str], path: Any, manifest: Manifest) -> tuple[str, ...]:
    """Return the list of classes that is asked for, all of which the store has."""
    names = load_classes(os.fspath(classes)) if isinstance(classes, str | os.PathLike) else tuple(classes)
    if len(set(names)) != len(names):
        raise OptionsError(f"classes name {next(name for name in names if names.count(name) > 1)!r} twice.")
    if unknown := [str(name) for name in names if name not in manifest.classes]:
        raise OptionsError(
            f"{path} has no class {some(unknown)}. It has {len(manifest.classes)}: {some(manifest.classes)}."
        )
    return names


def _counted(name: str, value: Any) -> int:
    if not isinstance(value, int) or value < 1:
        raise OptionsError(f"{name} is {value!r}, expected 1 or more.")
    return value


def _of_each_class(rows: Ints, targets: Ints, count: int, draw: Random) -> Ints:
    kept = [
        _drawn(rows[targets[rows] == number], count, draw) for number in range(int(targets[rows].max(initial=-1)) + 1)
    ]
    # in the order in which they came
    return rows[np.isin(rows, np.concatenate([*kept, np.array([], np.int64)]))]


def _drawn(rows: Ints, count: int, draw: Random) -> Ints:
    """Draw rows without replacement, in their order (Python documents that `random()` keeps its sequence)."""
    keys = np.array([draw.random() for _ in rows])
    return rows[np.sort(np.argsort(keys, kind="stable")[:count])]
