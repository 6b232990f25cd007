"""Stores made of rows of other stores: what `subset` and `merge` have in common. Decodes nothing.

Knows the folders: where a store is made, which one it replaces, what is in the way. There is no journal: nothing that took long
would be lost, so what is interrupted is removed and done again. How the rows get there is `store_copy.py`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.inputs.samples import Inputs
from packer.operations.copying.row_sources import CopySource, Selection, check_same
from packer.operations.copying.store_copy import AGAIN, CopyPlan, StoreCopy
from packer.options import OutputOptions
from packer.packing.levels import files_of, other_image
from packer.report import PackReport
from packer.store import journal as journals
from packer.store.build_folder import BuildFolder, finish, replaces_store
from packer.store.disk_space import guard_standard_streams
from packer.store.failures import as_pack_error
from packer.store.files import remove_tree, sync_folder
from packer.store.lock import Lock, checked
from packer.store.out_folder import ANNOUNCED, check_destination, check_out, check_takes_splits, resolved_out
from packer.store.parts import check_no_parts
from packer.store.reports import store_report, summed_report
from packer.store.swap import finish_swap
from packer.store.unfinished import PARTS, PULLED
from reader.format.check import check_store
from reader.format.manifest import FileEntry, Manifest
from reader.format.samples import read_samples
from reader.format.tensors import level_path


def copy_plans(plans: Mapping[str, CopyPlan], out: Path, *, overwrite: bool) -> PackReport:
    """Make the store OUT of the plan "", or OUT/<split> of the plan of each split.

    They may replace stores: then all are made before the first is replaced.

    Raises:
        OptionsError: OUT is inside one of the stores.
        PackError: OUT is in the way, a store is damaged or was replaced meanwhile; DiskFullError, LockedError.
    """
    if "" not in plans:
        check_takes_splits(out, f"the splits {', '.join(plans)} cannot be put into it")
    guard_standard_streams()
    options, destinations = (
        OutputOptions(overwrite=overwrite),
        {split: out / split if split else out for split in plans},
    )
    check_destination([], out)
    for destination in destinations.values():
        check_out(destination, options)
        check_no_parts(destination, options)
    replaces = any(replaces_store(destination, options) for destination in destinations.values())
    folders = {
        split: BuildFolder(destination, options, None, replaces=replaces) for split, destination in destinations.items()
    }
    for split, plan in plans.items():
        for selection in plan.selections:
            _check_apart(selection.path, destinations[split], folders[split].out)
    reports: dict[str, PackReport] = {}
    locks: list[Lock] = []
    with contextlib.ExitStack() as held, contextlib.ExitStack() as undone:
        for split, folder in folders.items():
            reports[split] = _copied(plans[split], folder, locks, held, undone)
            if not replaces:
                undone.pop_all()
                _finished([folder], locks)
        undone.pop_all()
        if replaces:
            _finished([*folders.values()], locks)
    return reports[""] if "" in reports else summed_report(out, reports)


def copy_target(out: str | os.PathLike[str]) -> Path:
    """Return OUT without dots, before any store is opened; raises PackError where it had been left half replaced.

    Then it is complete, but what replaced it may have been this very command: rows would be merged twice.
    """
    target = resolved_out(out)
    if finish_swap(target):
        raise PackError(
            f"{target} was half replaced, as a command had been interrupted. The replacement is complete now: look at"
            f" it (pack info {target}), and give this command again if it is still to be done."
        )
    return target


def _copied(
    plan: CopyPlan,
    folder: BuildFolder,
    locks: list[Lock],
    held: contextlib.ExitStack,
    undone: contextlib.ExitStack,
) -> PackReport:
    """Make one store in its folder, which is locked by then; and removed, unless it is finished."""
    started = time.monotonic()
    sizes: dict[str, int] = {}
    try:
        created = folder.make()
        for lock in _locked(folder, created):
            locks.append(lock)
            held.callback(lock.close)
        folder.check_again()
        undone.callback(folder.remove, created)
        try:
            with checked(folder.check):
                manifest = _made(plan, folder, sizes)
        except Exception:
            _check_all_same(plan)
            raise
    except OSError as e:
        raise as_pack_error(e, folder.out, sizes, AGAIN) from None
    inputs = Inputs(folder.final, notes=[*plan.notes, *folder.notes])
    report = store_report(manifest, inputs, folder.out, time.monotonic() - started, 0)
    return dataclasses.replace(report, out=str(folder.final))


def _finished(folders: Sequence[BuildFolder], locks: Sequence[Lock]) -> None:
    try:
        finish(folders, locks)
    except OSError as e:
        raise as_pack_error(e, folders[0].out, {}, AGAIN) from None


def joint_labels(manifests: Sequence[Manifest], *, is_list_given: bool) -> Mapping[str, object]:
    """Return how the labels of rows of these stores were read, as far as that is known and the same of all.

    Args:
        is_list_given: whether the class list is one that the user gave.
    """
    # digests of label files show their change alone: those of several are none
    labels = [{**manifest.labels, "boxes": None} if len(manifests) > 1 else manifest.labels for manifest in manifests]
    is_known = all(manifest.records_labels for manifest in manifests) and all(other == labels[0] for other in labels)
    known = {name: value for name, value in labels[0].items() if value is not None} if is_known else {"unknown": True}
    return known | ({"classes": True} if is_list_given else {})


def _check_all_same(plan: CopyPlan) -> None:
    """Raise PackError where a store was replaced meanwhile: whatever failed, that is the reason."""
    with contextlib.suppress(OSError):
        for selection in plan.selections:
            check_same(selection.path, selection.manifest)


def _locked(folder: BuildFolder, created: bool) -> list[Lock]:
    """Lock the folder, or leave none that was made for this."""
    try:
        return folder.lock()
    except BaseException:
        if created:
            with contextlib.suppress(OSError):  # another has put something there
                folder.out.rmdir()
        raise


def _made(plan: CopyPlan, folder: BuildFolder, sizes: dict[str, int]) -> Manifest:
    """Make the store in its folder; fills in what its files need as soon as that is known."""
    _clear(folder)
    levels: dict[str, FileEntry] = {}
    for factor in plan.levels:
        level = level_path(folder.out, factor)
        _copied_into(_level_plan(plan, factor), level, folder.check, sizes, {})
        levels |= files_of(folder.out, factor)
    manifest = _copied_into(plan, folder.out, folder.check, sizes, levels)
    for factor in plan.levels:
        if what := other_image(read_samples(folder.out), read_samples(level_path(folder.out, factor)), factor):
            copied = " or ".join(str(selection.path) for selection in plan.selections)
            raise PackError(f"{what}: {copied} is damaged. pack verify names all that is; pack the images again.")
    check_store(folder.out)  # what cannot be opened must replace no store
    return manifest


def _copied_into(
    plan: CopyPlan,
    out: Path,
    check: Callable[[], None],
    sizes: dict[str, int],
    levels: Mapping[str, FileEntry],
) -> Manifest:
    with contextlib.ExitStack() as held:
        sources = [held.enter_context(contextlib.closing(CopySource(selection))) for selection in plan.selections]
        copy = StoreCopy(plan, sources, out, check, levels)
        sizes |= copy.sizes
        return copy.run()


def _level_plan(plan: CopyPlan, factor: int) -> CopyPlan:
    """Return what copies a level of the same rows: what packing their images at its size makes, as of the store."""
    selections = []
    for one in plan.selections:
        path = level_path(one.path, factor)
        numbers = {name: new for name, new in one.numbers.items() if name == "targets"}
        selections.append(Selection(path, check_store(path), one.rows, numbers))
    own = selections[0].manifest.options
    if "size" not in own:
        raise PackError(f"{selections[0].path} is damaged: its options have no size. Pack the images again.")
    options = {name: own[name] if name in ("size", "max_size") else value for name, value in plan.options.items()}
    left_out = {"levels", "min_visibility", "max_boxes", "upright_labels", "masks", "mask_values"}
    return dataclasses.replace(
        plan,
        selections=selections,
        extras={},
        further_targets={},
        texts=(),
        levels=(),
        options={name: value for name, value in options.items() if name not in left_out},
        notes=[],
    )


def _check_apart(store: Path, out: Path, beside: Path) -> None:
    """Refuse a store that OUT is in, that would be deleted with OUT, or that is where OUT is built."""
    real = Path(os.path.realpath(store))
    if real in Path(os.path.realpath(out)).parents:
        raise OptionsError(f"OUT {out} is inside the store {store}. Choose a folder outside it.")
    for folder in (out, beside):
        if Path(os.path.realpath(folder)) in real.parents:
            raise OptionsError(f"the store {store} is inside {folder}, which would be replaced. Choose another OUT.")
    if beside != out and real == Path(os.path.realpath(beside)):
        raise OptionsError(f"the store {store} is where OUT {out} is built. Move it away, or choose another OUT.")


def _clear(folder: BuildFolder) -> None:
    """Remove what an unfinished pack has left in the folder, its journal first: it must never outlive its rows.

    So whoever looks after a death finds no pack to resume.
    """
    folder.check()
    (folder.out / ANNOUNCED).unlink(missing_ok=True)
    journals.discard(folder.out)
    sync_folder(folder.out)
    folder.clear()
    for unfinished in (folder.out / PARTS, (folder.out / PULLED).parent):
        if unfinished.exists():
            folder.check()
            remove_tree(unfinished)
