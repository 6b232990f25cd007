"""`MemmapDataset`: a store as a torch Dataset: opened, indexed, collated.

Gives rows in the order in which they are asked for.
"""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    if name != "MemmapDataset":
        raise AttributeError(f"module 'reader.dataset' has no attribute {name!r}")
    return importlib.import_module("reader.dataset.dataset").MemmapDataset
