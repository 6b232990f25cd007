"""Decode a folder of images once, into one store that `reader` serves: `pack(images, out)`, or the command `pack`.

Names load on first use (PEP 562), so that `pack --help` stays fast and worker processes import only what they run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from packer.inputs.samples import ScanError
    from packer.operations.merge import merge
    from packer.operations.subset import subset
    from packer.options import OptionsError, PackOptions
    from packer.packing.dataset import pack_dataset
    from packer.packing.pack import pack
    from packer.packing.seal_parts import seal_parts
    from packer.packing.update import update
    from packer.report import PackError, PackReport, Progress
    from packer.sources.roots import SourceError
    from packer.store.disk_space import DiskFullError
    from packer.store.journal import JournalError, LockedError

_HOMES = {
    "pack": "packer.packing.pack",
    "seal_parts": "packer.packing.seal_parts",
    "update": "packer.packing.update",
    "subset": "packer.operations.subset",
    "merge": "packer.operations.merge",
    "pack_dataset": "packer.packing.dataset",
    "PackError": "packer.report",
    "Progress": "packer.report",
    "LockedError": "packer.store.journal",
    "JournalError": "packer.store.journal",
    "PackReport": "packer.report",
    "DiskFullError": "packer.store.disk_space",
    "PackOptions": "packer.options",
    "OptionsError": "packer.options",
    "ScanError": "packer.inputs.samples",
    "SourceError": "packer.sources.roots",
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
