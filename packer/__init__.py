"""Decode a folder of images once, into one store that `reader` serves: `pack(images, out)`, or the command `pack`.

Names load on first use (PEP 562), so that `pack --help` stays fast and worker processes import only what they run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from packer.version import __version__

if TYPE_CHECKING:
    from packer.errors import DiskFullError, JournalError, LockedError, OptionsError, PackError, ScanError, SourceError
    from packer.operations.merge import merge
    from packer.operations.planning.plan import plan
    from packer.operations.requantize import requantize
    from packer.operations.subset import subset
    from packer.operations.transfer.splits import pull, push
    from packer.operations.verify import verify
    from packer.options import PackOptions
    from packer.packing.dataset import pack_dataset
    from packer.packing.pack import pack
    from packer.packing.parts.seal_parts import seal_parts
    from packer.packing.update import update
    from packer.report import PackReport, Progress

_HOMES = {
    "pack": "packer.packing.pack",
    "seal_parts": "packer.packing.parts.seal_parts",
    "update": "packer.packing.update",
    "subset": "packer.operations.subset",
    "merge": "packer.operations.merge",
    "plan": "packer.operations.planning.plan",
    "verify": "packer.operations.verify",
    "requantize": "packer.operations.requantize",
    "push": "packer.operations.transfer.splits",
    "pull": "packer.operations.transfer.splits",
    "pack_dataset": "packer.packing.dataset",
    "PackError": "packer.errors",
    "Progress": "packer.report",
    "LockedError": "packer.errors",
    "JournalError": "packer.errors",
    "PackReport": "packer.report",
    "DiskFullError": "packer.errors",
    "PackOptions": "packer.options",
    "OptionsError": "packer.errors",
    "ScanError": "packer.errors",
    "SourceError": "packer.errors",
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
    "plan",
    "pull",
    "push",
    "requantize",
    "seal_parts",
    "subset",
    "update",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
