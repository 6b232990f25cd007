"""Describes a store without reading pixels: its manifest, rows per class, sizes of the sources."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.inputs.splits import stores_of
from packer.operations.row_checks import pieces
from packer.progress import OnProgress, reports, tracked
from packer.sample_lines import read_samples
from packer.store.manifest_file import manifest_head
from packer.store.state import check_finished
from reader.format.manifest import Manifest
from reader.format.row_values import RowValues

_EXAMPLES = 5


@dataclass(frozen=True)
class SourceStatistics:
    """Statistics of the sources of a store's rows. class_counts is in the order of classes; empty without classes.

    sizes counts upright (width, height), most frequent first.
    """

    class_counts: list[int]
    unlabelled: int
    sizes: list[list[int]]
    distinct_sizes: int
    source_bytes: int


@dataclass(frozen=True)
class Description:
    """The description of a store, or of several; splits: "" -> the one store, or split name -> store."""

    manifests: dict[str, Manifest]
    sources: dict[str, SourceStatistics]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's head with `sources` added; with splits, each under its name in `splits`."""
        stores = {
            split: manifest_head(manifest) | {"digest": manifest.digest} | {"sources": vars(self.sources[split])}
            for split, manifest in self.manifests.items()
        }
        return stores.get("", {"splits": stores})


@reports
def describe(out: str | os.PathLike[str], *, progress: OnProgress | None = None) -> Description:
    """Look at a store, or at a folder of the stores of splits. Reads targets and samples.jsonl.

    Args:
        progress: called a few times a second from the calling thread.

    Raises:
        StoreError: there is no complete store.

    Example:
        >>> describe(store_path).sources[""].class_counts
        [30, 30, 30]
    """
    stores = {split: (store, check_finished(store)) for split, store in stores_of(out).items()}
    sources = {split: _sources(*store, split) for split, store in stores.items()}
    manifests = {split: manifest for split, (_, manifest) in stores.items()}
    return Description(manifests, sources)


def _sources(out: Path, manifest: Manifest, split: str) -> SourceStatistics:
    """Read samples.jsonl once."""
    sizes: Counter[tuple[int, int]] = Counter()
    source_bytes = 0
    for sample in tracked("read", read_samples(out, manifest), manifest.rows, split=split):
        sizes[sample.width, sample.height] += 1
        source_bytes += sample.size_bytes or 0
    counts, unlabelled = _class_counts(out, manifest)
    return SourceStatistics(
        counts,
        unlabelled,
        [[*size, count] for size, count in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_EXAMPLES]],
        len(sizes),
        source_bytes,
    )


def _class_counts(out: Path, manifest: Manifest) -> tuple[list[int], int]:
    """Return rows by class, and the rows without one."""
    if manifest.target_kind == "regression" or not manifest.classes:
        return [], manifest.rows if manifest.target_kind == "class" else 0
    counts, unlabeled = np.zeros(len(manifest.classes), np.int64), 0
    values = RowValues(manifest)
    for start, columns in pieces(out, manifest, ["targets"]):
        targets = columns["targets"]
        values.check_targets(str(out), start, targets)
        if manifest.target_kind == "multi-hot":
            counts += targets.sum(axis=0, dtype=np.int64)
            unlabeled += int((~targets.any(axis=1)).sum())
        else:
            # without a label, -1, comes first
            found = np.bincount(targets + 1, minlength=len(counts) + 1)
            counts, unlabeled = counts + found[1:], unlabeled + int(found[0])
    return counts.tolist(), unlabeled
