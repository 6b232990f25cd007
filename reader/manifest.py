"""The format of a store, for programs that read manifest.json themselves: what `reader.format` defines, without torch."""

from __future__ import annotations

from reader.format.blocks import Block, read_blocks
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    PIXELS,
    REJECTED,
    SAMPLES,
    FileEntry,
    Manifest,
    TensorSpec,
    read_manifest,
)

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "PIXELS",
    "REJECTED",
    "SAMPLES",
    "Block",
    "FileEntry",
    "IncompleteStoreError",
    "Manifest",
    "StoreError",
    "TensorSpec",
    "check_store",
    "read_blocks",
    "read_manifest",
]
