"""CUDA's guarantees on streams, events, pinned and device memory, without CUDA: work runs as late, or as early, as allowed.

A real device is nearly always fast enough to hide a missing wait. Here a copy reads its source, and a kernel its batch, at
the worst allowed moment. `World.install` puts it under `reader.device.transfer`; one lock makes it thread-safe.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reader import buffers
from reader.device import transfer
from reader.store import ImageBatch

CUDA = torch.device("cuda", 0)


class World:
    """Streams of one device and its memory.

    Args:
        eager: kinds of streams, "copies" and "kernels", whose work runs as early as possible; others' as late as possible.
        seed: instead, each possible step of any stream runs at random.
    """

    def __init__(self, *, eager: tuple[str, ...] = (), seed: int | None = None) -> None:
        self.lock = threading.RLock()
        self._eager, self._coins = eager, None if seed is None else random.Random(seed)
        self.kernels = Stream(self, "kernels")
        self.streams = [self.kernels]
        self._current = threading.local()
        # pinned memory, kept while a copy has its address
        self.pinned: dict[int, np.ndarray] = {}
        self._blocks: dict[int, _Block] = {}
        self._free: dict[tuple[Stream, int], list[_Block]] = defaultdict(list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Take the place of CUDA in the reader."""
        patch.setattr(transfer, "cuda", SimulatedCuda(self))
        patch.setattr(transfer, "send_batch", self._send)
        patch.setattr(buffers, "pinned", self._pinned)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "current_device", lambda: 0)
        # its cached streams are from another world
        patch.setattr(transfer, "side_stream", functools.cache(transfer.side_stream.__wrapped__))

    @property
    def current(self) -> Stream:
        return getattr(self._current, "stream", self.kernels)

    @contextlib.contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        before, self._current.stream = self.current, stream
        yield
        self._current.stream = before

    def new_stream(self) -> Stream:
        with self.lock:
            self.streams.append(Stream(self, "copies"))
            return self.streams[-1]

    @property
    def allocated(self) -> int:
        """Number of device memory blocks ever allocated, of more than a few bytes."""
        return sum(block.memory.nbytes > 1024 for block in self._blocks.values())

    def launch(self, tensor: torch.Tensor, use: Callable[[np.ndarray], Any]) -> None:
        """Launch a kernel on the caller's stream that reads a batch's memory, and holds it no longer."""
        memory = self.memory_of(tensor)
        self.kernels.add(lambda: use(memory))

    def empty(self, size_bytes: int) -> torch.Tensor:
        """Allocate uint8[size_bytes] on the device, for the current stream."""
        return self._allocate(size_bytes)[0]

    def memory_of(self, tensor: torch.Tensor) -> np.ndarray:
        """Return the memory of a tensor on the device, without protection from reuse."""
        return self._blocks[tensor.data_ptr()].memory

    def finish(self) -> None:
        """Run all pending work."""
        with self.lock:
            for stream in self.streams:
                stream.finish()

    def run_what_may(self) -> None:
        moved = True
        while moved:
            moved = False
            for stream in self.streams:
                moved |= self._is_chosen(stream) and stream.step()

    def _is_chosen(self, stream: Stream) -> bool:
        return stream.kind in self._eager if self._coins is None else self._coins.random() < 0.5

    # -- memory

    def _pinned(self, size_bytes: int, device: torch.device) -> torch.Tensor:
        memory = np.zeros(size_bytes, np.uint8)
        self.pinned[memory.ctypes.data] = memory
        return torch.from_numpy(memory)

    def _send(self, batch: ImageBatch, device: torch.device) -> ImageBatch:
        def send(tensor: torch.Tensor) -> torch.Tensor:
            address, size = tensor.data_ptr(), tensor.nbytes
            if any(start <= address < start + len(memory) for start, memory in self.pinned.items()):
                source = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
            else:
                # torch pins a copy, and keeps that until the transfer has ended
                source = tensor.clone().view(-1).view(torch.uint8).numpy()
            there, memory = self._allocate(size)
            self.current.add(lambda: np.copyto(memory, source))
            return there.view(tensor.dtype).view(tensor.shape)

        return ImageBatch(
            pixels=send(batch.pixels), targets=send(batch.targets), rows=send(batch.rows), batch_size=batch.batch_size
        )

    def _allocate(self, size: int) -> tuple[torch.Tensor, np.ndarray]:
        """Lease device memory like torch's allocator: memory freed on this stream, without recorded use."""
        with self.lock:
            free, stream = self._free[self.current, size], self.current
            found = next((block for block in free if all(op.done for op in block.uses)), None)
            if found is None:
                found = _Block(np.zeros(size, np.uint8))
                self._blocks[found.memory.ctypes.data] = found
            else:
                free.remove(found)
            found.streams.clear()
            lease = np.ndarray(size, np.uint8, buffer=found.memory)
            weakref.finalize(lease, self._release, found, stream).atexit = False
            tensor = torch.from_numpy(lease).as_subclass(OnDevice)
            OnDevice.blocks[found.memory.ctypes.data] = found
            return tensor, found.memory

    def _release(self, block: _Block, stream: Stream) -> None:
        with self.lock:
            block.uses = [used.add(lambda: None) for used in block.streams]
            self._free[stream, block.memory.nbytes].append(block)


class Stream:
    """Work in order; a piece may wait for a piece of another stream."""

    def __init__(self, world: World, kind: str) -> None:
        self._world, self.kind = world, kind
        self._work: deque[_Work] = deque()

    def add(self, action: Callable[[], Any], needs: _Work | None = None) -> _Work:
        with self._world.lock:
            work = _Work(action, self, needs)
            self._work.append(work)
            self._world.run_what_may()
            return work

    def wait_event(self, event: Event) -> None:
        self.add(lambda: None, event.work)

    def wait_stream(self, stream: Stream) -> None:
        event = Event(self._world)
        event.record(stream)
        self.wait_event(event)

    def step(self) -> bool:
        """Run the first piece, if allowed."""
        if not self._work or (self._work[0].needs and not self._work[0].needs.done):
            return False
        self._work.popleft().run()
        return True

    def finish(self, last: _Work | None = None) -> None:
        """Run all pieces up to one, each after its requirements."""
        while self._work and not (last and last.done):
            needs = self._work[0].needs
            if needs and not needs.done:
                needs.stream.finish(needs)
            self._work.popleft().run()


class Event:
    """A place in a stream."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.work: _Work | None = None

    def record(self, stream: Stream) -> None:
        self.work = stream.add(lambda: None)

    def query(self) -> bool:
        return self.work is None or self.work.done

    def synchronize(self) -> None:
        with self._world.lock:
            if self.work and not self.work.done:
                self.work.stream.finish(self.work)


class OnDevice(torch.Tensor):
    """A tensor in the world's memory."""

    blocks: ClassVar[dict[int, _Block]] = {}

    def record_stream(self, stream: Stream) -> None:
        self.blocks[self.data_ptr()].streams.add(stream)


class _Work:
    def __init__(self, action: Callable[[], Any], stream: Stream, needs: _Work | None) -> None:
        self._action, self.stream, self.needs, self.done = action, stream, needs, False

    def run(self) -> None:
        self._action()
        self.done = True


class _Block:
    def __init__(self, memory: np.ndarray) -> None:
        self.memory = memory
        self.streams: set[Stream] = set()
        self.uses: list[_Work] = []


class SimulatedCuda:
    """The used part of torch.cuda."""

    def __init__(self, world: World) -> None:
        self.stream = world.use
        self.Stream = lambda device: world.new_stream()
        self.Event = lambda *, blocking: Event(world)
        self.current_stream = lambda device: world.current
        self.device = lambda device: contextlib.nullcontext()
        self.set_device = lambda device: None
