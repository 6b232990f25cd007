"""`pack push` and `pack pull` of a store, or of a folder of splits: each store to and from URL/<split>.

All are checked, and announced at the URL, before the first is sent: no pull takes those that are there already for all of them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from packer.errors import OptionsError, PackError
from packer.inputs.splits import split_folders, stores_of
from packer.operations.transfer.copy import CopyReport, OnBytes, Transfer
from packer.operations.transfer.fill import fill_cache
from packer.operations.transfer.pull import pull_store
from packer.operations.transfer.push import announce, check_push, push_store
from packer.option_names import Option
from packer.store.out_folder import check_takes_splits
from packer.store.remote.objects import open_objects
from packer.store.state import check_finished
from reader.format.errors import MissingObjectError, StoreError
from reader.format.filesystem import user_path
from reader.format.manifest import MANIFEST
from reader.format.shown import redacted


def push(
    out: str | os.PathLike[str], url: str, *, overwrite: bool = False, progress: OnBytes | None = None
) -> CopyReport:
    """Copy the store OUT, or the stores of the splits that it holds, to a URL; each checked on the way.

    Args:
        out: the folder of a store, or of the stores of splits.
        url: s3://bucket/out, gs://, az:// or file://, or another folder.
        overwrite: replace another store at url, which stays complete there until the new one is.
        progress: called with the bytes that are done.

    Raises:
        OptionsError: url holds something else, or is out itself.
        StoreError: out is not a store, or a file of it is damaged.
        PackError: the storage fails.
    """
    stores = stores_of(out)
    if "" in stores:
        return push_store(stores[""], url, overwrite=overwrite, progress=progress)
    if open_objects(url).size(MANIFEST) >= 0:
        raise OptionsError(
            f"{redacted(url)} holds a store; the splits of {out} cannot be pushed into it. Choose another URL."
        )
    urls = {split: f"{url.rstrip('/')}/{split}" for split in stores}
    for step in (check_push, announce):
        for split, store in stores.items():
            step(store, urls[split], overwrite)
    total = sum(entry.size_bytes for store in stores.values() for entry in check_finished(store).files.values())
    reports: list[CopyReport] = []
    for split, store in stores.items():
        report_sum = _after(reports, total, progress)
        reports.append(push_store(store, urls[split], overwrite=overwrite, progress=report_sum))
    return _summed(url, out, reports)


def pull(
    url: str,
    out: str | os.PathLike[str] | None = None,
    *,
    cache: str | os.PathLike[str] | None = None,
    progress: OnBytes | None = None,
) -> CopyReport:
    """Copy the store at a URL, or the stores of the splits that it holds, to OUT or into a cache.

    Args:
        url: where `push` sent the store.
        out: a folder that does not exist yet, is empty, or holds an unfinished pull of this store.
        cache: instead of out: the folder of `MemmapDataset(url, cache=...)`, which then holds all of the store and opens it
            without a network.
        progress: called with the bytes that are done.

    Raises:
        OptionsError: out holds something else, or not one of out and cache is given.
        PackError: url holds no store, the storage fails, bytes are not those of the manifest; or DiskFullError.
        StoreError: the same of a cache.
    """
    if (out is None) == (cache is None):
        raise OptionsError(
            f"pull copies to OUT, a folder of its own, or to the folder of {Option('cache')}. Give one of them."
        )
    if out is None:
        return _fill(url, cache or "", progress)
    out, splits = user_path(out), _splits_at(url)
    if not splits:
        return pull_store(url, out, progress=progress)
    try:
        check_takes_splits(Path(out), f"the splits of {redacted(url)} cannot be pulled into it")
    except PackError as e:
        raise OptionsError(str(e)) from None
    reports: list[CopyReport] = []
    for split in splits:
        report_sum = _after(reports, 0, progress)
        reports.append(pull_store(f"{url.rstrip('/')}/{split}", Path(out) / split, progress=report_sum))
    return _summed(url, out, reports)


def _fill(url: str, cache: str | os.PathLike[str], progress: OnBytes | None) -> CopyReport:
    """Bring a store, or the stores of splits, into a cache."""
    try:
        return fill_cache(url, cache, progress=progress)
    except MissingObjectError:
        splits: list[str] = []
        # a server that does not say what it has
        with contextlib.suppress(StoreError):
            splits = _splits_at(url)
        if not splits:
            raise
    reports: list[CopyReport] = []
    for split in splits:
        report_sum = _after(reports, 0, progress)
        reports.append(fill_cache(f"{url.rstrip('/')}/{split}", cache, progress=report_sum))
    return _summed(url, cache, reports)


def _splits_at(url: str) -> list[str]:
    """Return the splits at a URL, each of which holds a store; [] where the URL is not the folder of splits.

    Raises:
        PackError: a split is not complete there.
    """
    copy = Transfer(url, None)
    with copy.explaining("read", Path()):
        if copy.objects.size(MANIFEST) >= 0:
            return []
        splits = [split for split in split_folders(copy.objects.top()) if split]
        for split in splits:
            if copy.objects.size(f"{split}/{MANIFEST}") < 0:
                raise PackError(f"{copy.url}/{split} holds no complete store: push the splits again, then pull.")
    return splits


def _after(reports: list[CopyReport], total: int, progress: OnBytes | None) -> Callable[[int, int], None]:
    """Return a progress callback that counts from what the splits before had; total: 0 where it is not known yet."""
    before = sum(report.store_bytes for report in reports)
    return lambda done, own: progress(before + done, total or before + own) if progress else None


def _summed(url: str, out: str | os.PathLike[str], reports: list[CopyReport]) -> CopyReport:
    files, store, copied, kept = (
        sum(getattr(report, name) for report in reports)
        for name in ("files", "store_bytes", "copied_bytes", "kept_bytes")
    )
    return CopyReport(
        redacted(url), os.fspath(out), files, store, copied, kept, sum(report.seconds for report in reports)
    )
