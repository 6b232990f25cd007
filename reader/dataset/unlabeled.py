"""Rows that no label is known of, in a loop over images and targets. Reads no pixel."""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from reader.dataset.opened_store import OpenedStore
from reader.rows import Rows
from reader.store import names_targets

_log = logging.getLogger("pixpack")


def warn_of_unlabeled(store: OpenedStore, rows: Rows) -> None:
    """Warn, once, where a loop over tuples of rows gets the target -1; not where the second of a tuple has other labels."""
    if store.manifest.target_kind != "class" or names_targets(store.manifest):
        return
    if count := int((store.columns(rows, ["targets"])["targets"] == -1).sum()):
        _warn(store.path, count, len(rows))


@functools.cache
def _warn(path: Path, count: int, rows: int) -> None:
    _log.warning(
        "%s: %s of %s rows have no label, so that their target is -1. If the loop trains on targets, give these by"
        " dataset.with_targets(...), or leave such rows out by dataset.subset(...).",
        *(path, f"{count:,}", f"{rows:,}"),
    )
