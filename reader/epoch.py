"""The origin of a batch's random numbers: epoch, position and seed; also the current epoch, and the threads of transforms."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import numpy as np
import torch

from reader.host_values import sent

_Value = TypeVar("_Value")
_Batch = TypeVar("_Batch", bound="_HasOrigin")

# Epoch, and position of the first row, for a batch without a MemmapLoader; the positions of its other rows are below it.
UNKNOWN = -1


# The number of threads that transforms may use in this context; None: as many as torch.
transform_threads: contextvars.ContextVar[int | None] = contextvars.ContextVar("transform_threads", default=None)

current_epoch: contextvars.ContextVar[int] = contextvars.ContextVar("epoch", default=0)


class _HasOrigin(Protocol):
    """A batch with the field `origin`."""

    pixels: torch.Tensor

    def __len__(self) -> int: ...

    def set(self, name: str, tensor: torch.Tensor, /) -> object:
        """Set a field."""


def with_origin(batch: _Batch, *, epoch: int = UNKNOWN, position: int = UNKNOWN, seed: int) -> _Batch:
    """Set the field `origin` of a batch: the epoch, position and seed of each row's random numbers. Returns the batch.

    position: that of its first row in the epoch's order; the others follow.
    """
    # by numpy: with torch, these four lines take nearly half of a loop's wait for a batch of 16 small rows
    origin = np.empty((len(batch), 3), np.int64)
    step = 1 if position >= 0 else -1
    origin[:, 0], origin[:, 2] = epoch, wrapped(seed)
    origin[:, 1] = np.arange(position, position + step * len(batch), step)
    batch.set("origin", sent(torch.from_numpy(origin), batch.pixels.device))
    return batch


@contextlib.contextmanager
def inside(variable: contextvars.ContextVar[_Value], value: _Value) -> Iterator[None]:
    """Set a context variable for the duration of a `with` block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def in_epoch(epoch: int) -> contextlib.AbstractContextManager[None]:
    """Set the epoch of random transforms in a `with` block, for batches without an origin, as indexing makes them."""
    return inside(current_epoch, epoch)


def on_threads_of(threads: int) -> contextlib.AbstractContextManager[None]:
    """Set the number of threads of transforms in a `with` block."""
    return inside(transform_threads, threads)


@contextlib.contextmanager
def on_one_torch_thread() -> Iterator[None]:
    """Let torch operators in a `with` block use only the calling thread.

    Operators on a few thousand numbers are as fast so, and on a busy machine each would wait for other threads.
    """
    limit, before = torch_thread_limit(), torch.get_num_threads()
    if limit is None:
        yield
        return
    limit(1)
    try:
        yield
    finally:
        limit(before)


@functools.cache
def torch_thread_limit() -> Callable[[int], None] | None:
    """Return a function that sets the number of torch's threads for the calling thread; None if torch has none.

    torch.set_num_threads would change the whole process.
    """
    if "ATen parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        # by the OpenMP specification, this sets the limit of only the calling thread
        limit = ctypes.CDLL(None).omp_set_num_threads
    except (OSError, AttributeError, TypeError):
        return None

    def call(threads: int) -> None:
        """Set how many threads torch uses for this thread."""
        # torch sets a thread's number at its first use, and not again
        torch.get_num_threads()
        limit(threads)

    return call


def wrapped(value: int) -> int:
    """Return the signed 64-bit integer with the low 64 bits of value."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value
