"""The public names of `packer` and `reader` in one place: `from pixpack import pack, MemmapDataset, MemmapLoader`.

Names load on first use (PEP 562): `import pixpack` imports neither torch nor numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import packer
import reader

if TYPE_CHECKING:
    from packer import *  # noqa: F403
    from reader import *  # noqa: F403

__version__ = packer.__version__
__all__ = sorted([*packer.__all__, *reader.__all__])


def __getattr__(name: str) -> object:
    for home in (packer, reader):
        if name in home.__all__:
            value = getattr(home, name)
            globals()[name] = value
            return value
    raise AttributeError(f"module 'pixpack' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
