"""The one package that a program imports: `from pixpack import MemmapDataset, MemmapLoader, pack, packed, compare`.

Names load on first use (PEP 562): `import pixpack` imports neither torch nor numpy.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import TYPE_CHECKING


def _check_ours(name: str, public: str) -> None:
    """Check that the package of this name is ours, before another one is imported, which may be a program.

    Raises:
        ImportError: another module has that name; says which file it is.
    """
    home = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), name, "__init__.py")
    module = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if module is None else module.__spec__
    found = (spec and spec.origin) or getattr(module, "__file__", None)
    if found is None or os.path.realpath(found) != home:
        raise ImportError(
            f"{found or 'nothing'} is imported as `{name}`, where pixpack expects its own package {os.path.dirname(home)}."
            " Rename that file, or take its folder off PYTHONPATH."
        )
    if public not in getattr(importlib.import_module(name), "__all__", ()):
        raise ImportError(
            f"{home} is not of pixpack: another distribution has a package of the name `{name}` too, and has overwritten it."
            " `pack doctor` names that distribution. Uninstall it, then: pip install --force-reinstall --no-deps pixpack"
        )


_check_ours("reader", "MemmapDataset")
_check_ours("packer", "pack")

import packer  # noqa: E402 (only once it is known to be ours)
import reader  # noqa: E402

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

# What most programs need. Every other public name of packer and reader is found here too, and transforms in `transforms`.
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
