"""`pack subset`: a store from some rows of another, in their order. Selects the rows; `copy_rows` makes the store."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from packer import values
from packer.errors import OptionsError, PackError
from packer.inputs.class_lists import composed, load_classes
from packer.inputs.splits import check_one_store, stores_of
from packer.operations.copy_rows import (
    CopyPlan,
    Selection,
    class_targets,
    copy_plans,
    copy_target,
    joint_labels,
    open_for_copy,
)
from packer.option_names import Option
from packer.progress import reports
from packer.report import PackReport, Progress
from packer.store.sealed_rows import Ints
from packer.text import some
from reader.format.manifest import Manifest
from reader.format.row_values import has_boxes

_SEED, _COUNT = (values.number(least, math.inf, f"{least} or more") for least in (0, 1))
_FRACTION = values.number(math.ulp(0), 1, "a number above 0, up to 1", kind=float)


@reports
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

    Selections apply in this order: rows, classes, per_class or fraction. If STORE is a folder of splits, each becomes
    `OUT/<split>`; rows needs a single store.

    Args:
        store: the folder of a store, or its URL.
        out: the store to make; with splits, the folder of its stores.
        rows: a slice, or row numbers in the order that OUT will have; None: all.
        classes: only rows of these classes, which become the list of OUT, in this order: names, or the path of a store or a
            file. None: all, with the list of the store.
        per_class: the number of rows drawn per class by seed, all of a smaller class; rows without a class are left out.
        fraction: this fraction of the rows, drawn by seed.
        seed: for per_class and fraction.
        overwrite: replace a store OUT, which may be the store itself.
        progress: called a few times a second from the calling thread.

    Raises:
        OptionsError: nothing is selected, or a selected row or class is missing.
        PackError: the store is not a store or is damaged, OUT is in the way, or DiskFullError.

    Examples:
        >>> subset(store_path, out_path, classes=["class2", "class0"], per_class=5).rows
        10
    """
    if rows is None and classes is None and per_class is None and fraction is None:
        raise OptionsError(
            f"nothing says which rows of {store}: give {Option('rows')}, {Option('classes')}, {Option('per_class')} or"
            f" {Option('fraction')}."
        )
    if per_class is not None and fraction is not None:
        raise OptionsError(f"{Option('per_class')} and {Option('fraction')} both say how many rows: give one of them.")
    if rows is not None:
        check_one_store(store, Option("rows"))
    # all rows are selected before the first store is written
    target = copy_target(out)
    plans = {split: _plan(path, rows, classes, per_class, fraction, seed) for split, path in stores_of(store).items()}
    return copy_plans(plans, target, overwrite=overwrite)


def _plan(
    store: Path,
    rows: slice | Iterable[int] | None,
    classes: str | os.PathLike[str] | Sequence[str] | None,
    per_class: int | None,
    fraction: float | None,
    seed: int,
) -> CopyPlan:
    """Choose the rows of one store."""
    path, manifest = open_for_copy(store)
    draw = Random(_SEED(Option("seed"), seed))
    chosen = _numbered(rows, manifest.rows)
    names, numbers = manifest.classes, {}
    if classes is not None or per_class is not None:
        _check_classes(path, manifest)
        targets = class_targets(path, manifest)
    if classes is not None:
        names = _listed(classes, path, manifest)
        index = {name: number for number, name in enumerate(names)}
        new = tuple(index.get(name, -1) for name in manifest.classes)
        chosen = chosen[np.array([*new, -1])[targets[chosen]] >= 0]
        numbers = {"targets": new}
    if per_class is not None:
        chosen = chosen[targets[chosen] >= 0]
        chosen = _draw_per_kind(chosen, targets[chosen], _COUNT(Option("per_class"), per_class), draw)
    if fraction is not None:
        count = round(_FRACTION(Option("fraction"), fraction) * len(chosen))
        chosen = _draw_per_kind(chosen, np.zeros(len(chosen), np.int64), count, draw)
    if not len(chosen):
        raise PackError(f"no row of {path} is chosen, so there would be no store. It has {manifest.rows} rows.")
    return CopyPlan(
        [Selection(path, manifest, chosen, numbers)],
        classes=names,
        target_count=manifest.target_count,
        extras=manifest.extras,
        options=manifest.options,
        # sorted, the names are what a folder of only these classes would give
        labels=joint_labels([manifest], is_list_given=classes is not None and [*names] != sorted(names)),
    )


def _numbered(rows: slice | Iterable[int] | None, count: int) -> Ints:
    """Return row numbers; raises OptionsError if the store lacks one of them."""
    try:
        if rows is None or isinstance(rows, slice):
            return np.arange(*(rows or slice(None)).indices(count))
        array = np.asarray(rows if hasattr(rows, "__array__") else [*rows])
        if array.size and (array.ndim != 1 or array.dtype.kind not in "iu"):
            raise TypeError(f"{array.dtype}{list(array.shape)}")
    except (TypeError, ValueError) as e:
        raise OptionsError(f"{Option('rows')} is not a slice, nor row numbers in one dimension: {e}.") from None
    wrong = array[(array < 0) | (array >= count)]
    if len(wrong):
        raise OptionsError(f"row {wrong[0]} is out of range: the store has rows 0 to {count - 1}.")
    return array.astype(np.int64).reshape(-1)


def _check_classes(path: Path, manifest: Manifest) -> None:
    """Refuse to choose by class, unless each row has one class."""
    if manifest.target_kind != "class":
        raise OptionsError(f"{path} has {manifest.target_kind} targets: its rows cannot be chosen by class.")
    if has_boxes(manifest):
        raise OptionsError(f"the classes of {path} are those of its boxes: its rows cannot be chosen by class.")


def _listed(classes: str | os.PathLike[str] | Sequence[str], path: Path, manifest: Manifest) -> tuple[str, ...]:
    """Return the requested classes; raises OptionsError for one that the store lacks."""
    names = load_classes(os.fspath(classes)) if isinstance(classes, str | os.PathLike) else tuple(classes)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise OptionsError(f"{Option('classes')} has {wrong[0]!r}, expected names.")
    names = tuple(map(composed, names))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise OptionsError(f"the class {twice[0]!r} is named twice.")
    known = set(manifest.classes)
    if unknown := [repr(name) for name in names if name not in known]:
        has = f"It has {len(known)}: {some([*map(repr, manifest.classes)])}" if known else "Its rows have no classes"
        raise OptionsError(f"{path} has no class {some(unknown)}. {has}.")
    return names


def _draw_per_kind(rows: Ints, kinds: Ints, count: int, draw: Random) -> Ints:
    """Draw count rows of each kind without replacement, or all if there are fewer; they keep their order.

    Python documents that `random()` keeps its sequence.
    """
    keys = np.fromiter((draw.random() for _ in rows), np.float64, len(rows))
    order = np.lexsort((keys, kinds))
    # kinds in order: [4, 4, 4, 7, 7] -> the number of each within its kind [0, 1, 2, 0, 1]
    begins = np.flatnonzero(np.concatenate(([True], np.diff(kinds[order]) != 0)))
    numbers = np.arange(len(rows)) - np.repeat(begins, np.diff([*begins, len(rows)]))
    return rows[np.sort(order[numbers < count])] if len(rows) else rows
