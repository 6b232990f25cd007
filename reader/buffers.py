"""Host memory for batches: reused buffers, each returned exactly when its last user is gone.

A new 38 MB tensor costs 9,409 page faults, more than the copy into it; a reused one none. So buffers are leased. Each lease
is a new numpy array over the same memory, which returns to the pool when the array is collected. Any tensor, view or numpy
view of the lease keeps it alive, so a batch that a caller keeps is never overwritten.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import get_worker_info

# A row is copied by one memcpy, which is a third faster into memory that begins at a cache line; numpy's begins 16 bytes off.
# Reads past the page cache need memory that is aligned to a block of the disk.
_ALIGNMENT_BYTES = 4096
# A disk gets the pages of memory to read into one by one: reads into pages of 4 KiB are far slower.
_HUGE_PAGE_BYTES = 2 << 20


class _Loan(weakref.ref[npt.NDArray[np.uint8]]):
    """Refers to a lease; of two loans only the same ones are equal."""

    memory: npt.NDArray[np.uint8]
    __eq__, __hash__ = object.__eq__, object.__hash__


class BufferPool:
    """Leases and recycles buffers; with a CUDA device, pinned ones for copies to or from it.

    A buffer has the requested size, or up to a fourth more, so that most leases of similar size find an idle buffer; else a
    larger idle one serves. The unused rest is never written to, and takes no memory. `lease` never waits: if all are in use,
    it allocates another. Thread-safe.

    Args:
        keep, keep_bytes: idle buffers to keep of each size: this number, and further ones up to these bytes.
    """

    def __init__(self, *, keep: int, keep_bytes: int = 0, pinned: torch.device | None = None) -> None:
        self.allocated = 0
        self._keep, self._keep_bytes, self._pinned = keep, keep_bytes, pinned
        # by size, one loan per ended lease; for current leases the finalizer and its loan
        self._idle: dict[int, deque[_Loan]] = {}
        self._leases: dict[_Loan, _Loan] = {}

    def lease(self, size_bytes: int) -> torch.Tensor:
        """Return uint8[size_bytes] of undefined content; it is the caller's until no view of it is left.

        Raises:
            RuntimeError: it cannot be pinned.
        """
        # 4 to 8 times a power of two
        step = 1 << max(0, max(1, size_bytes - 1).bit_length() - 3)
        room = -(-size_bytes // step) * step
        all_idle = self._idle
        own = all_idle.get(room)
        if own is None:
            own = all_idle[room] = deque(maxlen=self._keep + self._keep_bytes // max(1, room))
        # the short last batch of an epoch takes the buffer of a full one
        for idle in (own, *(all_idle[size] for size in sorted(all_idle) if size > room)):
            # no check before: other threads may take the last one
            with contextlib.suppress(IndexError):
                memory = idle.pop().memory
                break
        else:
            idle, memory = own, self._allocate(room)
        lease = np.ndarray((size_bytes,), np.uint8, buffer=memory)
        # Only compiled code runs when a lease is collected: a Ctrl-C during a callback in Python, such as weakref.finalize,
        # is lost. The callback does not refer to the pool: leases that outlive their pool free their memory.
        loan = _Loan(lease, idle.append)
        loan.memory = memory
        self._leases[_Loan(lease, self._leases.pop)] = loan
        return torch.from_numpy(lease)

    def clear(self) -> None:
        """Free the idle buffers."""
        self._idle = {}

    def _allocate(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        self.allocated += 1
        return allocated(size_bytes) if self._pinned is None else pinned(size_bytes, self._pinned).numpy()


def allocated(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Allocate uint8[size_bytes] of undefined content that begins at a page; from 2 MiB on, all of it in huge pages.

    If the system has no huge pages, it is in small ones.
    """
    align, memory = _ALIGNMENT_BYTES, None
    if size_bytes >= _HUGE_PAGE_BYTES:
        align = _HUGE_PAGE_BYTES
        # not from malloc: reused memory has the small pages of its former user
        with contextlib.suppress(OSError, AttributeError):  # numpy raises the error for missing memory
            mapped = mmap.mmap(-1, -(-size_bytes // align) * align + align, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory = np.frombuffer(mapped, np.uint8)
            mapped.madvise(mmap.MADV_HUGEPAGE)  # not all systems have them
    memory = np.empty(size_bytes + align, np.uint8) if memory is None else memory
    start = -memory.ctypes.data % align
    return memory[start : start + size_bytes]


def empty_shared(size_bytes: int) -> torch.Tensor:
    """Allocate uint8[size_bytes]; in a DataLoader worker in shared memory, so that the result is not copied."""
    if get_worker_info() is not None:
        storage = torch.UntypedStorage._new_shared(size_bytes)
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage)
    return own_memory(size_bytes)


def own_memory(size_bytes: int) -> torch.Tensor:
    """Allocate uint8[size_bytes], private to this process."""
    return torch.from_numpy(np.empty(size_bytes, np.uint8))


def pinned(size_bytes: int, device: torch.device) -> torch.Tensor:
    """Allocate uint8[size_bytes] that a device copies from while the CPU continues."""
    # set the device: in a new thread device 0 is current, and would get a context
    with torch.cuda.device(device):
        return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=True)
