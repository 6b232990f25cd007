"""Copies of spans from pinned memory to a CUDA device by its copy engine: the host reads no byte of them.

One call of the driver copies a batch; torch has none for it. On an H200 it brings rows of 50 KB or more at 0.99 of the rate of
one large copy, with a third of a host core; gathered first they came at 0.46, with five cores (16 cores, PCIe 5, 2026-11-27).
Smaller rows take longer so: the copy engine needs a microsecond or so for each span.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import cuda

from reader.format.errors import TransferError
from reader.memory.spans import CopyPart, Spans
from reader.rows import Rows

# CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: sources are read when the copy's turn comes.
_IN_STREAM_ORDER = 1
# CUDA's message where there is no memory for a stream or an event.
_FULL = "out of memory"

_thread = threading.local()


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: how sources are read, hints where both ends are (type and number), flags."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


def may_send() -> bool:
    """Say whether there is a driver that copies batches: that of CUDA 12.8 or later, on Linux. Asks no device."""
    return _copy_batch() is not None


@functools.cache
def can_send(device: torch.device) -> bool:
    """Say whether a batch that is copied to a device arrives there; waits for that copy alone."""
    if not may_send():
        return False
    rows = np.arange(2, dtype=np.int64)
    try:
        with named_errors(device), cuda.device(device), cuda.stream(cuda.Stream(device)):
            given = torch.arange(8, dtype=torch.uint8).pin_memory()
            out = torch.zeros(8, dtype=torch.uint8, device=device)
            send([CopyPart(given.numpy(), Spans(4 * rows, rows + 2), 4 * rows)], out)
            cuda.current_stream(device).synchronize()
    except TransferError:
        return False
    return out.tolist() == [0, 1, 0, 0, 4, 5, 6, 0]


@contextlib.contextmanager
def named_errors(device: torch.device) -> Iterator[None]:
    """Raise an error of CUDA as TransferError, a full device as torch.OutOfMemoryError, as torch does for tensors."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as e:
        reason = str(e).partition("\n")[0]
        if _FULL in reason:
            raise torch.OutOfMemoryError(f"{device} has no memory left for copying batches: {reason}.") from e
        raise TransferError(
            f"copying a batch to {device} failed: {reason}. An earlier kernel may be the cause (CUDA_LAUNCH_BLOCKING=1 shows"
            " which); after a CUDA error restart the process."
        ) from e


def send(parts: Sequence[CopyPart], out: torch.Tensor) -> None:
    """Begin to copy spans to their places in out, uint8[n] on a device, on the current stream.

    Sources are pinned, and stay until the stream has done it.

    Raises:
        RuntimeError: the driver reports an error.
    """
    sources = [part.source.ctypes.data + part.spans.begins for part in parts]
    sizes, places = [part.spans.sizes for part in parts], [part.places for part in parts]
    call = _copy_batch()
    assert call is not None
    if getattr(_thread, "device", None) != out.device:
        # the driver's own functions need what a call of the runtime makes for a thread
        cuda.Event().record()
        _thread.device = out.device
    call(
        out.data_ptr() + _joined(places), _joined(sources), _joined(sizes), cuda.current_stream(out.device).cuda_stream
    )


def _joined(each: Sequence[Rows]) -> Rows:
    return np.ascontiguousarray(each[0] if len(each) == 1 else np.concatenate(each), np.int64)


@functools.cache
def _copy_batch() -> Callable[[Rows, Rows, Rows, int], None] | None:
    """Return what copies int64[B] addresses to int64[B] addresses, int64[B] bytes each, on a stream; None: there is none."""
    try:
        function = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
    except (OSError, AttributeError):
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    function.argtypes = [pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer]
    attributes, first = _Attributes(order=_IN_STREAM_ORDER), size(0)

    def call(targets: Rows, sources: Rows, sizes: Rows, stream: int) -> None:
        failed = size(0)
        of_all = ctypes.addressof(attributes), ctypes.addressof(first), 1, ctypes.addressof(failed)
        three = targets.ctypes.data, sources.ctypes.data, sizes.ctypes.data
        if status := function(*three, len(sizes), *of_all, stream):
            raise RuntimeError(f"CUDA error {status} of cuMemcpyBatchAsync, for {len(sizes)} spans")

    return call
