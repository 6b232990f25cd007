"""Images that come more than once in a store or in its splits, by the sha256 of their bytes. Reads samples.jsonl alone."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from packer.progress import followed
from packer.store.state import check_finished
from reader.format.manifest import Manifest
from reader.format.samples import read_samples
from reader.format.shown import shown

_EXAMPLES = 5


@dataclass(frozen=True)
class Duplicates:
    """Rows whose sources are the same bytes: images that come more than once, their rows, and the first of them as paths.

    across counts the images that are in more than one split, conflicting those whose rows have different labels.
    """

    images: int = 0
    rows: int = 0
    across: int = 0
    conflicting: int = 0
    examples: list[list[str]] = field(default_factory=list)
    across_examples: list[list[str]] = field(default_factory=list)
    conflicting_examples: list[list[str]] = field(default_factory=list)

    def harms(self) -> dict[str, tuple[int, list[list[str]]]]:
        """Return the duplicates that spoil a training or its test: what they are -> how many, and the first as paths."""
        found = {
            "with different labels": (self.conflicting, self.conflicting_examples),
            "in more than one split": (self.across, self.across_examples),
        }
        return {what: harm for what, harm in found.items() if harm[0]}

    def notes(self) -> list[str]:
        """Say of each kind of harm how many images there are and which come first."""
        return [
            f"{count:,} image{'s are' if count > 1 else ' is'} packed {what}, such as {' = '.join(map(shown, examples[0]))}."
            " pack info OUT names more."
            for what, (count, examples) in self.harms().items()
        ]


def duplicates_of(stores: dict[str, Path]) -> Duplicates:
    """Find images that come more than once in the stores of splits; reads samples.jsonl twice.

    Raises:
        StoreError: one of them is not a complete store.
    """
    prefixes = array("Q")
    found = {split: (out, check_finished(out)) for split, out in stores.items()}
    for out, manifest in found.values():
        samples = followed("duplicates", read_samples(out, manifest), manifest.rows)
        prefixes.extend(int(sample.sha256[:16], 16) for sample in samples if sample.sha256)
    return duplicates_among(found, prefixes)


def duplicates_among(stores: dict[str, tuple[Path, Manifest]], prefixes: array[int]) -> Duplicates:
    """Find sources of the same bytes: those with the same prefix are few, and are read again in full."""
    values, counts = np.unique(np.frombuffer(prefixes, np.uint64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return Duplicates()
    found: dict[str, list[_Occurrence]] = {}
    for row in _rows(stores):
        if int(row.sha256[:16], 16) in suspects:
            found.setdefault(row.sha256, []).append(row)
    groups = [group for group in found.values() if len(group) > 1]
    conflicting = [group for group in groups if len({row.label for row in group}) > 1]
    across = [group for group in groups if len({row.split for row in group}) > 1]
    return Duplicates(
        images=len(groups),
        rows=sum(map(len, groups)),
        across=len(across),
        conflicting=len(conflicting),
        examples=_examples(groups, lambda row: row.path),
        across_examples=_examples(across, lambda row: row.split),
        conflicting_examples=_examples(conflicting, lambda row: row.label),
    )


class _Occurrence(NamedTuple):
    """A row by which duplicates are named: its label is the name of its class where it has one."""

    split: str
    path: str
    sha256: str
    label: str


def _rows(stores: dict[str, tuple[Path, Manifest]]) -> Iterator[_Occurrence]:
    for split, (out, manifest) in stores.items():
        is_class = manifest.target_kind == "class"
        for sample in followed("duplicates", read_samples(out, manifest), manifest.rows, split=split):
            if sample.sha256 is not None:
                target = sample.target
                # classes by name: the lists of two stores need not be one
                label = manifest.classes[target] if is_class and target >= 0 else json.dumps(target)
                path = f"{split}/{sample.path}" if split else sample.path
                yield _Occurrence(split, path, sample.sha256, label)


def _examples(groups: list[list[_Occurrence]], differ: Callable[[_Occurrence], str]) -> list[list[str]]:
    """Return paths of each group: one of each that differ first, then the others."""
    examples = []
    for group in groups[:_EXAMPLES]:
        firsts: dict[str, _Occurrence] = {}
        for row in group:
            firsts.setdefault(differ(row), row)
        chosen = [*firsts.values(), *(row for row in group if row is not firsts[differ(row)])]
        examples.append([row.path for row in chosen[:_EXAMPLES]])
    return examples
