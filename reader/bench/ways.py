"""The ways to read rows from memory, or to a device, that `pack bench` compares, each as it is fair to time.

A way is a function that takes one turn, beginning with what must not be timed, and returns images/s. Knows no statistics.

A prefetching loader can be timed wrong in two ways: begin with a full queue, and its batches cost nothing; or leave one being
refilled, and it slows down what is timed next. So the clock of MemmapLoader starts with its queue full and its thread idle,
and stops when it is so again: as many batches were gathered as were taken. The workers of torch's DataLoader cannot be seen,
so they are given the batches of one turn: the clock starts when all that they prefetch, and one more, were taken, and stops
with the last.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import DataLoader

from reader.bench.row_bytes import RowBytes
from reader.buffers import BufferPool
from reader.dataset.dataset import MemmapDataset
from reader.format.filesystem import size_text
from reader.loading.loader import MemmapLoader
from reader.memory.residency import Residency
from reader.rows import Rows
from reader.tuning import tuning

Turn = Callable[[], float]

ORDERS: dict[str, str | bool] = {"full": "full", "block": "block", "sequential": False}

# A turn takes some 10 ms: long beside a thread's wake-up (30 us), short beside what else happens on a machine.
_TURN_BYTES = 256 << 20
_LEAST_BATCHES, _MOST_BATCHES = 8, 1024
# Of turns on a device: the gather of their first batch, and the copy of their last, have nothing beside them. On a bus that is
# as fast as the gather, that is a ninth of 8 batches' time.
DEVICE_TURN_BYTES = 2 << 30
# A DataLoader is so many times slower: shorter turns, so that what is compared stays close in time.
SLOWER = 8
# What a MemmapLoader with prefetch=2 uses.
_BUFFERS = 4
_WORKERS_PREFETCH = 2
# How late the end of a turn is seen, at most.
_POLL_SECONDS = 5e-5


@dataclass(frozen=True)
class FirstRows:
    """The first `count` rows of a store, all of them in memory, to be read in batches of `size`."""

    data: MemmapDataset
    size: int
    count: int
    turn_bytes: int = _TURN_BYTES

    @functools.cached_property
    def rows(self) -> RowBytes:
        """Where the rows are in the store's pixels."""
        return RowBytes(self.data)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the pixels of a batch, of rows with sizes of their own on average."""
        return self.size * self.data.manifest.row_bytes

    @property
    def batches_a_turn(self) -> int:
        """Batches that the fast ways read in a turn."""
        return min(max(_LEAST_BATCHES, self.turn_bytes // self.batch_bytes), _MOST_BATCHES)

    def loader(self, order: str, device: torch.device, least_batches: int = 1) -> MemmapLoader:
        """Make a loader with at least so many batches an epoch; few rows are repeated for that.

        It never reads ahead: its rows are in memory, though the rest of their store may not be.
        """
        full = self.count - self.count % self.size
        times = -(-least_batches * self.size // full)
        rows = np.arange(self.count) if times == 1 else np.tile(np.arange(full), times)
        shuffle = ORDERS[order]
        return MemmapLoader(
            self.data.subset(rows),
            self.size,
            shuffle=shuffle,
            drop_last=True,
            device=device,
            residency=Residency("cache", "its rows were read before", "cache", is_warm=True),
            as_tuple=not self.rows.differ,  # of rows with sizes of their own it is asked which came
        )


class SliceCopies:
    """Copies the bytes of consecutive rows into a ring of buffers."""

    def __init__(self, part: FirstRows) -> None:
        self._part, self._pixels = part, part.data.mapped.pixels.view(-1)
        ends = [part.rows.end(count) for count in range(0, part.count + 1, part.size)]
        self._slices = list(itertools.pairwise(ends))
        pool = BufferPool(max(stop - start for start, stop in self._slices), keep=_BUFFERS)
        self._ring = [pool.lease().zero_() for _ in range(_BUFFERS)]
        self._step = 0

    def turn(self) -> float:
        """Take a turn; returns images/s."""
        self._copy()
        begun = time.perf_counter()
        size_bytes = sum(self._copy() for _ in range(self._part.batches_a_turn))
        return size_bytes / self._part.rows.mean / (time.perf_counter() - begun)

    def _copy(self) -> int:
        start, stop = self._slices[self._step % len(self._slices)]
        self._ring[self._step % _BUFFERS][: stop - start].copy_(self._pixels[start:stop])
        self._step += 1
        return stop - start


class PinnedCopies:
    """Copies a ring of pinned buffers into a ring on the device, on one side stream. No CUDA device has run it yet."""

    def __init__(self, part: FirstRows, device: torch.device) -> None:
        self._part, self._stream = part, torch.cuda.Stream(device)
        pool = BufferPool(part.batch_bytes, keep=_BUFFERS, pinned=device)
        self._ring = [pool.lease().zero_() for _ in range(_BUFFERS)]
        self._there = [torch.empty_like(buffer, device=device) for buffer in self._ring]
        torch.cuda.synchronize(device)  # they were made on another stream

    def turn(self) -> float:
        """Take a turn; returns images/s."""
        self._copy(1)
        begun = time.perf_counter()
        self._copy(self._part.batches_a_turn)
        return self._part.batches_a_turn * self._part.size / (time.perf_counter() - begun)

    def _copy(self, batches: int) -> None:
        with torch.cuda.stream(self._stream):
            for step in range(batches):
                self._there[step % _BUFFERS].copy_(self._ring[step % _BUFFERS], non_blocking=True)
        self._stream.synchronize()


class Loader:
    """MemmapLoader, from a full queue to a full queue."""

    def __init__(self, part: FirstRows, order: str, device: torch.device) -> None:
        self._part, self._device = part, device
        # small batches are queued in groups: a turn may end one late, and begins and ends with what is queued
        group = max(1, tuning().batch_group_bytes // part.batch_bytes)
        self._needed = part.batches_a_turn + (_BUFFERS + 1) * group
        self._loader = part.loader(order, device, self._needed)
        self._taken = len(self._loader)
        # of batches that differ in size, the rows that they had
        self._rows: list[torch.Tensor] = []

    def turn(self) -> float:
        """Take a turn; returns images/s."""
        if self._taken + self._needed > len(self._loader):
            self._taken, self._iterator = 0, iter(self._loader)
        self._take(1)
        self._rows.clear()
        before, begun = self._taken, time.perf_counter()
        self._take(self._part.batches_a_turn)
        seconds = time.perf_counter() - begun
        return self._images(before) / seconds

    def close(self) -> None:
        """End the loader's thread."""
        self._loader.close()

    def _take(self, least: int) -> None:
        """Take batches, complete groups, or what there is time for, and wait until as many were made again."""
        goal, end = self._taken + least, time.perf_counter() + tuning().bench_turn_seconds
        while (self._taken < goal and time.perf_counter() < end) or self._iterator.ready:
            if self._part.rows.differ:
                self._rows.append(next(self._iterator).rows)
            else:
                next(self._iterator)
            self._taken += 1
        while not self._iterator.is_filled:
            time.sleep(_POLL_SECONDS)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _images(self, before: int) -> float:
        """Return the images of the batches that were taken since."""
        if not self._part.rows.differ:
            return (self._taken - before) * self._part.size
        return self._part.rows.images(torch.cat(self._rows).cpu().numpy())


class TorchLoader:
    """torch's DataLoader over the dataset; an iteration is one turn, so that none of its work outlasts it.

    Its workers start at once, before threads that a fork would miss; `part` says later what is read.
    """

    part: FirstRows

    def __init__(self, data: MemmapDataset, workers: int) -> None:
        self._before = workers * _WORKERS_PREFETCH + 1
        self._turn = _TurnOfBatches()
        ahead = {"persistent_workers": True, "prefetch_factor": _WORKERS_PREFETCH} if workers else {}
        self._loader = DataLoader(data, batch_sampler=self._turn, num_workers=workers, **ahead)  # type: ignore[arg-type]
        # an iteration without batches starts the workers, and they stay
        self._iterator = iter(self._loader)

    def turn(self) -> float:
        """Take a turn; returns images/s."""
        order = RandomBatches(self.part)
        count = max(_LEAST_BATCHES if self._loader.num_workers else 2, self.part.batches_a_turn // SLOWER)
        # the last turn's end: workers see that nothing is left
        next(self._iterator, None)
        self._turn.batches = [order.next().tolist() for _ in range(self._before + count)]
        self._iterator = iter(self._loader)
        for _ in range(self._before):
            next(self._iterator)
        timed = np.concatenate(self._turn.batches[self._before :])
        begun = time.perf_counter()
        for _ in range(count):
            next(self._iterator)
        return self.part.rows.images(timed) / (time.perf_counter() - begun)

    @staticmethod
    def why_not(batch_bytes: int, workers: int) -> str:
        """Say why the workers' batches do not fit into shared memory, where they would die of SIGBUS; "" where they do."""
        needed = batch_bytes * (workers * _WORKERS_PREFETCH + 2)
        try:
            found = os.statvfs("/dev/shm")
        except (OSError, AttributeError):
            return ""
        free = found.f_bavail * found.f_frsize
        if free >= needed:
            return ""
        return f"/dev/shm has {size_text(free)} free, their batches need {size_text(needed)}."


class _TurnOfBatches:
    """A batch_sampler: the batches of the next iteration."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class RandomBatches:
    """Random permutations of a part's rows, cut into batches, endlessly."""

    def __init__(self, part: FirstRows) -> None:
        self._generator, self._part = np.random.default_rng(0), part
        self._left: list[Rows] = []

    def next(self) -> Rows:
        """Return the rows of the next batch, int64[B]."""
        if not self._left:
            batches, size = self._part.count // self._part.size, self._part.size
            self._left = list(self._generator.permutation(self._part.count)[: batches * size].reshape(batches, size))
        return self._left.pop()
