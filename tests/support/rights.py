"""The rights of a user other than root, for tests run by root: file modes then apply, also in started processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

import pytest

# linux/capability.h: CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH; linux/prctl.h, linux/securebits.h
_VERSION, _OVERRIDE = 0x20080522, 1 << 1 | 1 << 2
_GET_SECUREBITS, _SET_SECUREBITS, _NO_ROOT = 27, 28, 1


@contextlib.contextmanager
def modes_hold() -> Iterator[None]:
    """Make file modes apply to this thread and its processes; skips if root may not drop its capabilities."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("this root may not give up its rights: no capabilities")
    libc = ctypes.CDLL(None, use_errno=True)
    # pid: this thread; then effective, permitted and inheritable, for the lower and the higher numbers
    thread, held = (ctypes.c_uint32 * 2)(_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(thread, held):
        pytest.skip(f"this root may not give up its rights: {os.strerror(ctypes.get_errno())}")
    fewer, bits = (ctypes.c_uint32 * 6)(*held), libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0)
    fewer[0] &= ~_OVERRIDE
    if libc.prctl(_SET_SECUREBITS, bits | _NO_ROOT, 0, 0, 0) or libc.capset(thread, fewer):
        pytest.skip(f"this root may not give up its rights: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.capset(thread, held)
        libc.prctl(_SET_SECUREBITS, bits, 0, 0, 0)
