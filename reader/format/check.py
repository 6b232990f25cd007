"""Whether a folder on disk agrees with its manifest: files, sizes, digests, and the files that tensordict's memmap writes.

Reads no pixel.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reader.format.errors import StoreError
from reader.format.filesystem import error_path, open_regular, retry_missing, unreadable
from reader.format.manifest import EXTRAS_META, TENSORS_META, TOP_META, Manifest, TensorSpec, read_manifest
from reader.format.shown import shown

TENSORS, EXTRAS = "_tensordict", "_tensordict/extras"
# tensordict unpickles a file of this name in a folder that it loads, unless allow_pickle is False
PICKLED = "other.pickle"
_LOADABLE = re.compile(r"other\..*|.*\.(?:pickle|pkl|pt|pth|memmap)", re.DOTALL)


def check_store(out: str | os.PathLike[str]) -> Manifest:
    """Read the manifest and compare every file's kind and size, and every meta.json, with it. Nothing is mapped or changed.

    Raises:
        StoreError: names the file, its value and the expected value.
    """
    root = Path(out)
    manifest = read_manifest(root)
    try:
        _check_files(root, manifest)
    except PermissionError as e:
        raise unreadable(e.filename or root) from None
    return manifest


def _check_files(root: Path, manifest: Manifest) -> None:
    for folder in {name[:end] for name in manifest.files for end, letter in enumerate(name) if letter == "/"}:
        if (root / folder).is_symlink():
            raise StoreError(f"{root / folder} is a symbolic link; a store holds its own files. Copy it with cp -rL.")
    for name, expected in manifest.files.items():
        check_file(root / name, expected.size_bytes)
    for name, content in metadata_files(manifest).items():
        with error_path(root / name):
            # compares the size first, so that a larger file is not read
            is_right = manifest.files[name].size_bytes == len(content) and (root / name).read_bytes() == content
        if not is_right:
            raise StoreError(
                f"{root / name} does not match the manifest. The store is damaged or mixed: copy it again."
            )
    if unlisted := next(unlisted_files(root, manifest), ""):
        raise StoreError(
            f"{root}/{shown(unlisted)} is not a file of this store, and other programs may load it. Remove it."
        )


def metadata_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the meta.json files that tensordict 0.15 writes for this store: path -> bytes.

    They are those of `ImageBatch.memmap`, or of `RaggedBatch.memmap` if rows have sizes of their own.
    """
    tensors = manifest.tensors
    top = {name: _tensor_meta(manifest.count(name), spec) for name, spec in tensors.items() if "/" not in name}
    files = {TOP_META: json.dumps({"_type": manifest.batch_type}).encode()}
    if manifest.extras:
        extras = {name: _tensor_meta(manifest.rows, spec) for name, spec in sorted(manifest.extras.items())}
        files[EXTRAS_META] = _tensordict_meta([manifest.rows], extras)
        top["extras"] = {"type": "TensorDict"}
    # flat pixels have no dimension of rows, and so the store has none
    files[TENSORS_META] = _tensordict_meta([] if manifest.is_flat else [manifest.rows], top)
    return files


def unlisted_files(root: Path, manifest: Manifest) -> Iterator[str]:
    """Yield paths, below root, of files that tensordict might load although the manifest does not list them.

    These are all files in _tensordict, and an other.pickle beside it. Other files in the folder, such as a contact sheet, are
    not part of the store and do no harm. Nor do names that begin with a dot, which systems and NFS make.
    """
    if os.path.lexists(root / PICKLED):
        yield PICKLED
    listed = {*manifest.files, *({EXTRAS} if manifest.extras else ())}
    for folder in (TENSORS, EXTRAS) if manifest.extras else (TENSORS,):
        with os.scandir(root / folder) as entries:
            names = (f"{folder}/{entry.name}" for entry in entries if not entry.name.startswith("."))
            yield from (name for name in names if name not in listed)


def loadable_beside(root: Path) -> list[str]:
    """Return names beside manifest.json that a program might unpickle or load, although the store has no such file."""
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if _LOADABLE.fullmatch(entry.name))


def check_file(path: Path, size_bytes: int) -> None:
    """Raise StoreError unless path is a regular file of exactly size_bytes that may be read."""
    try:
        # opened: NFS returns attributes of a closed file that are a minute old
        with retry_missing(path, lambda: open_regular(path)) as file:
            found = os.fstat(file.fileno()).st_size
    except PermissionError:
        raise unreadable(path) from None
    except OSError as e:
        raise StoreError(f"{path} is missing ({e.strerror}). The copy is incomplete: copy the store again.") from None
    if found != size_bytes:
        raise StoreError(
            f"{path} is {found} bytes, the manifest says {size_bytes}. The copy is incomplete: copy it again."
        )


def _tensor_meta(count: int, spec: TensorSpec) -> dict[str, object]:
    shape = [count, *spec.row_shape]
    return {"device": "cpu", "shape": shape, "dtype": f"torch.{spec.dtype}", "is_nested": False}


def _tensordict_meta(batch_size: list[int], entries: dict[str, Any]) -> bytes:
    tail = {
        "shape": batch_size,
        "device": "cpu",
        "_type": "<class 'tensordict._td.TensorDict'>",
        "_format_version": 1,
        "_class": "tensordict:TensorDict",
    }
    return json.dumps(entries | tail).encode()
