"""What a pack reports while it runs and when it is done: plain values, without click and without printing."""

from __future__ import annotations

from dataclasses import dataclass, field

from packer.clock import Profile


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
