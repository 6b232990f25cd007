"""Stores made of rows of other stores: what `subset` and `merge` have in common. Decodes nothing.

There is no journal: nothing that took long would be lost, so what is interrupted is removed and done again. How the rows get
there is `store_copy.py`'s.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from packer.errors import OptionsError
from packer.inputs.samples import Inputs
from packer.operations.copying.row_sources import CopySource, check_same
from packer.operations.copying.store_copy import AGAIN, CopyPlan, StoreCopy
from packer.options import OutputOptions
from packer.report import PackReport
from packer.store.destination import Folder, Making
from packer.store.disk_space import guard_standard_streams
from packer.store.failures import as_pack_error
from packer.store.journal import CommitLog
from packer.store.lock import checked
from packer.store.out_folder import check_destination, check_takes_splits, resolved_out
from packer.store.reports import store_report, summed_report
from reader.format.check import check_store
from reader.format.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class _CopyOptions(OutputOptions):
    """A copy is made at once: an OUT that is there, finished or not, is another command's."""

    continues: ClassVar[bool] = False


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
    options, to = _CopyOptions(overwrite=overwrite), Folder(out)
    check_destination([], out)
    to.check(options, [*plans])
    for split, plan in plans.items():
        for selection in plan.selections:
            _check_apart(selection.path, out / split, to.stage)
    reports: dict[str, PackReport] = {}
    try:
        with to.begin(options, [*plans]):
            try:
                for split, plan in plans.items():
                    reports[split] = _copied(plan, to.store(split))
            except BaseException:
                to.withdraw()
                raise
            to.publish()
    except OSError as e:
        raise as_pack_error(e, to.stage, {}, AGAIN) from None
    first = next(iter(reports))
    reports[first] = dataclasses.replace(reports[first], notes=[*reports[first].notes, *to.notes])
    return reports[""] if "" in reports else summed_report(out, reports)


def copy_target(out: str | os.PathLike[str]) -> Path:
    """Return OUT without dots, before any store is opened; what a crash has left of its publication is finished."""
    target = resolved_out(out)
    Folder(target).recover()
    return target


def _copied(plan: CopyPlan, making: Making) -> PackReport:
    """Make one store in the stage."""
    started, out = time.monotonic(), making.folder
    sizes: dict[str, int] = {}
    try:
        out.mkdir(exist_ok=True)
        with checked(making.to.check_same):
            manifest = _made(plan, making, sizes)
    except OSError as e:
        _check_all_same(plan)
        raise as_pack_error(e, out, sizes, AGAIN) from None
    except Exception:
        _check_all_same(plan)
        raise
    report = store_report(manifest, Inputs(out, notes=[*plan.notes]), out, time.monotonic() - started, 0)
    return dataclasses.replace(report, out=str(making.name))


def joint_labels(manifests: Sequence[Manifest], *, is_list_given: bool) -> Mapping[str, object]:
    """Return how the labels of rows of these stores were read, as far as that is known and the same of all.

    Args:
        is_list_given: whether the class list is one that the user gave.
    """
    # digests are of what was packed, which these are not
    digests = ("boxes", "inputs", "sources") if len(manifests) > 1 else ("inputs", "sources")
    labels = [{name: value for name, value in one.labels.items() if name not in digests} for one in manifests]
    known = labels[0] if all(other == labels[0] for other in labels) else {}
    return known | ({"classes": True} if is_list_given else {})


def _check_all_same(plan: CopyPlan) -> None:
    """Raise PackError where a store was replaced meanwhile: whatever failed, that is the reason."""
    with contextlib.suppress(OSError):
        for selection in plan.selections:
            check_same(selection.path, selection.manifest)


def _made(plan: CopyPlan, making: Making, sizes: dict[str, int]) -> Manifest:
    """Make the store in its folder; fills in what its files need as soon as that is known."""
    manifest = _copied_into(plan, making.log(), sizes)
    check_store(making.folder)  # what cannot be opened must replace no store
    return manifest


def _copied_into(plan: CopyPlan, log: CommitLog, sizes: dict[str, int]) -> Manifest:
    with contextlib.ExitStack() as held:
        sources = [held.enter_context(contextlib.closing(CopySource(selection))) for selection in plan.selections]
        copy = StoreCopy(plan, sources, log)
        sizes |= copy.sizes
        return copy.run()


def _check_apart(store: Path, out: Path, stage: Path) -> None:
    """Refuse a store that OUT is in, that would be deleted with OUT, or that is where OUT is made."""
    real = Path(os.path.realpath(store))
    if real in Path(os.path.realpath(out)).parents:
        raise OptionsError(f"OUT {out} is inside the store {store}. Choose a folder outside it.")
    for folder in (out, stage):
        if Path(os.path.realpath(folder)) in real.parents:
            raise OptionsError(f"the store {store} is inside {folder}, which would be replaced. Choose another OUT.")
    if real == Path(os.path.realpath(stage)):
        raise OptionsError(f"the store {store} is where OUT {out} is made. Move it away, or choose another OUT.")
