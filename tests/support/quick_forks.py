"""Make forks of this process cheap: most of what a pack of a few images costs a test is to copy page tables and to drop them.

With torch imported, a fork and its end take 24 ms of the processor; with the heap in huge pages, 8 ms.
Writes after a fork break huge pages up: after 600 tests it took 41 ms, and 25 ms where they were joined again behind each module.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc

# <linux/mman.h>; the second is of Linux 6.1, before which the kernel does it by itself, later
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_PAGE_BYTES = 2 << 20


def make_forks_quick() -> None:
    """Put the heap into huge pages, and leave what is there by now out of garbage collections, which copy what they touch."""
    gc.collect()
    gc.freeze()
    _use_huge_pages()


def _use_huge_pages() -> None:
    """Put the heap into huge pages, those too that were broken up, where the system has any."""
    lines: list[str] = []
    with contextlib.suppress(OSError), open("/proc/self/maps") as file:
        lines = file.read().splitlines()
    if not lines:
        return
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    guarded = 0
    for line in lines:
        # proc(5): address, permissions, offset, device, inode, and of what is no anonymous memory a name
        span, permissions, _, _, _, *name = line.split()
        start, stop = (int(address, 16) for address in span.split("-"))
        # behind a page that nobody may touch is the stack of a thread, which is nearly empty
        guarded, is_stack = stop if permissions == "---p" else 0, guarded == start
        if permissions != "rw-p" or is_stack or name not in ([], ["[heap]"]):
            continue
        # each page by itself: one that cannot be had ends a call
        for page in range(-(-start // _PAGE_BYTES) * _PAGE_BYTES, stop - _PAGE_BYTES + 1, _PAGE_BYTES):
            advise(page, _PAGE_BYTES, _MADV_HUGEPAGE)
            advise(page, _PAGE_BYTES, _MADV_COLLAPSE)
