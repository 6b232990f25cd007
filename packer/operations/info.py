"""What is known of a store without reading a pixel: its manifest, rows a class, sizes of the sources, exact duplicates.

OUT may also hold the stores of train, val, valid and test; duplicates are then looked for across them too.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packer.inputs.splits import stores_of
from packer.operations.class_order import ClassOrder
from packer.operations.row_checks import pieces
from packer.progress import OnProgress, followed, reports
from packer.store.sealed.duplicates import Duplicates, duplicates_among
from packer.store.state import check_finished
from reader.format.manifest import Manifest
from reader.format.row_values import RowValues
from reader.format.samples import read_samples

_EXAMPLES = 5


@dataclass(frozen=True)
class SourceStatistics:
    """What the rows of a store were made of. class_counts is in the order of classes, and empty where there are none.

    sizes counts upright (width, height), most frequent first; short_sides has [start, stop, rows] in pixels, in powers of two.
    is_grouped_by_class: whether neighboring rows have one class far more often than by chance.
    """

    class_counts: list[int]
    unlabelled: int
    sizes: list[list[int]]
    distinct_sizes: int
    short_sides: list[list[int]]
    source_bytes: int
    is_grouped_by_class: bool = False


@dataclass(frozen=True)
class Description:
    """All of it; splits is "" -> the one store, or split name -> store."""

    manifests: dict[str, Manifest]
    sources: dict[str, SourceStatistics]
    duplicates: Duplicates

    def to_json(self) -> dict[str, Any]:
        """Return the manifest's head with `sources` and `duplicates` added; with splits, each under its name in `splits`."""
        stores = {
            split: manifest.to_json() | {"digest": manifest.digest} | {"sources": vars(self.sources[split])}
            for split, manifest in self.manifests.items()
        }
        duplicates = {"duplicates": vars(self.duplicates)}
        return stores[""] | duplicates if "" in stores else {"splits": stores} | duplicates


@reports
def describe(out: str | os.PathLike[str], *, progress: OnProgress | None = None) -> Description:
    """Look at a store, or at a folder of the stores of splits. Reads targets and samples.jsonl, twice where there are duplicates.

    Args:
        progress: called a few times a second from the calling thread.

    Raises:
        StoreError: there is no complete store.

    Example:
        >>> describe(store_path).sources[""].class_counts
        [30, 30, 30]
    """
    stores = {split: (store, check_finished(store)) for split, store in stores_of(out).items()}
    prefixes = array("Q")
    sources = {split: _sources(*store, prefixes, split) for split, store in stores.items()}
    manifests = {split: manifest for split, (_, manifest) in stores.items()}
    return Description(manifests, sources, duplicates_among(stores, prefixes))


def _sources(out: Path, manifest: Manifest, prefixes: array[int], split: str) -> SourceStatistics:
    """Read samples.jsonl once; the first 8 bytes of each sha256 go to prefixes: 8 MB for a million rows."""
    sizes: Counter[tuple[int, int]] = Counter()
    source_bytes = 0
    for sample in followed("read", read_samples(out, manifest), manifest.rows, split=split):
        if sample.sha256 is not None:
            prefixes.append(int(sample.sha256[:16], 16))
        sizes[sample.width, sample.height] += 1
        source_bytes += sample.size_bytes or 0
    sides: Counter[int] = Counter()
    for size, count in sizes.items():
        sides[min(size).bit_length()] += count
    counts, unlabelled, is_grouped_by_class = _class_counts(out, manifest)
    return SourceStatistics(
        counts,
        unlabelled,
        [[*size, count] for size, count in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_EXAMPLES]],
        len(sizes),
        [[1 << bits >> 1, 1 << bits, sides[bits]] for bits in sorted(sides)],
        source_bytes,
        is_grouped_by_class,
    )


def _class_counts(out: Path, manifest: Manifest) -> tuple[list[int], int, bool]:
    """Return rows by class, the rows without one, and whether rows are ordered class by class."""
    if manifest.target_kind == "regression" or not manifest.classes:
        return [], manifest.rows if manifest.target_kind == "class" else 0, False
    order = ClassOrder()
    counts, unlabeled = np.zeros(len(manifest.classes), np.int64), 0
    values = RowValues(manifest)
    for start, columns in pieces(out, manifest, ["targets"]):
        targets = columns["targets"]
        values.check_targets(str(out), start, targets)
        if manifest.target_kind == "multi-hot":
            counts += targets.sum(axis=0, dtype=np.int64)
            unlabeled += int((~targets.any(axis=1)).sum())
        else:
            order.add(targets)
            # without a label, -1, comes first
            found = np.bincount(targets + 1, minlength=len(counts) + 1)
            counts, unlabeled = counts + found[1:], unlabeled + int(found[0])
    return counts.tolist(), unlabeled, order.is_by_class(counts.tolist())
