"""Decode a folder of images once, into one store that `reader` serves: `pack(images, out)`, or the command `pack`.

Names load on first use (PEP 562), so that `pack --help` stays fast and worker processes import only what they run.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from packer.disk import DiskFullError
    from packer.options import OptionsError, PackOptions
    from packer.pipeline import PackError, pack
    from packer.report import PackReport
    from packer.scan import ScanError

_HOMES = {
    "pack": "packer.pipeline",
    "PackError": "packer.pipeline",
    "PackReport": "packer.report",
    "DiskFullError": "packer.disk",
    "PackOptions": "packer.options",
    "OptionsError": "packer.options",
    "ScanError": "packer.scan",
}

__all__ = [
    "DiskFullError",
    "OptionsError",
    "PackError",
    "PackOptions",
    "PackReport",
    "ScanError",
    "__version__",
    "pack",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'packer' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
