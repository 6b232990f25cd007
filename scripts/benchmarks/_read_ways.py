"""The seven ways in which bench_read.py reads a store.

Each has begin(), which is not timed, batch(), called `batches` times, and end(), which is timed; batch() tells the rows of
the batch and its pixels. Knows what is fair to each way; no clock, no statistics.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from reader import ImageBatch, MemmapDataset, MemmapLoader
from reader.bench.ways import ORDERS
from reader.format.manifest import Manifest
from reader.memory.buffers import BufferPool
from scripts.benchmarks._bench import BenchError

# Long beside a thread's wake-up (30 us), short beside what else happens on a machine: 8 batches of 38 MB take 30 ms.
BATCHES = 8
# store[idx] is 8 times slower: fewer batches, so that what is compared stays close in time.
INDEX_BATCHES = 2
PAGE_BYTES = 4096
FULL_TIMEOUT_SECONDS = 60

Sample = tuple[np.ndarray, torch.Tensor]


class Limit:
    """Copies consecutive slices into a ring of buffers."""

    batches = BATCHES

    def __init__(self, data: MemmapDataset, batch_size: int, buffers: int) -> None:
        self._pixels = data.store.pixels
        shape = (batch_size, *self._pixels.shape[1:])
        pool = BufferPool(batch_size * data.manifest.row_bytes, keep=buffers)
        self._ring = [pool.lease().view(shape).zero_() for _ in range(buffers)]
        self._step = 0

    def begin(self) -> None:
        self.batch()

    def batch(self) -> Sample:
        size = len(self._ring[0])
        start = self._step % (len(self._pixels) // size) * size
        buffer = self._ring[self._step % len(self._ring)]
        buffer.copy_(self._pixels[start : start + size])
        self._step += 1
        return np.arange(start, start + size), buffer

    def end(self) -> None:
        pass


class Loader:
    """MemmapLoader from a full queue to a full queue."""

    batches = BATCHES

    def __init__(self, data: MemmapDataset, batch_size: int, order: str, **options: Any) -> None:
        self._gathered = Gathered()
        self.buffers = self._gathered.buffers
        options |= {"shuffle": ORDERS[order], "drop_last": True, "transform": self._gathered, "as_tuple": False}
        self._loader = MemmapLoader(data, batch_size, **options)
        self.prefetch = self._loader.prefetch
        self.batches = min(BATCHES, len(self._loader) - self.prefetch - 1)
        if self.batches < 1:
            raise BenchError(f"{len(data)} rows are {len(self._loader)} batches, too few. Use a smaller --batch-size.")
        self._taken, self._iterator = len(self._loader), iter(())

    def begin(self) -> None:
        if self._taken + 1 + self.batches + self.prefetch > len(self._loader):
            self._iterator = None
            self._gathered.check_and_forget()
            self._taken, self._iterator = 0, iter(self._loader)
        self.batch()
        self.end()

    def batch(self) -> Sample:
        batch = next(self._iterator)
        self._taken += 1
        return batch.rows, batch.pixels

    def end(self) -> None:
        self._gathered.wait(self._taken + self.prefetch)

    def close(self) -> None:
        self._gathered.check_and_forget()
        self._iterator = None
        self._loader.close()


class Gathered:
    """A transform that changes nothing; counts batches in the loader's thread and keeps their rows."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rows: list[torch.Tensor] = []
        self.buffers: set[int] = set()

    def __call__(self, batch: ImageBatch) -> ImageBatch:
        with self._changed:
            self._rows.append(batch.rows)
            self.buffers.add(batch.pixels.data_ptr())
            self._changed.notify()
        return batch

    def wait(self, count: int) -> None:
        """Wait until so many batches were gathered."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._rows) >= count, FULL_TIMEOUT_SECONDS):
                raise BenchError(f"the loader's queue holds {len(self._rows)} batches, expected {count}: it hangs.")

    def check_and_forget(self) -> None:
        """Raise unless no row came twice since the last call."""
        rows = np.concatenate([batch.numpy() for batch in self._rows]) if self._rows else np.zeros(0)
        if len(np.unique(rows)) < len(rows):
            raise BenchError(f"{len(rows) - len(np.unique(rows))} rows came twice in one epoch of the timed loader.")
        self._rows = []


class StoreIndex:
    """Random rows of the tensorclass, as tensordict loads it."""

    batches = INDEX_BATCHES

    def __init__(self, data: MemmapDataset, batch_size: int) -> None:
        self._store = ImageBatch.load_memmap(str(data.path))
        touch(self._store.pixels.numpy())
        self._order = RandomBatches(len(data), batch_size)

    def begin(self) -> None:
        self.batch()

    def batch(self) -> Sample:
        rows = self._order.next()
        return rows, self._store[torch.from_numpy(rows)].pixels

    def end(self) -> None:
        pass


class TorchLoader:
    """torch's DataLoader over a MemmapDataset or RawRows; an iteration is one turn, so that none of its work outlasts it."""

    batches = BATCHES

    def __init__(self, dataset: MemmapDataset | RawRows, batch_size: int, workers: int = 0) -> None:
        self._order = RandomBatches(len(dataset), batch_size)
        ahead = {"persistent_workers": True, "prefetch_factor": 2, "worker_init_fn": touch_in_worker} if workers else {}
        # as many as its workers prefetch, and one
        self._before = 2 * workers + 1
        self._order.a_turn = self._before + self.batches
        if isinstance(dataset, RawRows):
            ahead["collate_fn"] = as_it_is
        self._loader = DataLoader(dataset, batch_sampler=self._order, num_workers=workers, **ahead)
        # an iteration without batches starts the workers, and they stay
        self._order.a_turn, turn = 0, self._order.a_turn
        self._iterator = iter(self._loader)
        self._order.a_turn = turn

    def begin(self) -> None:
        # the last turn's end: workers are told that nothing is left
        next(self._iterator, None)
        self._iterator = iter(self._loader)
        for _ in range(self._before):
            next(self._iterator)

    def batch(self) -> Sample:
        batch = next(self._iterator)
        return (batch.rows, batch.pixels) if isinstance(batch, ImageBatch) else batch[:2]

    def end(self) -> None:
        pass


class RawRows(Dataset):
    """What people write by hand: a numpy memmap, a whole batch at a time."""

    def __init__(self, out: Path, manifest: Manifest) -> None:
        paths, shape = manifest.tensor_paths(), (manifest.rows, manifest.height, manifest.width, manifest.channels)
        self.pixels = np.memmap(out / paths["pixels"], np.uint8, "r", shape=shape)
        self._targets = np.fromfile(out / paths["targets"], manifest.tensors["targets"].dtype)
        self._targets = self._targets.reshape(manifest.rows, *manifest.tensors["targets"].row_shape)
        touch(self.pixels)

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitems__(self, rows: np.ndarray) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        return rows, torch.from_numpy(self.pixels[rows]), torch.from_numpy(self._targets[rows])


class RandomBatches:
    """Random permutations cut into batches, endlessly; as a batch_sampler, `a_turn` of them an iteration."""

    def __init__(self, count: int, batch_size: int) -> None:
        self._generator, self._shape = np.random.default_rng(0), (count // batch_size, batch_size)
        self._count, self._left = count, list[np.ndarray]()
        self.a_turn = 0

    def next(self) -> np.ndarray:
        if not self._left:
            batches, size = self._shape
            self._left = list(self._generator.permutation(self._count)[: batches * size].reshape(self._shape))
        return self._left.pop()

    def __iter__(self) -> Iterator[np.ndarray]:
        return (self.next() for _ in range(self.a_turn))

    def __len__(self) -> int:
        return self.a_turn


def as_it_is(batch: Any) -> Any:
    return batch


def touch(pixels: np.ndarray) -> None:
    """Map every page of a file into this process: that first fault is no part of reading it again and again."""
    pixels.reshape(-1)[::PAGE_BYTES].max()


def touch_in_worker(_: int) -> None:
    touch(get_worker_info().dataset.pixels)
