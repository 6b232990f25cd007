"""Rows that no label is known of, in a loop over images and targets. Reads no pixel."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Protocol

import numpy as np

from reader.dataset.opened_store import OpenedStore
from reader.format.manifest import Manifest
from reader.rows import Rows
from reader.store import names_targets

_log = logging.getLogger("reader")


class RowsOfStore(Protocol):
    """What a dataset says of its rows."""

    path: Path
    manifest: Manifest
    opened_store: OpenedStore

    def __len__(self) -> int: ...

    def store_rows(self, positions: Rows) -> Rows:
        """Map positions in the dataset to rows of the store."""


def warn_of_unlabeled(dataset: RowsOfStore) -> None:
    """Warn, once, where a loop over tuples gets the target -1; not where the second of a tuple has other labels by name."""
    if dataset.manifest.target_kind != "class" or names_targets(dataset.manifest):
        return
    rows = dataset.store_rows(np.arange(len(dataset)))
    if count := int((dataset.opened_store.columns(rows, ["targets"])["targets"] == -1).sum()):
        _warn(dataset.path, count, len(dataset))


@functools.cache
def _warn(path: Path, count: int, rows: int) -> None:
    _log.warning(
        "%s: %s of %s rows have no label, so that their target is -1. If the loop trains on targets, give these by"
        " dataset.with_targets(...), or leave such rows out by dataset.subset(...).",
        *(path, f"{count:,}", f"{rows:,}"),
    )
