"""The order of syncs in the record of a command: what must be on disk before what. Rules: docs/architecture.md."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from reader.manifest import MANIFEST, PIXELS
from tests.crash._calls import Call
from tests.crash._program import TrialError
from tests.crash._runs import MASK_BYTES, ROW_BYTES

_NAME_CALLS = ("create", "mkdir", "unlink", "rmdir", "rename", "exchange", "link")
_WRITING = ("write", "pwrite", "ftruncate", "truncate", "fallocate")
_JOURNAL = ".packing/journal"
_EXTRAS = "_tensordict/extras"
_MASKS = f"{_EXTRAS}/masks.memmap"


class SyncOrderError(TrialError):
    """Something was done before what it rests on was synced; names the call."""


class _Unsynced:
    """Files with bytes, changed names, rows: what a power loss may cost."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.names: set[str] = set()
        self.cut: set[str] = set()
        self.rows: list[tuple[str, int, int]] = []

    @property
    def folders(self) -> set[str]:
        return {os.path.dirname(name) for name in self.names}

    def follow(self, call: Call) -> None:
        if call.name in _WRITING:
            self.files.add(call.path)
        if call.name == "ftruncate":
            self.cut.add(call.path)
        if call.name == "pwrite":
            self.rows.append((call.path, call.offset, call.offset + len(call.data)))
        if call.name in _NAME_CALLS:
            # a link gives a file one more name; the former stays as it is
            changed = (call.to,) if call.name == "link" else (call.path, call.to)
            self.names |= {path for path in changed if path}
        if call.name == "rename" and call.path in self.files:
            self.files = self.files - {call.path} | {call.to}
        if call.name in ("fsync", "fdatasync"):
            self.files.discard(call.path)
            self.cut.discard(call.path)
            self.names = {name for name in self.names if os.path.dirname(name) != call.path}
            self.rows = [row for row in self.rows if row[0] != call.path]


def check_order(calls: Sequence[Call], disk: Path) -> int:
    """Check a run from its first call to its last; returns how many journal lines with rows were seen.

    Raises:
        SyncOrderError: a rule is broken, or the run wrote no manifest.
    """
    unsynced, lines, stores, renamed = _Unsynced(), 0, set[str](), ""
    for call in calls:
        # the other name of a manifest that was linked
        is_second = call.name == "unlink" and call.path == f"{renamed}/.{MANIFEST}.tmp"
        if renamed in unsynced.folders and call.name in _NAME_CALLS and not is_second:
            raise SyncOrderError(
                f"{call.name} {call.path} comes before the folder of a store that was renamed, or of its manifest, is synced"
            )
        if call.name == "mkdir" and f"{os.path.dirname(call.path)}/.packing" in unsynced.names - {call.path}:
            raise SyncOrderError(f"{call.path} is made before .packing, which says whose it is, is synced")
        if call.name == "pwrite" and call.path.replace(PIXELS, _JOURNAL) in unsynced.cut:
            raise SyncOrderError(f"{call.path} is written before the cut of its journal is synced")
        if call.name == "write" and call.path.endswith(f"/{_JOURNAL}"):
            lines += _check_journal(call, unsynced, disk)
        _check_finished(call, stores)
        if call.name in ("create", "truncate") and os.path.basename(call.path) == f".{MANIFEST}.tmp":
            _check_store(os.path.dirname(call.path), unsynced, disk)
        if call.name in ("rename", "link") and os.path.basename(call.to) == MANIFEST and "/.packing/" not in call.to:
            if call.path in unsynced.files:
                raise SyncOrderError(f"{call.path} is renamed before it is synced")
            renamed = os.path.dirname(call.to)
            stores.add(renamed)
        moved = {store for store in stores if f"{store}/".startswith(f"{call.path}/")}
        if moved and call.name in ("exchange", "rename"):
            _check_synced(call.path, unsynced)
            renamed = os.path.dirname(call.to)
            stores = stores - moved | {call.to + store.removeprefix(call.path) for store in moved}
        unsynced.follow(call)
    if not stores:
        raise SyncOrderError("no manifest was written")
    if left := sorted(folder for folder in unsynced.folders if os.path.exists(folder)):
        raise SyncOrderError(f"names in these folders are never synced: {left}")
    return lines


def _check_synced(stage: str, unsynced: _Unsynced) -> None:
    """See that all of a folder that is published is on disk, but for what it is made with."""
    inside = {path for path in unsynced.files | unsynced.names if path.startswith(f"{stage}/")}
    if late := {path for path in inside if "/.packing/" not in path.removeprefix(stage)}:
        raise SyncOrderError(f"{stage} is published before this is synced: {sorted(late)}")


def _check_finished(call: Call, stores: set[str]) -> None:
    """See that nothing is written to a store whose manifest is there, but for what is in .packing and in other hidden files."""
    written = call.to if call.name in ("rename", "link") else call.path
    if call.name not in (*_WRITING, "create", "rename", "link"):
        return
    for store in stores:
        if written.startswith(f"{store}/") and not written.removeprefix(f"{store}/").startswith("."):
            raise SyncOrderError(f"{written} is written, although {store} has its manifest already")


def _check_journal(call: Call, unsynced: _Unsynced, disk: Path) -> int:
    """See that the rows which lines of the journal name are on disk, and so is their file's name; returns how many lines."""
    if call.path in unsynced.files:
        raise SyncOrderError(f"{call.path} continues before its former lines are synced")
    store = call.path.removesuffix(f"/{_JOURNAL}")
    blocks = [line for line in (json.loads(line[9:]) for line in call.data.splitlines()) if line.get("rows")]
    for block in blocks:
        start, stop = block["rows_stop"] - block["rows"], block["rows_stop"]
        late = [
            (path, *span)
            for path, *span in unsynced.rows
            for name, row_bytes in ((PIXELS, ROW_BYTES), (_MASKS, MASK_BYTES))
            if path == f"{store}/{name}" and span[0] < stop * row_bytes and span[1] > start * row_bytes
        ]
        names = (_folders(store, disk) | {f"{store}/.packing", f"{store}/{_EXTRAS}"}) & unsynced.folders
        if late or names:
            raise SyncOrderError(
                f"the journal names rows up to {block['rows_stop']} before this is synced: {late or names}"
            )
    return len(blocks)


def _check_store(store: str, unsynced: _Unsynced, disk: Path) -> None:
    """See that all of a store is on disk, its name and those above too, before the first byte of its manifest.

    A copy of a manifest in .packing makes no store.
    """
    if "/.packing/" in f"{store}/":
        return
    changed = unsynced.files | unsynced.names
    inside = {path for path in changed if path.startswith(f"{store}/") and "/.packing/" not in path}
    if late := inside | (_folders(store, disk) & unsynced.folders):
        raise SyncOrderError(f"the manifest is written before this is synced: {sorted(late)}")


def _folders(store: str, disk: Path) -> set[str]:
    """Return the folders of a store, and those above it up to the disk."""
    above = {str(folder) for folder in Path(store).parents if folder.is_relative_to(disk)}
    return above | {store, f"{store}/_tensordict"}
