"""What a pack tells while it runs and when it is done: plain values, without click and without printing."""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packer.clock import Profile, added
from packer.inputs.samples import Inputs
from packer.options import CHANNELS
from reader.format.manifest import REJECTED, Manifest, read_json_lines

if TYPE_CHECKING:
    from packer.workers.block_worker import Job

_LINES_NAMED = CHANGES_NAMED = 5


class PackError(RuntimeError):
    """The pack cannot be done or was given up; what is committed can be resumed."""


@dataclass(frozen=True)
class Progress:
    """Where a pack is: a stage ("list", "sizes", "allocate", "pack", "seal", "copy") and its counts.

    waits_for: what of the source cannot be read now and is tried again; "" where all that is asked for is read.
    """

    stage: str
    done: int
    total: int
    rejected: int = 0
    source_bytes: int = 0
    split: str = ""
    waits_for: str = ""


@dataclass(frozen=True)
class PackReport:
    """What a pack did. size is (height, width); reasons counts the rejects by reason; splits is filled for train / val.

    has_own_sizes: rows have sizes of their own, and size is the largest there are.
    reject_lines has, where inputs were listed line by line, the first lines of each reason; notes are sentences about the
    inputs as they were listed: duplicates, columns that were left out.
    is_in_place: whether OUT holds this store; where more was rejected than allowed, the store that was there before stays.
    icc: how many rows are of images with an ICC profile other than sRGB, by its name.
    part is "2/4" where only that part was packed: rows, rejects and bytes are the part's, and there is no store yet.
    profile: seconds by stage of each process and thread: "main", "commit", "worker 1" and on.
    changed: the first source that is not what the interrupted pack had read; all from its block on was packed anew.
    changed_count says how many such sources there are, changed_paths has the first few.
    layout: what folders were taken for: "2 splits (train, val), 1,000 classes"; "" where they say nothing.
    kept: rows that an update took over from the store that it replaced; gone: rows of that store whose input is no more.
    """

    out: str
    inputs: int
    rows: int
    rejected: int
    ignored: int
    classes: int
    size: tuple[int, int]
    channels: int
    store_bytes: int
    source_bytes: int
    seconds: float
    images_per_second: float
    too_many_rejects: bool
    reasons: dict[str, int] = field(default_factory=dict)
    resumed_from: int = 0
    target_kind: str = "class"
    reject_lines: dict[str, list[int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    layout: str = ""
    icc: dict[str, int] = field(default_factory=dict)
    changed: str = ""
    changed_count: int = 0
    changed_paths: list[str] = field(default_factory=list)
    kept: int = 0
    gone: int = 0
    has_own_sizes: bool = False
    profile: Profile = field(default_factory=dict, repr=False)
    splits: dict[str, PackReport] = field(default_factory=dict)
    part: str = ""
    is_in_place: bool = True


def store_report(manifest: Manifest, inputs: Inputs, out: Path, seconds: float, resumed_from: int) -> PackReport:
    """Report one sealed store; seconds is what this run took."""
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
        source_bytes=0,
        seconds=seconds,
        images_per_second=(manifest.inputs - resumed_from) / seconds if seconds else 0.0,
        too_many_rejects=False,
        reasons=count_reasons(out),
        resumed_from=resumed_from,
        target_kind=manifest.target_kind,
        reject_lines=_reject_lines(out),
        has_own_sizes=manifest.has_own_sizes,
        icc=dict(manifest.icc),
        notes=inputs.notes,
        layout=inputs.layout,
    )


def part_report(
    folder: Path, part: str, job: Job, inputs: Inputs, span: range, rejects: list[dict[str, Any]]
) -> PackReport:
    """Report one part of a store, packed but not sealed; what it took is for the caller to fill in."""
    rows = len(span) - len(rejects)
    return PackReport(
        out=str(folder),
        inputs=len(span),
        rows=rows,
        rejected=len(rejects),
        ignored=inputs.ignored,
        classes=len(inputs.classes),
        size=(job.geometry.height, job.geometry.width),
        channels=CHANNELS[job.channels],
        store_bytes=rows * job.row_bytes,
        source_bytes=0,
        seconds=0.0,
        images_per_second=0.0,
        too_many_rejects=False,
        reasons=dict(collections.Counter(reject["reason"] for reject in rejects).most_common()),
        target_kind=inputs.target_kind,
        notes=inputs.notes,
        layout=inputs.layout,
        part=part,
    )


def summed_report(out: Path, reports: dict[str, PackReport]) -> PackReport:
    """Add up the reports of the splits."""
    parts = list(reports.values())
    seconds = sum(part.seconds for part in parts)
    reasons: collections.Counter[str] = collections.Counter()
    profiles: collections.Counter[str] = collections.Counter()
    for part in parts:
        reasons.update(part.reasons)
        profiles.update(part.icc)

    def total(name: str) -> int:
        """Add up one field over all stores."""
        return sum(getattr(part, name) for part in parts)

    return PackReport(
        out=str(out),
        inputs=total("inputs"),
        rows=total("rows"),
        rejected=total("rejected"),
        ignored=total("ignored"),
        classes=parts[0].classes,
        size=parts[0].size,
        channels=parts[0].channels,
        store_bytes=total("store_bytes"),
        source_bytes=total("source_bytes"),
        seconds=seconds,
        images_per_second=(total("inputs") - total("resumed_from")) / seconds if seconds else 0.0,
        too_many_rejects=any(part.too_many_rejects for part in parts),
        reasons=dict(reasons.most_common()),
        icc=dict(profiles.most_common()),
        resumed_from=total("resumed_from"),
        notes=[note for part in parts for note in part.notes],
        layout=parts[0].layout,
        has_own_sizes=parts[0].has_own_sizes,
        changed=next((part.changed for part in parts if part.changed), ""),
        changed_count=total("changed_count"),
        kept=total("kept"),
        gone=total("gone"),
        changed_paths=[path for part in parts for path in part.changed_paths][:CHANGES_NAMED],
        profile=added(part.profile for part in parts),
        splits=reports,
        part=parts[0].part,
        is_in_place=all(part.is_in_place for part in parts),
    )


def count_reasons(out: Path) -> dict[str, int]:
    """Count the rejects of a store by reason, most frequent first."""
    return dict(collections.Counter(line["reason"] for line in read_json_lines(out / REJECTED)).most_common())


def _reject_lines(out: Path) -> dict[str, list[int]]:
    """Return the first lines of a list that were rejected for each reason; empty where inputs have no lines."""
    lines: dict[str, list[int]] = {}
    for reject in read_json_lines(out / REJECTED):
        if "line" in reject and len(known := lines.setdefault(reject["reason"], [])) < _LINES_NAMED:
            known.append(reject["line"])
    return lines
