"""Reports of finished stores and parts, from their files."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packer.inputs.samples import Inputs
from packer.report import PackReport
from packer.sample_lines import read_rejects
from reader.format.manifest import Manifest

CHANGES_NAMED = 5
# Fields that are summed over the splits.
_SUMMED = "inputs rows rejected ignored store_bytes source_bytes seconds resumed_from changed_count kept gone"


def store_report(manifest: Manifest, inputs: Inputs, out: Path, seconds: float, resumed_from: int) -> PackReport:
    """Report one sealed store; seconds: the duration of this run."""
    return PackReport(
        out=str(out),
        inputs=manifest.inputs,
        rows=manifest.rows,
        rejected=manifest.rejected,
        ignored=inputs.ignored,
        classes=len(manifest.classes),
        size=(manifest.height, manifest.width),
        channels=manifest.channels,
        store_bytes=sum(entry.size_bytes for entry in manifest.files.values()),
        seconds=seconds,
        images_per_second=(manifest.inputs - resumed_from) / seconds if seconds else 0.0,
        reasons=count_reasons(out),
        resumed_from=resumed_from,
        target_kind=manifest.target_kind,
        has_own_sizes=manifest.has_own_sizes,
        has_masks=manifest.has_masks,
        notes=inputs.notes,
    )


def empty_report(inputs: Inputs, out: Path, reasons: dict[str, int]) -> PackReport:
    """Report a part without a row, which is no store.

    Args:
        reasons: reason of a reject -> how many.
    """
    return PackReport(
        out=str(out),
        inputs=len(inputs),
        rows=0,
        rejected=len(inputs),
        ignored=inputs.ignored,
        classes=len(inputs.classes),
        reasons=reasons,
        target_kind=inputs.target_kind,
        notes=inputs.notes,
    )


def summed_report(out: Path, reports: dict[str, PackReport]) -> PackReport:
    """Add up the reports of the splits."""
    each = list(reports.values())
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in each) for name in _SUMMED.split()}
    seconds = sums["seconds"]
    return dataclasses.replace(
        each[0],
        **sums,
        out=str(out),
        images_per_second=(sums["inputs"] - sums["resumed_from"]) / seconds if seconds else 0.0,
        too_many_rejects=any(report.too_many_rejects for report in each),
        reasons=_summed(report.reasons for report in each),
        notes=[note for report in each for note in report.notes],
        changed_paths=[path for report in each for path in report.changed_paths][:CHANGES_NAMED],
        splits=reports,
        is_in_place=all(report.is_in_place for report in each),
    )


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    """Add up counts of reasons, most frequent first."""
    return dict(sum(map(collections.Counter, counts), collections.Counter[str]()).most_common())


def count_reasons(out: Path) -> dict[str, int]:
    """Count the rejects of a store by reason, most frequent first."""
    return dict(collections.Counter(reject.reason for reject in read_rejects(out)).most_common())
