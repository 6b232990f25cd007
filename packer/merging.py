"""`pack merge`: one store of the rows of several. Sees that they are alike, joins their classes; `copying.py` makes the store."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from packer.changes import difference, names_difference, some
from packer.classlists import load_classes
from packer.copying import Plan, copy_rows
from packer.options import OptionsError
from packer.pipeline import settled_out
from packer.report import PackError, PackReport, Progress
from packer.shares import Share, opened
from reader.manifest import FurtherTarget, Manifest, TensorSpec

# A row's boxes and their classes: how many fit is each store's own.
_OF_BOXES = ("boxes", "box_targets")


def merge(
    stores: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    classes: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> PackReport:
    """Copy the rows of several stores, one store behind the other, into the store OUT, without decoding.

    They must have been packed alike. Where their classes differ, targets count in the longest list if it has all of them, else
    in all names, sorted.

    Args:
        stores: two or more; OUT may be one of them, with overwrite.
        classes: the list to count in: the path of a store or a file.

    Raises:
        OptionsError: they are too few.
        PackError: a store is none or damaged, they are not alike, OUT is in the way; or DiskFullError.

    Example:
        >>> merge([store_path, store_path], out_path).rows
        180
    """
    if isinstance(stores, str | os.PathLike) or len(stores) < 2:
        raise OptionsError(f"stores is {stores!r}, expected two stores or more.")
    found = [opened(store) for store in stores]
    for path, manifest in found[1:]:
        _check_alike(*found[0], path, manifest)
    manifests = [manifest for _, manifest in found]
    like = manifests[0]
    imposed = None if classes is None else load_classes(os.fspath(classes))
    names = imposed or joined([manifest.classes for manifest in manifests])
    further = {
        name: FurtherTarget(target.kind, joined([manifest.further_targets[name].classes for manifest in manifests]))
        for name, target in like.further_targets.items()
    }
    extras = {name: _widest([manifest.extras[name] for manifest in manifests]) for name in like.extras}
    for name, target in further.items():
        if target.kind == "multi-hot":
            extras[name] = TensorSpec("uint8", (len(target.classes) or extras[name].row_shape[0],))
    shares = [
        Share(path, manifest, np.arange(manifest.rows), _numbers(path, manifest, names, further))
        for path, manifest in found
    ]
    shuffles = {manifest.options.get("shuffle") for manifest in manifests}
    is_counted = like.target_kind == "multi-hot" and names
    plan = Plan(
        shares,
        classes=names,
        target_count=len(names) if is_counted else like.target_count,
        extras=extras,
        further_targets=further,
        # of stores that were shuffled otherwise, no seed gives the order
        options=dict(like.options) | ({"shuffle": None} if len(shuffles) > 1 else {}),
        has_rejects=True,
        notes=_class_notes(shares, names),
    )
    return copy_rows(plan, settled_out(out), overwrite=overwrite, progress=progress)


def joined(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Return one list of all classes: the longest if it has them all, the first of several; else their names, sorted.

    Example:
        >>> joined([("cat", "ant"), ("ant", "cat", "bee")]), joined([("cat",), ("ant",)])
        (('ant', 'cat', 'bee'), ('ant', 'cat'))
    """
    names = {name for names in lists for name in names}
    longest = max(lists, key=len)
    return longest if names == set(longest) else tuple(sorted(names))


def _check_alike(first: Path, like: Manifest, path: Path, manifest: Manifest) -> None:
    """Refuse to lay rows behind others that they are not like; says what differs."""
    together = f"{path} and {first} cannot be one store"
    options, others = dict(like.options), dict(manifest.options)
    if options | {"shuffle": None} != others | {"shuffle": None}:
        options["shuffle"] = others.get("shuffle")
        raise PackError(f"{together}: they were packed with other options{_or(difference(options, others))}.")
    if like.decoders != manifest.decoders:
        raise PackError(
            f"{together}: they were packed by other decoders{_or(difference(dict(like.decoders), dict(manifest.decoders)))}."
            " Pack one of them anew, by the same versions."
        )
    kinds, other_kinds = _kinds(like), _kinds(manifest)
    if what := names_difference([*kinds], [*other_kinds]):
        raise PackError(f"{together}: they hold other things for each row ({what}).")
    if what := difference(kinds, other_kinds):
        raise PackError(f"{together}: they differ{_or(what)}.")


def _kinds(manifest: Manifest) -> dict[str, str]:
    """Return what a store holds for each row, by name, as text that is the same of stores that fit together."""
    kinds = {"targets": f"{manifest.target_kind}"}
    if manifest.target_kind == "regression" or (manifest.target_kind == "multi-hot" and not manifest.classes):
        kinds["targets"] += f" of {manifest.target_count}"
    for name in manifest.tensors.keys() - {"targets"}:
        spec = manifest.tensors[name]
        name = name.removeprefix("extras/")
        kinds[name] = f"{spec.dtype}{list(spec.row_shape)}"
        if name in _OF_BOXES and "box_count" in manifest.extras:
            kinds[name] = f"{spec.dtype}{['K', *spec.row_shape[1:]]}"
        if target := manifest.further_targets.get(name):
            kinds[name] = target.kind if target.classes else f"{target.kind} {spec.dtype}{list(spec.row_shape)}"
    return kinds


def _or(what: str) -> str:
    """Say the second as another store's, not as what is now."""
    return what.replace(", now ", " or ")


def _widest(specs: list[TensorSpec]) -> TensorSpec:
    """Return the spec with most room for boxes; others are alike."""
    return max(specs, key=lambda spec: spec.row_shape)


def _numbers(
    path: Path, manifest: Manifest, names: tuple[str, ...], further: Mapping[str, FurtherTarget]
) -> dict[str, tuple[int, ...]]:
    """Return the new number of each class of a store, for each tensor in which it is another."""
    lists = {"targets": (manifest.classes, names)} if manifest.target_kind != "regression" else {}
    if "box_targets" in manifest.extras:
        lists["extras/box_targets"] = (manifest.classes, names)
    lists |= {f"extras/{name}": (manifest.further_targets[name].classes, t.classes) for name, t in further.items()}
    return {name: _moved(path, old, new) for name, (old, new) in lists.items() if old != new}


def _moved(path: Path, old: tuple[str, ...], new: tuple[str, ...]) -> tuple[int, ...]:
    places = {name: number for number, name in enumerate(new)}
    if unknown := [name for name in old if name not in places]:
        raise PackError(f"{path} has classes that the list given by --classes has not: {some(unknown)}.")
    return tuple(places[name] for name in old)


def _class_notes(shares: list[Share], names: tuple[str, ...]) -> list[str]:
    """Say whose targets count in another list than before."""
    moved = [str(share.path) for share in shares if share.numbers]
    if not moved:
        return []
    return [f"classes are joined, {len(names)} in all, and targets of {some(moved)} are numbered anew."]
