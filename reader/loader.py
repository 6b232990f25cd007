"""`MemmapLoader`: batches of a store in a given order, gathered ahead by one background thread, on the CPU or a CUDA device.

Who does what: the feeder thread (one an iterator) computes rows, gathers them into leased buffers, starts the copy to the
device on a side stream; the caller's thread waits for the queue, makes its own stream wait for the copy, and, on CUDA, runs
the transform. Nothing else is shared but the queue in `_Feed`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.profiler import record_function

from reader.buffers import BufferPool, gather
from reader.dataset import MemmapDataset, gather_batch
from reader.order import BlockOrder, Cut, Rows, drawn, permuted, wrap
from reader.store import ImageBatch

_log = logging.getLogger("reader")

# Batches smaller than this are gathered and queued in groups: handing one over costs about 30 us of thread switching,
# which a 38 MB batch does not feel and a 1 kB one would be made of.
_GROUP_BYTES = 1 << 20
# shuffle="block": one read of 8 MiB is sequential to any disk; 32 of them mixed together are 1,700 rows of 224 x 224.
_BLOCK_BYTES = 8 << 20
_WINDOW_BLOCKS = 32
# Positions of the order computed at a time: 40 % faster for 65,536 than for 4,096, and 512 kB.
_ORDER_CHUNK = 1 << 16


class MemmapLoader:
    """Iterate over a MemmapDataset in batches.

    Args:
        dataset: a MemmapDataset or a subset of one.
        batch_size: rows a batch and rank.
        shuffle: False (store order), "full" (a permutation of all rows), "block" (blocks in random order, mixed in a
            window), True ("full" where the store fits in memory, else "block"; `repr` and the log say which).
        seed: with the epoch, fixes the order.
        drop_last: leave out the last, short batch. Without it ranks share that batch evenly, and where it does not divide,
            wrap around to the epoch's first rows, so that all have the same number of steps.
        weights: float[N]; rows are drawn with replacement in proportion to them.
        sampler: any torch Sampler of rows, or BatchSampler of lists of rows; it then decides order and ranks.
        device: where batches are put; "cuda" copies from pinned memory on a side stream.
        transform: called with each ImageBatch on the device; what it returns is what the loop gets.
        prefetch: batches gathered ahead; 0 gathers in the caller's thread.
        rank, world_size: default to torch.distributed's where that is initialised, else 0 and 1.
        residency: where rows are read from: "cache" (the mapped file), "ram" (a copy in memory), "auto".
        as_tuple: give (images uint8[B, C, H, W], targets) instead of an ImageBatch.

    A batch is a copy that belongs to the caller: kept, it is never overwritten; dropped, its memory is reused. Each `iter`
    starts the next epoch, unless `set_epoch` or `load_state_dict` said otherwise. Not for several threads at once.

    Raises:
        ValueError: arguments that contradict each other or the dataset, one sentence each.

    Example:
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=8, shuffle=True)
        >>> for batch in loader:
        ...     images = batch.images  # uint8[8, 3, 32, 32]
    """

    def __init__(
        self,
        dataset: MemmapDataset,
        batch_size: int = 1,
        *,
        shuffle: bool | str = False,
        seed: int = 0,
        drop_last: bool = False,
        weights: Any = None,
        sampler: Any = None,
        device: str | torch.device = "cpu",
        transform: Callable[[Any], Any] | None = None,
        prefetch: int = 2,
        rank: int | None = None,
        world_size: int | None = None,
        residency: str = "auto",
        as_tuple: bool = False,
    ) -> None:
        if not isinstance(dataset, MemmapDataset):
            raise ValueError(f"dataset is a {type(dataset).__name__}, expected a MemmapDataset or a subset of one.")
        if prefetch < 0:
            raise ValueError(f"prefetch is {prefetch}, expected 0 or more batches.")
        if (weights is not None) + (sampler is not None) + (shuffle is not False) > 1:
            raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = int(seed)
        self.transform = transform
        self.prefetch = prefetch
        self.as_tuple = as_tuple
        self.device = _checked_device(device)
        self.sampler = sampler
        self.order = _checked_shuffle(shuffle, dataset)
        self._cumulative = None if weights is None else _checked_weights(weights, len(dataset))
        rank, world_size = _checked_ranks(rank, world_size)
        self.cut = Cut(max(1, len(dataset)), batch_size, drop_last, rank, world_size)
        self.residency, reason = _choose_residency(residency, dataset)
        _log.info("%s: order %s, residency %s: %s", dataset.path, self._order_name(), self.residency, reason)
        self._store = _resident(dataset, self.residency)
        self._next = (0, 0)
        self._progress = _Progress(0, 0, finished=True)
        self._feeds: weakref.WeakSet[_Feed] = weakref.WeakSet()
        self._pool: BufferPool | None = None

    def __len__(self) -> int:
        if self.sampler is None:
            return self.cut.steps() if len(self.dataset) else 0
        count = len(self.sampler)
        if _yields_batches(self.sampler):
            return count
        return count // self.batch_size if self.cut.drop_last else -(-count // self.batch_size)

    def __repr__(self) -> str:
        m = self.dataset.manifest
        return (
            f"MemmapLoader({len(self)} steps of uint8[{self.batch_size}, {m.height}, {m.width}, {m.channels}] on"
            f" {self.device}, order {self._order_name()}, residency {self.residency})"
        )

    def __iter__(self) -> Iterator[Any]:
        epoch, position = self._next
        self._next = (epoch + 1, 0)
        set_epoch = getattr(self.transform, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)
        self._progress = _Progress(epoch, position)
        return _Iteration(self, self._progress)

    def __enter__(self) -> MemmapLoader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the background threads of all iterators and let idle buffers go."""
        for feed in list(self._feeds):
            feed.stop(wait=True)
        self._pool = None

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter` start this epoch."""
        self._next = (int(epoch), 0)
        self._progress.finished = True

    def state_dict(self) -> dict[str, int]:
        """Return where the loop is, as a few integers: after the batch that the caller got last."""
        epoch, position = self._next
        if not self._progress.finished:
            epoch, position = self._progress.epoch, self._progress.position
            if self.sampler is None and not self.cut.steps(position):
                epoch, position = epoch + 1, 0
        store = int(self.dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
        return {"epoch": epoch, "position": position, "seed": self.seed, "rows": len(self.dataset), "store": store}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next `iter` go on from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: the state is of another store, seed or subset.
        """
        own = self.state_dict()
        for key, what in (("store", "store"), ("rows", "number of rows"), ("seed", "seed")):
            if state.get(key) != own[key]:
                raise ValueError(
                    f"the state is of another {what}: it says {state.get(key)}, this loader has {own[key]}."
                )
        self._next = (int(state["epoch"]), int(state["position"]))
        self._progress.finished = True

    # -- for _Iteration

    def plan(self, epoch: int, position: int) -> Iterator[tuple[list[Rows], list[int]]]:
        """Yield groups of batches: the store rows of each, and the global position after each."""
        if self.sampler is not None:
            yield from self._sampled(position)
            return
        rows_at = _chunked(self._rows_at(epoch), self.cut.count)
        group = max(1, _GROUP_BYTES // max(1, self.dataset.manifest.row_bytes * self.batch_size))
        left = self.cut.steps(position) if len(self.dataset) else 0
        while left:
            batches, positions = [], []
            for _ in range(min(group, left)):
                start, stop = self.cut.span(position)
                batches.append(self.dataset.store_rows(wrap(rows_at, self.cut.count, start, stop)))
                position = self.cut.next_position(position)
                positions.append(position)
            left -= len(batches)
            yield batches, positions

    def host_batches(self, groups: list[Rows]) -> list[ImageBatch]:
        """Gather a group of batches into one leased buffer and cut it."""
        rows = groups[0] if len(groups) == 1 else np.concatenate(groups)
        shape = self._store.pixels.shape[1:]
        need = len(rows) * shape.numel()
        pool = self._buffers(need)
        pixels = pool.lease()[:need].view(len(rows), *shape)
        with record_function("pixpack.gather"):
            batch = gather_batch(self._store, rows, pixels)
        return [batch] if len(groups) == 1 else list(batch.split([len(g) for g in groups]))

    def _buffers(self, need: int) -> BufferPool:
        if self._pool is None or self._pool.size_bytes < need:
            self._pool = BufferPool(need, keep=self.prefetch + 2, pinned=self.device.type == "cuda")
        return self._pool

    def _rows_at(self, epoch: int) -> Callable[[int, int], Rows]:
        count = self.cut.count
        if self._cumulative is not None:
            cumulative = self._cumulative
            return lambda start, stop: drawn(cumulative, start, stop, seed=self.seed, epoch=epoch)
        if self.order == "full":
            return lambda start, stop: permuted(count, start, stop, seed=self.seed, epoch=epoch)
        if self.order == "block":
            block = max(1, _BLOCK_BYTES // self.dataset.manifest.row_bytes)
            return BlockOrder(count, block, _WINDOW_BLOCKS, seed=self.seed, epoch=epoch).rows
        return lambda start, stop: np.arange(start, stop, dtype=np.int64)

    def _sampled(self, position: int) -> Iterator[tuple[list[Rows], list[int]]]:
        """Follow a torch Sampler; a resumed epoch skips what was taken, since only the sampler knows its order."""
        taken, rows = 0, []
        for item in self.sampler:
            rows += list(item) if isinstance(item, list | tuple) else [int(item)]
            if isinstance(item, list | tuple) or len(rows) == self.batch_size:
                taken += len(rows)
                if taken > position:
                    yield [self.dataset.store_rows(self.dataset._positions(rows))], [taken]
                rows = []
        if rows and not self.cut.drop_last:
            yield [self.dataset.store_rows(self.dataset._positions(rows))], [taken + len(rows)]

    def _order_name(self) -> str:
        if self.sampler is not None:
            return type(self.sampler).__name__
        return "weighted" if self._cumulative is not None else self.order


@dataclass
class _Progress:
    """Where the newest iterator is; the loader's state after that iterator is gone."""

    epoch: int
    position: int
    finished: bool = False


class _Iteration:
    """One pass: takes what the feeder made, in order. Dropped, it ends its thread."""

    def __init__(self, loader: MemmapLoader, progress: _Progress) -> None:
        self._progress = progress
        self._steps = len(loader)
        self._ready: deque[tuple[Any, int]] = deque()
        self._source = _produce(loader, progress.epoch, progress.position)
        self._feed: _Feed | None = None
        if loader.prefetch:
            self._feed = _Feed(self._source, loader.prefetch)
            loader._feeds.add(self._feed)
            # the thread holds the feed, never this object: an abandoned iterator is collected and ends its thread
            weakref.finalize(self, self._feed.stop).atexit = False

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            group = self._feed.take() if self._feed else next(self._source, None)
            if group is None:
                self._progress.finished = True
                raise StopIteration
            self._ready.extend(group)
        item, self._progress.position = self._ready.popleft()
        return item() if isinstance(item, _DeviceBatch) else item

    def __len__(self) -> int:
        return self._steps


def _produce(loader: MemmapLoader, epoch: int, position: int) -> Iterator[list[tuple[Any, int]]]:
    """Yield groups of (what the loop gets, global position after it)."""
    copier = _CudaCopier(loader) if loader.device.type == "cuda" else None
    for groups, positions in loader.plan(epoch, position):
        batches = loader.host_batches(groups)
        made: list[Any] = []
        try:
            for batch in batches:
                made.append(copier.send(batch) if copier is not None else _finish(loader, batch))
        except Exception:
            # a transform that raises does not take the batches before it along
            yield list(zip(made, positions, strict=False))
            raise
        del batch, batches
        yield list(zip(made, positions, strict=True))


def _finish(loader: MemmapLoader, batch: ImageBatch) -> Any:
    if loader.transform is not None:
        with record_function("pixpack.transform"):
            return loader.transform(batch)
    return (batch.images, batch.targets) if loader.as_tuple else batch


class _Feed:
    """A bounded queue and the thread that fills it. Every wait ends when the other side stops, fails or is done."""

    def __init__(self, source: Iterator[Any], depth: int) -> None:
        self._changed = threading.Condition()
        self._groups: deque[Any] = deque()
        self._depth = depth
        self._stopped = self._done = False
        self._error: BaseException | None = None
        _live.add(self)
        self._thread = threading.Thread(target=self._fill, args=(source,), name="pixpack-feeder", daemon=True)
        self._thread.start()

    def take(self) -> Any:
        """Return the next group, or None at the end; raises here what the thread raised."""
        with self._changed:
            while not (self._groups or self._done or self._stopped):
                self._changed.wait()
            if self._groups:
                group = self._groups.popleft()
                self._changed.notify_all()
                return group
            error, self._error = self._error, None
        if error is not None:
            raise error
        return None

    def stop(self, *, wait: bool = False) -> None:
        """Tell the thread to end and drop what is queued."""
        with self._changed:
            self._stopped = True
            self._groups.clear()
            self._changed.notify_all()
        if wait and self._thread is not threading.current_thread():
            self._thread.join()

    def _fill(self, source: Iterator[Any]) -> None:
        try:
            for group in source:
                with self._changed:
                    self._groups.append(group)
                    del group
                    self._changed.notify_all()
                    while len(self._groups) >= self._depth and not self._stopped:
                        self._changed.wait()
                    if self._stopped:
                        return
        except BaseException as e:  # it belongs to the caller: `take` raises it
            self._error = e
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()


_live: weakref.WeakSet[_Feed] = weakref.WeakSet()


def _stop_all() -> None:
    """Join feeders before the interpreter tears torch down under them."""
    for feed in list(_live):
        feed.stop(wait=True)


# threading's own hook runs before daemon threads are frozen, atexit's only after
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]


class _CudaCopier:
    """Copies pinned batches to the device on a side stream. Lives in the feeder thread.

    Two hazards. A pinned buffer must not be refilled before its copy has ended: its lease is held until the copy's event
    has passed. A device batch must not be reused while the caller's stream may read it: `_DeviceBatch` records that stream.
    """

    def __init__(self, loader: MemmapLoader) -> None:
        self._loader = loader
        self._stream = torch.cuda.Stream(loader.device)
        self._in_flight: deque[tuple[torch.cuda.Event, ImageBatch]] = deque()

    def send(self, batch: ImageBatch) -> _DeviceBatch:
        """Start the copy of a pinned batch; returns at once, unless prefetch + 1 copies are under way already."""
        while self._in_flight and (self._in_flight[0][0].query() or len(self._in_flight) > self._loader.prefetch):
            event, _ = self._in_flight.popleft()
            event.synchronize()
        with record_function("pixpack.copy"), torch.cuda.device(self._loader.device), torch.cuda.stream(self._stream):
            sent = to_device_batch(batch, self._loader.device)
            event = torch.cuda.Event()
            event.record(self._stream)
        self._in_flight.append((event, batch))
        return _DeviceBatch(self._loader, sent, event)


class _DeviceBatch:
    """A batch whose copy may still run; called in the caller's thread, it orders the caller's stream after the copy."""

    def __init__(self, loader: MemmapLoader, batch: ImageBatch, event: torch.cuda.Event) -> None:
        self._loader, self._batch, self._event = loader, batch, event

    def __call__(self) -> Any:
        stream = torch.cuda.current_stream(self._loader.device)
        stream.wait_event(self._event)
        for tensor in _tensors(self._batch):
            tensor.record_stream(stream)
        return _finish(self._loader, self._batch)


def to_device_batch(batch: ImageBatch, device: torch.device) -> ImageBatch:
    """Copy each tensor of a batch without waiting; small ones are pinned on the way."""

    def send(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)

    return ImageBatch(
        pixels=send(batch.pixels),
        targets=send(batch.targets),
        content=None if batch.content is None else send(batch.content),
        extras=None if batch.extras is None else batch.extras.apply(send, device=device),
        rows=None if batch.rows is None else send(batch.rows),
        batch_size=batch.batch_size,
        device=device,
    )


def _tensors(batch: ImageBatch) -> list[Any]:
    found: list[Any] = [t for t in (batch.pixels, batch.targets, batch.content, batch.rows) if t is not None]
    return found if batch.extras is None else found + list(batch.extras.values(True, True))


def _chunked(rows_at: Callable[[int, int], Rows], count: int) -> Callable[[int, int], Rows]:
    """Compute an order a chunk at a time and cut batches from it."""
    held_start, held = 0, np.zeros(0, dtype=np.int64)

    def cut(start: int, stop: int) -> Rows:
        nonlocal held_start, held
        if not held_start <= start <= stop <= held_start + len(held):
            held_start, held = start, rows_at(start, min(count, max(stop, start + _ORDER_CHUNK)))
        return held[start - held_start : stop - held_start]

    return cut


def _yields_batches(sampler: Any) -> bool:
    return isinstance(sampler, torch.utils.data.BatchSampler) or hasattr(sampler, "batch_size")


def _checked_device(device: str | torch.device) -> torch.device:
    try:
        found = torch.device(device)
    except RuntimeError as e:
        raise ValueError(f"device is {device!r}: {str(e).splitlines()[0]}") from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device is {device!r}, but this torch sees no CUDA device. Use device='cpu'.")
    if str(found) == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected cpu or cuda.")
    return found


def _checked_shuffle(shuffle: bool | str, dataset: MemmapDataset) -> str:
    if shuffle is True:
        return "full" if _fits_in_memory(dataset) else "block"
    if shuffle is False:
        return "sequential"
    if shuffle not in ("full", "block"):
        raise ValueError(f"shuffle is {shuffle!r}, expected False, True, 'full' or 'block'.")
    return shuffle


def _checked_weights(weights: Any, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    values = np.asarray(weights, dtype=np.float64)
    if values.shape != (count,):
        raise ValueError(f"weights have the shape {list(values.shape)}, expected one a row: [{count}].")
    if not np.isfinite(values).all() or (values < 0).any() or values.sum() <= 0:
        raise ValueError("weights must be finite, 0 or more, and not all 0.")
    return np.cumsum(values)


def _checked_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}: give both, or neither.")
    if rank is not None and world_size is not None:
        return rank, world_size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _choose_residency(residency: str, dataset: MemmapDataset) -> tuple[str, str]:
    if residency == "auto":
        return "cache", "the mapped file, shared with every process that reads it"
    if residency not in ("cache", "ram"):
        raise ValueError(f"residency is {residency!r}, expected 'auto', 'cache' or 'ram'.")
    return residency, "as asked"


def _resident(dataset: MemmapDataset, residency: str) -> ImageBatch:
    """Return the store to gather from; "ram" copies it into memory that may use huge pages."""
    if residency != "ram":
        return dataset.store
    store = dataset.store
    pixels = torch.from_numpy(np.empty(tuple(store.pixels.shape), np.uint8))
    copied = gather(store.pixels, np.arange(len(pixels)), pixels)
    return ImageBatch(copied, store.targets, store.content, store.extras, batch_size=store.batch_size)


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the store's pixels fit in the memory that is free or can be freed."""
    available = math.inf
    with contextlib.suppress(OSError, StopIteration), open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return dataset.manifest.rows * dataset.manifest.row_bytes < 0.8 * available
