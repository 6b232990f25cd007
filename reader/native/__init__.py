"""The compiled part of packer and reader, in C: JPEGs to rows, sums, resizing, batches augmented.

It may be missing: callers then do the same in Python. It imports neither package and decides nothing about files or stores.
"""

from __future__ import annotations

import importlib
from types import ModuleType

# the same as in native.c; both change with the functions
INTERFACE = 29


def functions() -> ModuleType:
    """Import the module of the compiled functions.

    Raises:
        ImportError: it is not built, or was built from other sources; the text says which.
    """
    try:
        built = importlib.import_module("reader._native")
    except ImportError as e:
        needs = f"not built ({e}): install a C compiler and libjpeg-turbo's headers, then pixpack again"
        raise ImportError(needs) from e
    if getattr(built, "INTERFACE", None) != INTERFACE:
        raise ImportError("built from other sources than these: build it again")
    return built
