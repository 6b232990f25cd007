"""Decode a folder of images once, into one store that `reader` serves: `pack(images, out)`, or the command `pack`.

Names load on first use (PEP 562), so that `pack --help` stays fast and worker processes import only what they run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from packer.datasets import pack_dataset
    from packer.disk import DiskFullError
    from packer.inputs import ScanError
    from packer.join import seal_parts
    from packer.journal import JournalError, LockedError
    from packer.merging import merge
    from packer.options import OptionsError, PackOptions
    from packer.pipeline import pack
    from packer.report import PackError, PackReport, Progress
    from packer.roots import SourceError
    from packer.subsetting import subset
    from packer.updating import update

_HOMES = {
    "pack": "packer.pipeline",
    "seal_parts": "packer.join",
    "update": "packer.updating",
    "subset": "packer.subsetting",
    "merge": "packer.merging",
    "pack_dataset": "packer.datasets",
    "PackError": "packer.report",
    "Progress": "packer.report",
    "LockedError": "packer.journal",
    "JournalError": "packer.journal",
    "PackReport": "packer.report",
    "DiskFullError": "packer.disk",
    "PackOptions": "packer.options",
    "OptionsError": "packer.options",
    "ScanError": "packer.inputs",
    "SourceError": "packer.roots",
}

__all__ = [
    "DiskFullError",
    "JournalError",
    "LockedError",
    "OptionsError",
    "PackError",
    "PackOptions",
    "PackReport",
    "Progress",
    "ScanError",
    "SourceError",
    "__version__",
    "merge",
    "pack",
    "pack_dataset",
    "seal_parts",
    "subset",
    "update",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
