"""Reports of splits add up to one."""

from __future__ import annotations

from pathlib import Path

from packer.report import PackReport
from packer.store.reports import summed_report


def report(rows: int, seconds: float, reason: str) -> PackReport:
    return PackReport(
        out=f"out/{rows}",
        inputs=rows + 1,
        rows=rows,
        rejected=1,
        ignored=2,
        classes=0,
        store_bytes=100,
        seconds=seconds,
        reasons={reason: 1},
        target_kind="regression",
        reject_lines={reason: [7]},
    )


def test_counts_of_splits_are_summed_and_the_kind_of_their_targets_is_kept(tmp_path: Path) -> None:
    splits = {"train": report(9, 2.0, "empty"), "val": report(4, 3.0, "cut")}
    found = summed_report(tmp_path, splits)
    assert (found.inputs, found.rows, found.rejected, found.ignored, found.store_bytes) == (15, 13, 2, 4, 200)
    assert (found.seconds, found.images_per_second, found.target_kind) == (5.0, 3.0, "regression")
    assert (found.out, found.splits, found.reasons) == (str(tmp_path), splits, {"empty": 1, "cut": 1})
    # lines are those of one list: each split says its own
    assert found.reject_lines == {}
