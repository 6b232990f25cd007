"""The transforms of batches, those of `reader.transforms`: `from pixpack.transforms import Compose, RandomResizedCrop`.

Names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import reader.transforms
from reader.transforms import __all__

if TYPE_CHECKING:
    # the transforms with their types are among the names of reader
    from reader import *  # noqa: F403
else:

    def __getattr__(name: str) -> object:
        if name in __all__:
            return getattr(reader.transforms, name)
        raise AttributeError(f"module 'pixpack.transforms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
