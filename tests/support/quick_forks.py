"""Makes forks of this process cheap: in a test, most of a small pack's time goes to copies of page tables.

With torch imported, a fork and its end take 24 ms of the processor; with the heap in huge pages, 8 ms.
Writes after a fork break up huge pages: after 600 tests it took 41 ms, or 25 ms if they were joined again after each module.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

# <linux/mman.h>; the second needs Linux 6.1; earlier kernels do it themselves, later
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_PAGE_BYTES = 2 << 20


def make_forks_quick() -> None:
    """Put the heap into huge pages, and freeze existing objects: a garbage collection would copy their pages."""
    gc.collect()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Put the heap into huge pages, even broken-up ones, if the system has them."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    if not lines:
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    guarded = 0
    for line in lines:
        # proc(5): address, permissions, offset, device, inode, and a name except for anonymous memory
        span, permissions, _, _, _, *name = line.split()
        start, stop = (int(address, 16) for address in span.split("-"))
        # after a guard page comes a thread's stack, which is nearly empty
        guarded, is_stack = stop if permissions == "---p" else 0, guarded == start
        if permissions != "rw-p" or is_stack or name not in ([], ["[heap]"]):
            continue
        # each page separately: an impossible one ends a call
        for page in range(-(-start // _PAGE_BYTES) * _PAGE_BYTES, stop - _PAGE_BYTES + 1, _PAGE_BYTES):
            advise(page, _PAGE_BYTES, _MADV_HUGEPAGE)
            advise(page, _PAGE_BYTES, _MADV_COLLAPSE)
