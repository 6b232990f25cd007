"""The choice of a store by path and split: `MemmapDataset("out/", split="train")`."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

from reader.format.errors import StoreError
from reader.format.filesystem import absolute_path, is_allowed, unreadable, user_path
from reader.format.manifest import MANIFEST, read_manifest
from reader.format.shown import redacted
from reader.format.urls import is_url
from reader.memory.places import Remote


def store_path(path: str | os.PathLike[str], split: str | None) -> Path:
    """Return the absolute path of a store, or of the store of a split in a folder.

    Raises:
        StoreError: there is no such split, or the splits have different classes: a target would have two meanings.
    """
    root = Path(absolute_path(user_path(path)))
    if split is None:
        return root
    for folder in (root, root / split):
        if os.path.isdir(folder) and not is_allowed(folder, os.X_OK):
            raise unreadable(folder)
    if (root / MANIFEST).is_file():
        raise StoreError(f"{root} is one store, without splits. Leave split={split!r} out.")
    names = sorted(child.parent.name for child in root.glob(f"*/{MANIFEST}"))
    if split not in names:
        raise StoreError(f"{root} has no split {split!r}: it holds {', '.join(names) or 'no store'}.")
    classes = read_manifest(root / split).classes
    for name in names:
        if (others := read_manifest(root / name).classes) != classes:
            raise StoreError(
                f"the splits of {root} have different classes: {split} has {len(classes)}, {name} {len(others)}. The same target"
                f" would mean different classes. Pack {name} again with --classes {root / split}."
            )
    return root / split


def remote_store(
    path: str | os.PathLike[str], split: str | None, cache: str | os.PathLike[str] | None, cache_size: int | str | None
) -> Remote | None:
    """Return the store at a URL, or of one of its splits, through a cache; None if path is not a URL.

    Raises:
        ValueError: a URL without a cache, a cache without a URL, or an argument is invalid.
        StoreError: there is no store at the URL, or it cannot be read.
    """
    if not is_url(path):
        if cache is not None or cache_size is not None:
            raise ValueError(f"cache and cache_size are for a store at a URL, and {os.fspath(path)!r} is a folder.")
        return None
    if cache is None:
        raise ValueError(f"{redacted(str(path))} needs cache=FOLDER, on a local disk, where its blocks are kept.")
    # the only import of this package, so that other programs do without it
    opened: Remote = importlib.import_module("reader.remote.store").RemoteStore(
        str(path) if split is None else f"{str(path).rstrip('/')}/{split}", cache, cache_size
    )
    return opened
