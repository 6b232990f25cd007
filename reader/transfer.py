"""Batches to a CUDA device: pinned copies on a side stream, an event each, and what keeps two streams from racing.

No CUDA device has run this module yet; its tests are marked cuda.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from torch.profiler import record_function

from reader.store import ImageBatch, RaggedBatch


class CudaCopier:
    """Copies pinned batches to the device on a side stream. Lives in the feeder thread.

    Two hazards. A pinned buffer must not be refilled before its copy has ended: its lease is held until the copy's event
    has passed. A device batch must not be reused while the caller's stream may read it: `DeviceBatch` records that stream.
    """

    def __init__(self, device: torch.device, *, depth: int) -> None:
        self._device, self._depth = device, depth
        self._stream = torch.cuda.Stream(device)
        self._in_flight: deque[tuple[torch.cuda.Event, Any]] = deque()

    def send(self, batch: Any) -> DeviceBatch:
        """Start the copy of a pinned batch; returns at once, unless depth + 1 copies are under way already."""
        while self._in_flight and (self._in_flight[0][0].query() or len(self._in_flight) > self._depth):
            event, _ = self._in_flight.popleft()
            event.synchronize()
        with record_function("pixpack.copy"), torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            sent = send_batch(batch, self._device)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._in_flight.append((event, batch))
        return DeviceBatch(sent, event)

    def drain(self) -> None:
        """Wait for all copies: only then may their pinned buffers go back to a pool that outlives this object."""
        while self._in_flight:
            self._in_flight.popleft()[0].synchronize()


class DeviceBatch:
    """A batch whose copy may still run; called in the caller's thread, it orders the caller's stream after the copy."""

    def __init__(self, batch: Any, event: torch.cuda.Event) -> None:
        self._batch, self._event = batch, event

    def __call__(self) -> Any:
        """Return the batch, safe to use on the caller's current stream."""
        stream = torch.cuda.current_stream(self._batch.pixels.device)
        stream.wait_event(self._event)
        for tensor in tensors_of(self._batch):
            tensor.record_stream(stream)
        return self._batch


def send_batch(batch: Any, device: torch.device) -> Any:
    """Copy each tensor of a batch without waiting; small ones are pinned on the way."""

    def send(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)

    if isinstance(batch, RaggedBatch):
        return batch.apply(send, device=device)
    return ImageBatch(
        pixels=send(batch.pixels),
        targets=send(batch.targets),
        content=None if batch.content is None else send(batch.content),
        extras=None if batch.extras is None else batch.extras.apply(send, device=device),
        rows=None if batch.rows is None else send(batch.rows),
        batch_size=batch.batch_size,
        device=device,
    )


def tensors_of(batch: Any) -> list[Any]:
    """List every tensor of a batch."""
    if isinstance(batch, RaggedBatch):
        return list(batch.values(True, True))
    found: list[Any] = [t for t in (batch.pixels, batch.targets, batch.content, batch.rows) if t is not None]
    return found if batch.extras is None else found + list(batch.extras.values(True, True))
