"""tensordict's own files in a store: the meta.json files that its memmap writes, byte for byte, without it.

Imports only the standard library, and writes nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reader.format.tensors import _EXTRAS, _TENSORS, _TOP

if TYPE_CHECKING:
    from reader.format.manifest import Manifest
    from reader.format.tensors import TensorSpec

# The dotted path is part of the format: tensordict finds the class by it. It never moves.
_STORE_TYPE = "<class 'reader.store.ImageBatch'>"
_RAGGED_TYPE = "<class 'reader.store.RaggedBatch'>"
_COMPRESSED_TYPE = "<class 'reader.store.CompressedRows'>"


def metadata_files(manifest: Manifest) -> dict[str, bytes]:
    """Return the meta.json files that tensordict 0.15 writes for this store: path -> bytes.

    That is by `ImageBatch.memmap`, or `RaggedBatch.memmap` where rows have sizes of their own.
    """
    tensors = manifest.tensors
    top = {name: _tensor_meta(manifest.count(name), spec) for name, spec in tensors.items() if "/" not in name}
    files = {_TOP: json.dumps({"_type": _type_of(manifest)}).encode()}
    if manifest.extras:
        extras = {name: _tensor_meta(manifest.rows, spec) for name, spec in sorted(manifest.extras.items())}
        files[_EXTRAS] = _tensordict_meta([manifest.rows], extras)
        top["extras"] = {"type": "TensorDict"}
    # flat pixels have no dimension of rows, so neither has the whole
    files[_TENSORS] = _tensordict_meta([] if manifest.is_flat else [manifest.rows], top)
    return files


def _type_of(manifest: Manifest) -> str:
    if manifest.compression:
        return _COMPRESSED_TYPE
    return _RAGGED_TYPE if manifest.has_own_sizes else _STORE_TYPE


def _tensor_meta(count: int, spec: TensorSpec) -> dict[str, Any]:
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
