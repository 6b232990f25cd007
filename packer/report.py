"""Reports of a pack, while it runs and when it is done: plain values, without click and without printing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Progress:
    """The progress of a pack.

    Attributes:
        stage: "list" (inputs are listed); "sizes" (headers are read); "digest", "check", "read"
            (the records of a store's rows are read); "allocate", "pack", "seal" or "copy"; `packed` also has "wait".
        done: inputs that are done; bytes in "allocate" and "digest", rows in "copy".
        total: the number of all; 0 if unknown, as while inputs are listed.
        rejected: inputs that were rejected so far.
        source_bytes: bytes read from the sources.
        split: name of the split, or "".
        waits_for: in "wait", who packs; else "".
        found: once all inputs are listed, their summary: "1,000 images, 10 classes".
    """

    stage: str
    done: int
    total: int
    rejected: int = 0
    source_bytes: int = 0
    split: str = ""
    waits_for: str = ""
    found: str = ""


@dataclass(frozen=True)
class PackReport:
    """The report of a pack.

    Attributes:
        out: the store, or the folder that holds one store a split.
        inputs: number of inputs.
        rows: inputs that became rows.
        rejected: inputs that did not.
        ignored: files that are no inputs.
        classes: number of classes.
        size: (height, width) of a row; the largest height and width of rows of their own sizes.
        channels: channels of a row.
        store_bytes: size of all files of the store.
        source_bytes: size of all inputs that became rows.
        seconds: from the call to its return.
        images_per_second: inputs that this run read, divided by its seconds.
        too_many_rejects: more than `max_rejects` were rejected.
        reasons: reason of a reject -> count.
        resumed_from: inputs that were done before this run.
        target_kind: "class", "regression" or "multi-hot".
        notes: sentences about the inputs: folders and columns that were left out, changed boxes.
        changed_count: sources that changed since the interruption; all blocks from the first such one on were packed again.
        changed_paths: the first five of them.
        kept: rows that an update took over from the store that it replaced.
        gone: rows of that store whose input no longer exists.
        has_own_sizes: rows have sizes of their own.
        has_masks: rows have masks.
        splits: name of a split -> its report; empty without splits.
        part: "2/4" if only that part was packed: all counts are the part's, and no store exists yet; else "".
        is_in_place: OUT holds this store; False if too many rejects keep the store before.
    """

    out: str
    inputs: int
    rows: int
    rejected: int
    ignored: int
    classes: int
    size: tuple[int, int] = (0, 0)
    channels: int = 0
    store_bytes: int = 0
    source_bytes: int = 0
    seconds: float = 0.0
    images_per_second: float = 0.0
    too_many_rejects: bool = False
    reasons: dict[str, int] = field(default_factory=dict)
    resumed_from: int = 0
    target_kind: str = "class"
    notes: list[str] = field(default_factory=list)
    changed_count: int = 0
    changed_paths: list[str] = field(default_factory=list)
    kept: int = 0
    gone: int = 0
    has_own_sizes: bool = False
    has_masks: bool = False
    splits: dict[str, PackReport] = field(default_factory=dict)
    part: str = ""
    is_in_place: bool = True
