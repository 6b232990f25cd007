"""`pack merge`: one store from the rows of several. Checks that they match, joins their classes; `copy_rows` copies."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from packer.errors import OptionsError, PackError
from packer.inputs.class_lists import load_classes
from packer.inputs.splits import stores_of
from packer.operations.copy_rows import CopyPlan, Selection, copy_plans, copy_target, joint_labels, open_for_copy
from packer.option_names import Option
from packer.progress import reports
from packer.report import PackReport, Progress
from packer.text import options_difference, some
from reader.format.manifest import Manifest
from reader.format.row_values import has_boxes

# Names of tensors in messages.
_NAMES = {"mask_offsets": "masks"}


@reports
def merge(
    stores: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    classes: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Copy the rows of several stores, one store after the other, into the store OUT, without decoding.

    They must have been packed with the same options. If they are folders of splits, the stores of each split become
    `OUT/<split>`, all with one class list. If their class lists differ, OUT has the longest list if that has all classes,
    else all names, sorted.

    Args:
        stores: two or more; OUT may be one of them, with overwrite.
        out: the store to make; with splits, the folder of its stores.
        classes: the class list of OUT: the path of a store or a file.
        overwrite: replace an existing store, which may be one of stores.
        progress: called a few times a second from the calling thread.

    Raises:
        OptionsError: there are fewer than two stores.
        PackError: one is not a store or is damaged, they differ, OUT is in the way; or DiskFullError.

    Examples:
        >>> merge([store_path, store_path], out_path).rows
        180
    """
    paths = [] if isinstance(stores, str | os.PathLike) else [*stores]
    if len(paths) < 2:
        raise OptionsError("merge takes two stores or more, then OUT.")
    target = copy_target(out)
    groups = _groups(paths)
    every = [one for group in groups.values() for one in group]
    for group in groups.values():
        for path, manifest in group[1:]:
            _check_alike(*group[0], path, manifest)
    if classes is not None and every[0][1].target_kind == "regression":
        raise OptionsError(
            f"{every[0][0]} has regression targets, which have no classes: leave {Option('classes')} out."
        )
    # one list for all splits, even if only one of the stores has a split
    names = None if classes is None else load_classes(os.fspath(classes))
    names = names or joined([manifest.classes for _, manifest in every])
    plans = {split: _plan(group, names, is_list_given=classes is not None) for split, group in groups.items()}
    return copy_plans(plans, target, overwrite=overwrite)


def _groups(paths: Sequence[str | os.PathLike[str]]) -> dict[str, list[tuple[Path, Manifest]]]:
    """Open the stores to join: all, or those of each split."""
    found = [stores_of(path) for path in paths]
    if mixed := [path for path, stores in zip(paths, found, strict=True) if ("" in stores) != ("" in found[0])]:
        raise PackError(
            f"{mixed[0]} and {paths[0]} cannot be merged: one is a store, the other a folder of splits."
            " Name the store of one split."
        )
    groups: dict[str, list[tuple[Path, Manifest]]] = {}
    for stores in found:
        for split, store in stores.items():
            groups.setdefault(split, []).append(open_for_copy(store))
    return groups


def _plan(
    found: list[tuple[Path, Manifest]],
    names: tuple[str, ...],
    *,
    is_list_given: bool,
) -> CopyPlan:
    """Join the rows of stores that are alike, with targets numbered by one class list."""
    manifests = [manifest for _, manifest in found]
    like = manifests[0]
    # the widest boxes; other tensors are alike
    extras = {
        name: max((one.extras[name] for one in manifests), key=lambda spec: spec.row_shape) for name in like.extras
    }
    selections = [
        Selection(path, manifest, np.arange(manifest.rows), _numbers(path, manifest, names)) for path, manifest in found
    ]
    is_counted = like.target_kind == "multi-hot" and names
    return CopyPlan(
        selections,
        classes=names,
        target_count=len(names) if is_counted else like.target_count,
        extras=extras,
        # no seed reproduces the order of several shuffled stores
        options=dict(like.options) | {"shuffle": None},
        labels=joint_labels(manifests, is_list_given=is_list_given),
        has_rejects=True,
        notes=_notes(selections, names),
    )


def joined(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return one list of all classes: the longest if it has them all, the first of several; else their names, sorted.

    Examples:
        >>> joined([("cat", "ant"), ("ant", "cat", "bee")]), joined([("cat",), ("ant",)])
        (('ant', 'cat', 'bee'), ('ant', 'cat'))
    """
    names = {name for names in lists for name in names}
    longest = max(lists, key=len)
    return longest if names == set(longest) else tuple(sorted(names))


def _check_alike(first: Path, like: Manifest, path: Path, manifest: Manifest) -> None:
    """Refuse to join stores that differ in more than their rows; names the difference."""
    together, kinds = f"{first} and {path} cannot be one store", (_kinds(like), _kinds(manifest))
    labels = [{name: kind for name, kind in each.items() if _is_label(name)} for each in kinds]
    if what := _differences(*labels):
        raise PackError(f"{together}: their rows hold different data ({what}).")
    one, other = (dict(each.options) | {"shuffle": None} for each in (like, manifest))
    if what := options_difference(one, other, " and "):
        raise PackError(f"{together}: they were packed with other options{what}.")
    if like.decoders != manifest.decoders:
        raise PackError(
            f"{together}: they were packed by other decoders ({_differences(dict(like.decoders), dict(manifest.decoders))})."
            " Pack one of them again, by the same versions."
        )
    if what := _differences(*kinds):
        raise PackError(f"{together}: their rows hold different data ({what}).")


def _is_label(tensor: str) -> bool:
    return tensor in ("targets", "mask_offsets") or tensor.startswith("extras/")


def _kinds(manifest: Manifest) -> dict[str, str]:
    """Return the kind of each column of a store, by name, as text; stores with equal texts can be joined."""
    kinds = {}
    for name, spec in sorted(manifest.tensors.items()):
        kinds[name] = f"{spec.dtype} {list(spec.row_shape)}"
        if name in ("extras/boxes", "extras/box_targets") and has_boxes(manifest):
            kinds[name] = "boxes"
    kinds["targets"] = _target_kind(manifest.target_kind, manifest.classes, manifest.target_count)
    return kinds


def _target_kind(kind: str, classes: tuple[str, ...], count: int | None) -> str:
    """Name a kind of target; named classes may differ in number."""
    return kind if count is None or (kind == "multi-hot" and classes) else f"{kind} of {count}"


def _differences(one: Mapping[str, object], other: Mapping[str, object]) -> str:
    """Describe the difference of two dicts, the first one's values first; "" if they are equal.

    Examples:
        >>> _differences({"size": 32, "fit": "crop"}, {"size": 40, "fit": "crop", "masks": True})
        'size: 32 and 40; masks: none and True'
    """
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    values = [
        f"{_NAMES.get(name, name.removeprefix('extras/'))}: {one.get(name, 'none')} and {other.get(name, 'none')}"
        for name in names
    ]
    return "; ".join(values)


def _numbers(path: Path, manifest: Manifest, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    """Return the new number of each class of a store, for each tensor whose numbers change."""
    tensors = ["targets"] * (manifest.target_kind != "regression") + ["extras/box_targets"] * has_boxes(manifest)
    return {} if manifest.classes == names else dict.fromkeys(tensors, _moved(path, manifest.classes, names))


def _moved(path: Path, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[int, ...]:
    numbers = {name: number for number, name in enumerate(new)}
    if unknown := [name for name in old if name not in numbers]:
        raise PackError(f"{path} has classes that the list given by {Option('classes')} lacks: {some(unknown)}.")
    return tuple(numbers[name] for name in old)


def _notes(selections: list[Selection], names: tuple[str, ...]) -> list[str]:
    """Note the stores whose classes get other numbers."""
    moved = [str(selection.path) for selection in selections if selection.numbers.get("targets")]
    if not moved:
        return []
    return [f"targets count in one list of {len(names)} classes; those of {some(moved)} have new numbers."]
