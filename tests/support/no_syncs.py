"""A process that syncs nothing to the disk, which tests would wait for: `python no_syncs.py WORDS` is the command so.

Where PIXPACK_TEST_SYNCS says 1, as in tests with the fixture `real_syncs`, it syncs as ever.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from typing import Any

import sizes

VARIABLE = "PIXPACK_TEST_SYNCS"


def sync_nothing(put: Callable[..., Any] = setattr) -> None:
    """Have syncs of this process, and of those that it forks, only check the descriptor: an error where the file is closed."""
    if os.environ.get(VARIABLE) == "1":
        return
    for name in ("fsync", "fdatasync", "sync"):
        if hasattr(os, name):
            put(os, name, lambda *descriptor: any(os.fstat(number) for number in descriptor) and None)


if __name__ == "__main__":
    sync_nothing()
    sizes.set_sizes()
    runpy.run_module("packer", run_name="__main__", alter_sys=True)
