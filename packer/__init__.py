"""Decode a folder of images once, into one store that `reader` serves: `pack(images, out)`, or the command `pack`.

Names load on first use (PEP 562), so that `pack --help` stays fast and worker processes import only what they run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packer.errors import DiskFullError, JournalError, LockedError, OptionsError, PackError, ScanError, SourceError
    from packer.operations.merge import merge
    from packer.operations.plan import SizePlan, plan
    from packer.operations.requantize import RequantizeReport, requantize
    from packer.operations.subset import subset
    from packer.operations.transfer import CopyReport, pull, push
    from packer.operations.verify import VerifyReport, verify
    from packer.options import PackOptions
    from packer.packing.dataset import pack_dataset
    from packer.packing.pack import pack
    from packer.packing.parts import seal_parts
    from packer.packing.update import update
    from packer.report import PackReport, Progress

    __version__: str

_HOMES = {
    name: f"packer.{home}"
    for home, names in {
        "errors": "DiskFullError JournalError LockedError OptionsError PackError ScanError SourceError",
        "operations.merge": "merge",
        "operations.plan": "SizePlan plan",
        "operations.requantize": "RequantizeReport requantize",
        "operations.subset": "subset",
        "operations.transfer": "CopyReport pull push",
        "operations.verify": "VerifyReport verify",
        "options": "PackOptions",
        "packing.dataset": "pack_dataset",
        "packing.pack": "pack",
        "packing.parts": "seal_parts",
        "packing.update": "update",
        "report": "PackReport Progress",
    }.items()
    for name in names.split()
}

__all__ = [
    "CopyReport",
    "DiskFullError",
    "JournalError",
    "LockedError",
    "OptionsError",
    "PackError",
    "PackOptions",
    "PackReport",
    "Progress",
    "RequantizeReport",
    "ScanError",
    "SizePlan",
    "SourceError",
    "VerifyReport",
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
    if name == "__version__":
        from packer.system import installed_version

        value: object = installed_version("pixpack") or "unknown"
    elif name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    else:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
