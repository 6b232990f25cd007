"""The one package that a program imports: `from pixpack import MemmapDataset, MemmapLoader, pack, packed, compare`.

Names load on first use (PEP 562): `import pixpack` imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import packer
import reader

if TYPE_CHECKING:
    from packer import *  # noqa: F403
    from packer import PackError, __version__, pack, pack_dataset, plan, verify
    from pixpack import transforms as transforms
    from pixpack.on_demand import packed
    from reader import *  # noqa: F403
    from reader import (
        ImageBatch,
        MemmapDataset,
        MemmapLoader,
        StoreError,
        compare,
        from_torchvision,
        to_device,
    )

# The names that most programs need. Every other public name of packer and reader is here too, and transforms are in `transforms`.
__all__ = [
    "ImageBatch",
    "MemmapDataset",
    "MemmapLoader",
    "PackError",
    "StoreError",
    "__version__",
    "compare",
    "from_torchvision",
    "pack",
    "pack_dataset",
    "packed",
    "plan",
    "to_device",
    "transforms",
    "verify",
]


def __getattr__(name: str) -> object:
    if name == "transforms":
        return importlib.import_module("pixpack.transforms")
    if name == "packed":
        home = importlib.import_module("pixpack.on_demand")
    elif name in packer.__all__:
        home = packer
    elif name in reader.__all__:
        home = reader
    else:
        raise AttributeError(f"module 'pixpack' has no attribute {name!r}")
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
