"""Batches to a CUDA device: pinned copies on a side stream, each with an event, and the guards against races of streams.

tests/device/test_transfer.py runs it on simulated streams that are as late as CUDA allows.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec, TypeVar

import torch
from torch import cuda

from reader.host_values import remember
from reader.store import Batch

_P = ParamSpec("_P")
_T = TypeVar("_T")
_B = TypeVar("_B", bound=Batch)

# Batches whose work the caller has launched and the device has not finished. Enough that a device never waits for the next
# launch. Each costs a batch of device memory; without a limit, a loop with few kernels a step would take hundreds.
MOST_LAUNCHED = 8
# Up to this size, a tensor's values stay on the host while it is on a device: row numbers do, pixels do not.
_KNOWN_BYTES = 256 << 10


class CudaCopier:
    """Copies pinned batches to the device on a side stream. Lives in the feeder thread.

    Three hazards. A pinned slot must not be refilled before its copy has ended: its lease stays until the copy's event has
    passed. A device batch must not be reused while the caller's stream may read it: `DeviceBatch` records that stream. A
    caller that launches work faster than the device finishes it would hold more and more batches: the copier waits for the
    device.
    """

    def __init__(self, device: torch.device, *, depth: int) -> None:
        self._device, self._depth = device, depth
        self._stream, self._launched = side_stream(device)
        self._in_flight: deque[tuple[cuda.Event, Batch]] = deque()

    def send(self, batch: Batch) -> DeviceBatch:
        """Start the copy of a pinned batch; returns at once, unless depth + 1 copies are in progress already.

        Raises:
            RuntimeError: the device reports an error, from this copy or from earlier work.
            torch.OutOfMemoryError: the device has no room for the batch.
        """
        # waiting also makes a context, on the current device
        with cuda.device(self._device):
            while len(self._launched) > MOST_LAUNCHED:
                self._launched.popleft().synchronize()
            while self._in_flight and (self._in_flight[0][0].query() or len(self._in_flight) > self._depth):
                event, _ = self._in_flight.popleft()
                event.synchronize()
            with cuda.stream(self._stream):
                sent, event = send_batch(batch, self._device), sleeping_event()
                event.record(self._stream)
        self._in_flight.append((event, batch))
        return DeviceBatch(sent, event, self._launched)

    @contextlib.contextmanager
    def on_side_stream(self) -> Iterator[None]:
        """Make the side stream the current one: for copies to the device that start before their batch is sent."""
        with cuda.device(self._device), cuda.stream(self._stream):
            yield

    def drain(self) -> None:
        """Wait for all copies: only then may their pinned slots go back to a pool that outlives this object."""
        with cuda.device(self._device):
            # even for copies of a batch that was never sent
            end = sleeping_event()
            end.record(self._stream)
            # batches are kept until then: the next epoch, in its own thread, would get their slots
            end.synchronize()
            self._in_flight.clear()


class DeviceBatch:
    """A batch whose copy may still run; called in the caller's thread, it orders the caller's stream after the copy."""

    def __init__(self, batch: Batch, event: cuda.Event, launched: deque[cuda.Event]) -> None:
        self._batch, self._event, self._launched = batch, event, launched

    def __call__(self) -> Batch:
        """Return the batch, safe to use on the caller's current stream."""
        stream = cuda.current_stream(self._batch.pixels.device)
        # all work launched for earlier batches
        before = sleeping_event()
        before.record(stream)
        self._launched.append(before)
        stream.wait_event(self._event)
        return recorded(self._batch)


def entered(
    device: torch.device, source: Callable[_P, Generator[_T, None, None]]
) -> Callable[_P, Generator[_T, None, None]]:
    """Return a source of the same groups for a new thread, which makes this device current before its first CUDA call.

    In a new thread device 0 is current: waiting for an event there would give it a context, some 500 MB, from every rank.
    """
    if device.type != "cuda":
        return source

    def on_device(*arguments: _P.args, **named: _P.kwargs) -> Generator[_T, None, None]:
        """Make the groups with this device current."""
        cuda.set_device(device)
        yield from source(*arguments, **named)

    return on_device


def recorded(batch: _B) -> _B:
    """Keep a batch's memory from reuse before the current stream has finished its work; returns the batch."""
    stream = cuda.current_stream(batch.pixels.device)
    for tensor in batch.values(True, True):
        tensor.record_stream(stream)
    return batch


def send_batch(batch: Batch, device: torch.device) -> Batch:
    """Copy each tensor of a batch without waiting; small ones go through torch's own pinned memory.

    The host remembers the values of small ones; memory that is already pinned is reused.
    """

    def send(tensor: torch.Tensor) -> torch.Tensor:
        """Begin one copy; torch keeps the memory that it pins until the copy has ended."""
        if tensor.is_cuda:
            return tensor
        if tensor.is_pinned():
            return tensor.to(device, non_blocking=True)
        sent = tensor.pin_memory().to(device, non_blocking=True)
        return remember(sent, tensor) if tensor.nbytes <= _KNOWN_BYTES else sent

    return batch.apply(send, device=device)


def sleeping_event() -> cuda.Event:
    """Make an event that a thread waits for asleep; by default it would spin, and take a core from gathering."""
    return cuda.Event(blocking=True)


@functools.cache
def side_stream(device: torch.device) -> tuple[cuda.Stream, deque[cuda.Event]]:
    """Return the stream on which all loaders of this process copy to a device, and the events of their callers' launched work.

    torch gives out 32 streams in turn, and its allocator keeps freed memory for the stream that allocated it. With a new
    stream per epoch, device memory would grow for 32 epochs. Callers' threads append to the events, see `DeviceBatch`. Short
    epochs must not restart the count.
    """
    return cuda.Stream(device), deque()
