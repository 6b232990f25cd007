"""Whether a folder on disk agrees with its manifest: files, sizes, digests. Reads no pixel."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.filesystem import error_path, retry_missing
from reader.format.manifest import MANIFEST, PAGE_BYTES, Manifest, read_manifest
from reader.format.tensordict_meta import metadata_files
from reader.format.unfinished import half_replaced_message


def check_store(out: str | os.PathLike[str]) -> Manifest:
    """Read the manifest and compare every file's kind and size, and every meta.json, with it. Nothing is mapped or changed.

    Raises:
        StoreError: naming the file, what was found and what was expected.
    """
    root = Path(out)
    manifest = read_manifest(root)
    _check_splits(root)
    for folder in {str(Path(name).parent) for name in manifest.files} - {"."}:
        if (root / folder).is_symlink():
            raise StoreError(f"{root / folder} is a symbolic link; a store holds its own files. Copy it with cp -rL.")
    for name, expected in manifest.files.items():
        check_file(root / name, expected.size_bytes)
    for name, content in metadata_files(manifest).items():
        with error_path(root / name):
            is_right = (root / name).read_bytes() == content
        if not is_right:
            raise StoreError(
                f"{root / name} is not what the manifest implies. The store is damaged or mixed: copy it again."
            )
    for name, path in manifest.tensor_paths().items():
        need = manifest.count(name) * manifest.tensors[name].row_bytes
        found = manifest.files[path].size_bytes
        if found != need:
            raise StoreError(f"{root / MANIFEST} lists {path} with {found} bytes, {manifest.rows} rows need {need}.")
        if name == "pixels" and manifest.has_own_sizes and (found < PAGE_BYTES or found % PAGE_BYTES):
            raise StoreError(
                f"{root / MANIFEST} lists {path} with {found} bytes, expected whole pages of {PAGE_BYTES}."
            )
    return manifest


def _check_splits(root: Path) -> None:
    """Raise IncompleteStoreError where OUT is one of several splits of which a crash has left some new and some old."""
    message = half_replaced_message(root)
    for _ in range(_SWAP_TRIES):
        if not message:
            return
        time.sleep(_SWAP_SECONDS)
        message = half_replaced_message(root)
    if message:
        raise IncompleteStoreError(message)


def check_file(path: Path, size_bytes: int) -> None:
    """Raise StoreError unless path is a regular file of exactly size_bytes."""
    try:
        found = retry_missing(path, path.lstat)
        if stat.S_ISREG(found.st_mode) and found.st_size != size_bytes:
            with open(path, "rb") as file:  # NFS answers with what it was a minute ago, until it is opened
                found = os.fstat(file.fileno())
    except OSError as e:
        raise StoreError(f"{path} is missing ({e.strerror}). The copy is incomplete: copy the store again.") from None
    if stat.S_ISLNK(found.st_mode):
        raise StoreError(f"{path} is a symbolic link; a store holds its own files. Copy it with cp -rL.")
    if not stat.S_ISREG(found.st_mode):
        raise StoreError(f"{path} is not a regular file. Copy the store again.")
    if found.st_size != size_bytes:
        raise StoreError(
            f"{path} is {found.st_size} bytes, the manifest says {size_bytes}. The copy is incomplete: copy it again."
        )


# Between the two names that a replacement of train and val changes lie some 20 microseconds; what lasts is left of a crash.
_SWAP_TRIES = 50
_SWAP_SECONDS = 0.01
