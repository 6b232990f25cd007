"""Turns off syncs to the disk, so that tests need not wait: `python no_syncs.py WORDS` is the command without syncs.

With PIXPACK_TEST_SYNCS=1, as in tests with the fixture `real_syncs`, it syncs as usual.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable
from typing import Any

import sizes

VARIABLE = "PIXPACK_TEST_SYNCS"


def sync_nothing(put: Callable[..., Any] = setattr) -> None:
    """Make syncs of this process, and of its forks, only check the descriptor: an error if the file is closed."""
    if os.environ.get(VARIABLE) == "1":
        return
    for name in ("fsync", "fdatasync", "sync"):
        if hasattr(os, name):
            put(os, name, lambda *descriptor: any(os.fstat(number) for number in descriptor) and None)


if __name__ == "__main__":
    sync_nothing()
    sizes.set_sizes()
    runpy.run_module("packer", run_name="__main__", alter_sys=True)
