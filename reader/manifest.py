"""The format of a store, for programs that read manifest.json themselves: what `reader.format` defines, without torch."""

from __future__ import annotations

from reader.format.blocks import Block, read_blocks
from reader.format.check import check_store
from reader.format.errors import IncompleteStoreError, StoreError
from reader.format.head import FORMAT_VERSION, READER_FEATURES
from reader.format.manifest import (
    MANIFEST,
    PIXELS,
    REJECTED,
    SAMPLES,
    FileEntry,
    FurtherTarget,
    Manifest,
    read_manifest,
)
from reader.format.samples import read_json_lines
from reader.format.tensors import TensorSpec

__all__ = [
    "FORMAT_VERSION",
    "MANIFEST",
    "PIXELS",
    "READER_FEATURES",
    "REJECTED",
    "SAMPLES",
    "Block",
    "FileEntry",
    "FurtherTarget",
    "IncompleteStoreError",
    "Manifest",
    "StoreError",
    "TensorSpec",
    "check_store",
    "read_blocks",
    "read_json_lines",
    "read_manifest",
]
