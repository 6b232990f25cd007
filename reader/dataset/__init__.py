"""`MemmapDataset`: a store as a torch Dataset: opened, indexed, collated, shown in a notebook.

Never shuffles, and starts no thread.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "MemmapDataset": "reader.dataset.dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'reader.dataset' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
