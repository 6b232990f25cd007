"""`MemmapLoader`: batches of a store in a given order, gathered ahead by one background thread, on the CPU or a CUDA device.

Who does what: the feeder thread (one an iterator) computes rows, gathers them into leased buffers, starts the copy to the
device on a side stream; the caller's thread waits for the queue, makes its own stream wait for the copy, and, on CUDA, runs
the transform. Nothing else is shared but the queue in `Feed`. Pixels are copied by the threads of `copying.py`, which all
loaders of the process share.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from reader import residency as residencies
from reader.ahead import ReadAhead
from reader.buffers import BufferPool, PinnedMemoryError
from reader.copying import Copies, Gatherer, is_run
from reader.dataset import MemmapDataset, batch_of
from reader.draws import in_epoch
from reader.feed import Begun, Claim, Feed, overlapped, paced, without_thread
from reader.manifest import PAGE_BYTES, PIXELS
from reader.order import BlockOrder, Cut, Rows, Steps, drawn, permuted, wrap
from reader.ragged import extents, gathered, pages_of, parted
from reader.rawfile import read_all
from reader.resident import Later, Resident, ResidentImages, free_bytes, in_windows, nbytes
from reader.stages import stage
from reader.store import ImageBatch, RaggedBatch
from reader.transfer import CudaCopier, DeviceBatch, pin

_log = logging.getLogger("reader")

# A state names its order by position in this list: append only.
_ORDERS = ("sequential", "full", "block", "weighted", "sampler")

# Batches smaller than this are gathered and queued in groups: handing one over costs about 30 us of thread switching,
# which a 38 MB batch does not feel and a 1 kB one would be made of.
GROUP_BYTES = 1 << 20
# shuffle="block": one read of 8 MiB is sequential to any disk; 32 of them mixed together are 1,700 rows of 224 x 224.
_BLOCK_BYTES = 8 << 20
_WINDOW_BLOCKS = 32
# Positions of the order computed at a time: 40 % faster for 65,536 than for 4,096, and 512 kB.
_ORDER_CHUNK = 1 << 16
# Read ahead from a disk at a time, twice in memory: a whole window of shuffle="block"; less where memory is short.
_AHEAD_BYTES = _WINDOW_BLOCKS * _BLOCK_BYTES
_AHEAD_SHARE = 1 / 16
_NO_WINDOW = 1 << 62
# On a device at once: the window that batches come from, two where one ends, the slices of the next, and those being joined.
_WINDOWS_HELD = 4

# Stores on devices, each for as long as a loader reads it there.
_residents: weakref.WeakValueDictionary[tuple[str, str, str], Resident | ResidentImages] = weakref.WeakValueDictionary()


class MemmapLoader:
    """Iterate over a MemmapDataset in batches.

    Args:
        dataset: a MemmapDataset or a subset of one.
        batch_size: rows a batch and rank.
        shuffle: False (store order), "full" (a permutation of all rows), "block" (blocks in random order, mixed in a
            window), True ("full" where the store fits in the memory of the machine or its cgroup, else "block"; `repr`
            and the log say which).
        seed: with the epoch, fixes the order.
        drop_last: leave out the last, short batch. Without it ranks share that batch evenly, and where it does not divide,
            wrap around to the epoch's first rows, so that all have the same number of steps.
        weights: float[N]; rows are drawn with replacement in proportion to them.
        sampler: any torch Sampler of rows, or BatchSampler of lists, arrays or tensors of rows, or a list of either; it then
            decides order and ranks. Batches that it gives are taken as they are, whatever batch_size says.
        device: where batches are put; "cuda" copies from pinned memory on a side stream.
        transform: called with each ImageBatch on the device; what it returns is what the loop gets. On the CPU it runs in
            the background thread, on CUDA in the caller's, on its stream.
        prefetch: batches gathered ahead; 0 gathers in the caller's thread.
        rank, world_size: default to torch.distributed's where that is initialised, else 0 and 1.
        residency: where rows are read from. "cache": the mapped file; an epoch that begins with most of it not in the page
            cache reads it as "disk" does. "ram": a copy in this process, in huge pages; pinned where batches go to CUDA.
            "disk": large reads ahead in the epoch's order, for stores larger than memory; shuffle "block" makes them
            sequential. "gpu": all rows in the device's memory, gathered there; of a store that does not fit, with shuffle
            "block", a window of blocks at a time. "auto" chooses by free memory (cgroup and device included), what is cached
            and the file system; the log says which and why.
        as_tuple: give (images uint8[B, C, H, W], targets) instead of an ImageBatch, as a dataset with as_tuple does.

    A batch is a copy that belongs to the caller: kept, it is never overwritten; dropped, its memory is reused. Each `iter`
    starts the next epoch, unless `set_epoch` or `load_state_dict` said otherwise. Not for several threads at once.

    Raises:
        ValueError: arguments that contradict each other or the dataset, one sentence each.

    Example:
        >>> loader = MemmapLoader(MemmapDataset(store_path), batch_size=8, shuffle=True)
        >>> for batch in loader:
        ...     images = batch.images  # uint8[8, 3, 32, 32]
    """

    # a DataLoader has this beside `sampler`, and Lightning's Trainer asks for both
    batch_sampler = None

    def __init__(
        self,
        dataset: MemmapDataset,
        batch_size: int,
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
        if dataset.transform is not None or dataset.target_transform is not None:
            raise ValueError(
                "the dataset has a transform of samples, which this loader does not call: give it transform= instead."
            )
        batch_size, seed = _whole_number("batch_size", batch_size), _whole_number("seed", seed)
        if (prefetch := _whole_number("prefetch", prefetch)) < 0:
            raise ValueError(f"prefetch is {prefetch!r}, expected 0 or more batches.")
        if (weights is not None) + (sampler is not None) + (shuffle is not False) > 1:
            raise ValueError("shuffle, weights and sampler each decide the order: give one of them.")
        if transform is not None and not callable(transform):
            raise ValueError(f"transform is {transform!r}, expected a function of a batch.")
        self.dataset = dataset
        self.batch_size = batch_size
        self.seed = seed
        self.transform = transform
        self.prefetch = prefetch
        self.as_tuple = as_tuple or dataset.as_tuple
        self.device = checked_device(device)
        self.sampler = _checked_sampler(sampler)
        self.order = _checked_shuffle(shuffle, dataset)
        if weights is not None or sampler is not None:
            self.order = "weighted" if sampler is None else "sampler"
        self._cumulative = None if weights is None else _checked_weights(weights, len(dataset))
        self._rows_id = _rows_id(dataset, self._cumulative)
        rank, world_size = _checked_ranks(rank, world_size)
        # a sampler may give more rows than there are, or fewer
        self.drop_last = drop_last
        self.cut = Cut(len(dataset), batch_size, drop_last and sampler is None, rank, world_size)
        room = _room(dataset, self.device, has_windows=self.order == "block" and world_size == 1 and dataset.is_whole)
        chosen = residencies.choose(residency, dataset.path / PIXELS, dataset.store.pixels.nbytes, room)
        _log.info("%s: order %s, residency %s: %s", dataset.path, self.order, chosen.name, chosen.reason)
        if self.order == "block" and _lies_by_class(dataset):
            _log.warning(
                "%s: its rows lie class by class, and shuffle='block' mixes only %d neighbouring blocks at a time: a batch"
                " then holds few classes. Pack with --shuffle SEED for well-mixed blocks.",
                dataset.path,
                _WINDOW_BLOCKS,
            )
        self.residency, self._host, self.in_windows = chosen.name, chosen.host, chosen.in_windows
        self._store = _copied(dataset) if chosen.name == "ram" else dataset.store
        self._row_shape = self._store.pixels.shape[1:]
        self._gatherer = Gatherer(self._store.pixels)
        # flat pixels are gathered into pinned buffers
        self._is_pinned = (
            not dataset.manifest.has_own_sizes
            and chosen.name == "ram"
            and self.device.type == "cuda"
            and self._pin(asked=residency == "ram")
        )
        is_resident = chosen.name == "gpu" and not chosen.in_windows
        self.resident = _resident(dataset, self.device, chosen.host) if is_resident else None
        self._next = (0, 0)
        self._progress = _Progress(0, 0, finished=True)
        self._feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        self._pool: BufferPool | None = None

    def __len__(self) -> int:
        return self.steps_left(0)

    def steps_left(self, position: int) -> int:
        """Return the steps from a position, as `state_dict` gives it, to the epoch's end (of a sampler: all steps)."""
        if self.sampler is None:
            return self.cut.steps(position)
        try:
            count = len(self.sampler)
        except TypeError:
            kind = type(self.sampler).__name__
            raise TypeError(f"the sampler, a {kind}, has no length, so the loader has none either.") from None
        if _yields_batches(self.sampler):
            return count
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __repr__(self) -> str:
        m = self.dataset.manifest
        up_to = "up to " if m.has_own_sizes else ""
        steps = len(self) if self.sampler is None or hasattr(self.sampler, "__len__") else "some"
        return (
            f"MemmapLoader({steps} steps of {up_to}uint8[{self.batch_size}, {m.height}, {m.width}, {m.channels}] on"
            f" {self.device}, order {self.order}, residency {self.residency})"
        )

    def __iter__(self) -> _Iteration:
        checked_device(self.device)  # this may be a process that was forked since
        epoch, position = self._next
        self._next = (epoch + 1, 0)
        self._progress = _Progress(epoch, position)
        items: Iterator[Any] = iter(())
        if self.sampler is not None:
            # torch's samplers draw their seed at the first item: here, in the caller's thread, not in the feeder's
            drawn_later = iter(self.sampler)
            items = itertools.chain(list(itertools.islice(drawn_later, 1)), drawn_later)
        return _Iteration(self, self._progress, items)

    def __reduce__(self) -> Any:
        raise TypeError(
            "a MemmapLoader has threads and buffers of its process, and cannot be pickled or copied. Send its dataset, and make"
            " a loader there."
        )

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
        """Make the next `iter` start this epoch.

        Raises:
            ValueError: epoch is not 0 or more.
        """
        if (epoch := _whole_number("epoch", epoch)) < 0:
            raise ValueError(f"epoch is {epoch}, expected 0 or more.")
        self._next = (epoch, 0)
        self._progress.finished = True

    def state_dict(self) -> dict[str, int]:
        """Return where the loop is, as a few integers: after the batch that the caller got last."""
        epoch, position = self._next
        if not self._progress.finished:
            epoch, position = self._progress.epoch, self._progress.position
            if self.sampler is None and not self.cut.steps(position):
                epoch, position = epoch + 1, 0
        order = _ORDERS.index(self.order)
        state = {"epoch": epoch, "position": position, "seed": self.seed, "order": order}
        return state | {"rows": len(self.dataset), "store": self._rows_id}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next `iter` go on from a state, also one taken with another batch_size or world size.

        Raises:
            ValueError: the state is of another store, subset, seed or order.
        """
        own = self.state_dict()
        if not isinstance(state, dict) or any(type(state.get(key)) is not int for key in own):
            raise ValueError(
                f"the state is {state!r}, expected what state_dict() gave: {', '.join(own)}, whole numbers."
            )
        for key, what in (
            ("rows", "number of rows"),
            ("store", "store, subset or weights"),
            ("seed", "seed"),
            ("order", "order"),
        ):
            if state.get(key) != own[key]:
                raise ValueError(
                    f"the state is of another {what}: it says {state.get(key)}, this loader has {own[key]}."
                )
        if state["epoch"] < 0 or (not 0 <= state["position"] <= self.cut.count and self.sampler is None):
            raise ValueError(
                f"the state is at epoch {state['epoch']}, position {state['position']} of {self.cut.count} rows."
            )
        self._next = (int(state["epoch"]), int(state["position"]))
        self._progress.finished = True

    # -- for _Iteration

    def plan(self, epoch: int, position: int, items: Iterator[Any]) -> Iterator[Steps]:
        """Yield the steps from a global position on, in groups; items are the sampler's."""
        if self.sampler is not None:
            yield from self._sampled(items, position)
            return
        rows_at = _chunked(self._rows_at(epoch), self.cut.count)
        group = max(1, GROUP_BYTES // max(1, self.dataset.manifest.row_bytes * self.batch_size))
        left = self.cut.steps(position)
        while left:
            steps = Steps([], [], [])
            for _ in range(min(group, left)):
                start, stop = self.cut.span(position)
                steps.batches.append(self.dataset.store_rows(wrap(rows_at, self.cut.count, start, stop)))
                position = self.cut.next_position(position)
                steps.starts.append(start)
                steps.positions.append(position)
            left -= len(steps.batches)
            yield steps

    def read_ahead(self, epoch: int, steps: Iterator[Steps]) -> ReadAhead | None:
        """Read the steps' rows ahead from the disk, or return None: they are gathered from memory."""
        if self._host == "ram":
            return None
        path, pixels = self.dataset.opened("pixels"), self.dataset.store.pixels
        if self._host == "cache" and not residencies.is_cold(path, pixels.nbytes):
            return None
        manifest, store = self.dataset.manifest, self.dataset.store
        room, row_bytes = residencies.available_bytes(), PAGE_BYTES if manifest.has_own_sizes else manifest.row_bytes
        _log.info("%s: epoch %d reads ahead from the disk", self.dataset.path, epoch)
        return ReadAhead(
            path,
            row_bytes,
            steps,
            chunk_rows=int(min(_AHEAD_BYTES, room * _AHEAD_SHARE)) // row_bytes,
            window_end=self._window_end(epoch),
            past_cache=self._host == "disk",
            units=(lambda rows: pages_of(*extents(store, rows))[0]) if manifest.has_own_sizes else lambda rows: rows,
        )

    def begin_batches(self, groups: list[Rows], ahead: ReadAhead | None) -> HostBatches:
        """Begin to gather a group of batches into one leased buffer, and cut it."""
        rows = groups[0] if len(groups) == 1 else np.concatenate(groups)
        if self.dataset.manifest.has_own_sizes:
            ragged = self._ragged_batch(rows, ahead)
            return HostBatches([ragged] if len(groups) == 1 else parted(ragged, [len(g) for g in groups]))
        with stage("gather"):
            # the pixels may come from elsewhere, targets and the like are mapped in any case
            self.dataset.check_files()
            pixels, copies = self._begin_pixels(rows, ahead)
            batch = batch_of(self._store, rows, pixels)
        return HostBatches([batch] if len(groups) == 1 else list(batch.split([len(g) for g in groups])), copies)

    def _ragged_batch(self, rows: Rows, ahead: ReadAhead | None) -> RaggedBatch:
        with stage("gather"):
            self.dataset.check_files()
            # a little room spares most of the batches that follow a fresh buffer
            return gathered(
                self._store,
                rows,
                lambda need: self._buffers(need, room=need // 4).lease()[:need],
                None if ahead is None else lambda _, pages: ahead.take(pages),
            )

    def _begin_pixels(self, rows: Rows, ahead: ReadAhead | None) -> tuple[torch.Tensor, Copies | None]:
        if self._is_pinned and is_run(rows) and len(rows):
            return self._store.pixels[int(rows[0]) : int(rows[-1]) + 1], None
        need = len(rows) * self._row_shape.numel()
        pixels = self._buffers(need).lease(need).view(len(rows), *self._row_shape)
        if ahead is not None:
            ahead.take(pixels)
            return pixels, None
        return pixels, self._gatherer.begin(rows, pixels)

    def _pin(self, *, asked: bool) -> bool:
        """Pin the copy in memory, for as long as this loader lives; what was not asked for may be refused."""
        try:
            unpin = pin(self._store.pixels, self.device)
        except PinnedMemoryError as e:
            if asked:
                raise
            _log.warning("%s: %s Batches are copied into pinned memory first.", self.dataset.path, e)
            return False
        weakref.finalize(self, unpin).atexit = False
        return True

    def _buffers(self, need: int, room: int = 0) -> BufferPool:
        pool, pinned = self._pool, self.device if self.device.type == "cuda" else None
        if pool is None or pool.size_bytes < need:
            pool = self._pool = BufferPool(need + room, keep=self.prefetch + 2, pinned=pinned)
        return pool

    def _rows_at(self, epoch: int) -> Callable[[int, int], Rows]:
        count = self.cut.count
        if self._cumulative is not None:
            cumulative = self._cumulative
            return lambda start, stop: drawn(cumulative, start, stop, seed=self.seed, epoch=epoch)
        if self.order == "full":
            return lambda start, stop: permuted(count, start, stop, seed=self.seed, epoch=epoch)
        if self.order == "block":
            return self.block_order(epoch).rows
        return lambda start, stop: np.arange(start, stop, dtype=np.int64)

    def _window_end(self, epoch: int) -> Callable[[int], int]:
        # slices are read in the windows' order already
        if self.order != "block" or self.in_windows:
            return lambda _: _NO_WINDOW
        return self.block_order(epoch).window_end

    def block_order(self, epoch: int) -> BlockOrder:
        """Return the order of shuffle="block"."""
        block = max(1, _BLOCK_BYTES // self.dataset.manifest.row_bytes)
        return BlockOrder(self.cut.count, block, _WINDOW_BLOCKS, seed=self.seed, epoch=epoch)

    def _sampled(self, items: Iterator[Any], position: int) -> Iterator[Steps]:
        """Follow a torch Sampler; a resumed epoch skips what was taken, since only the sampler knows its order."""
        taken, rows = 0, list[int]()
        for item in items:
            found, is_batch = _sampled_rows(item)
            rows += found
            if rows and (is_batch or len(rows) == self.batch_size):
                taken += len(rows)
                if taken > position:
                    yield Steps([self.dataset.store_rows(self.dataset._positions(rows))], [0], [taken])
                rows = []
        if rows and not self.drop_last and taken + len(rows) > position:
            yield Steps([self.dataset.store_rows(self.dataset._positions(rows))], [0], [taken + len(rows)])


def checked_device(device: str | torch.device) -> torch.device:
    """Return the device that batches are put on; "cuda" is the current one.

    Raises:
        ValueError: there is no such device, or it is of another kind.
    """
    try:
        found = torch.device(device)
    except TypeError:
        raise ValueError(f"device is {device!r}, expected cpu or cuda.") from None
    except RuntimeError as e:
        raise ValueError(f"device is {device!r}: {str(e).splitlines()[0]}") from None
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, expected cpu or cuda.")
    return found if found.type == "cpu" else _checked_cuda(found)


def _checked_cuda(device: torch.device) -> torch.device:
    if torch.cuda._is_in_bad_fork():
        raise ValueError(
            f"device is '{device}', but this process was forked after CUDA had been started, which CUDA does not survive."
            " Start processes with multiprocessing's method 'spawn'."
        )
    if not torch.cuda.is_available():
        raise ValueError(f"device is '{device}', but this torch sees no CUDA device. Use device='cpu'.")
    index, count = torch.cuda.current_device() if device.index is None else device.index, torch.cuda.device_count()
    if index >= count:
        raise ValueError(f"device is '{device}', but this torch sees {count} CUDA devices, the first being 'cuda:0'.")
    return torch.device("cuda", index)


# What the loop gets, each with the global position after it.
Group = list[tuple[Any, int]]


class HostBatches:
    """Batches whose pixels may still be copied: iterating waits for them, and lets go of each batch as it is given."""

    def __init__(self, batches: list[Any], copies: Copies | None = None) -> None:
        self._batches, self._copies = deque(batches), copies

    @property
    def is_complete(self) -> bool:
        """Say whether there is nothing to wait for."""
        return self._copies is None

    def __iter__(self) -> Iterator[Any]:
        if self._copies is not None:
            with stage("gather"):
                self._copies.wait()
        while self._batches:
            yield self._batches.popleft()


@dataclass
class _Progress:
    """Where the newest iterator is; the loader's state after that iterator is gone."""

    epoch: int
    position: int
    finished: bool = False


class _Iteration:
    """One pass: takes what the feeder made, in order. Dropped, it ends its thread."""

    def __init__(self, loader: MemmapLoader, progress: _Progress, items: Iterator[Any]) -> None:
        self._loader, self._progress = loader, progress
        self._begin = progress.position
        self._ready: deque[tuple[Any, int]] = deque()
        self._failed = False
        source = functools.partial(_produce, loader, progress.epoch, progress.position, items)
        self._feed: Feed | None = None
        self._source: Iterator[Group] = iter(())
        if not loader.prefetch:
            self._source = source(without_thread)
        else:
            self._feed = Feed(source, loader.prefetch)
            loader._feeds.add(self._feed)
            # the thread holds the feed, never this object: an abandoned iterator is collected and ends its thread
            weakref.finalize(self, self._feed.stop).atexit = False

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        if not self._ready:
            try:
                group = self._feed.take() if self._feed else next(self._source, None)
            except BaseException as e:
                # Ctrl-C while it waits for the thread does not end the epoch
                self._failed = isinstance(e, Exception) or self._feed is None or not self._feed.is_alive
                raise
            if group is None:
                # after an error the epoch is not done: its state stays at the batch that could not be made
                self._progress.finished = not self._failed
                raise StopIteration
            self._ready.extend(group)
        item, position = self._ready[0]
        if isinstance(item, DeviceBatch | Later):
            try:
                item = _finish(self._loader, item(), self._progress.epoch)
            except Exception:
                self._end()
                raise
        # only now: what Ctrl-C keeps from being made is made again
        self._ready.popleft()
        self._progress.position = position
        return item

    def __len__(self) -> int:
        return self._loader.steps_left(self._begin)

    def _end(self) -> None:
        """Give nothing more, as after an error in the thread."""
        self._failed = True
        self._ready.clear()
        if self._feed:
            self._feed.stop()
        self._feed, self._source = None, iter(())

    # -- for bench_ways, which times from a full queue to a full queue

    @property
    def holds_batches(self) -> bool:
        """Say whether batches of a group that was taken are left."""
        return bool(self._ready)

    @property
    def is_idle(self) -> bool:
        """Say whether all that may be prefetched is."""
        return self._feed is None or self._feed.is_idle


def _produce(loader: MemmapLoader, epoch: int, position: int, items: Iterator[Any], claim: Claim) -> Iterator[Group]:
    """Yield groups of (what the loop gets, global position after it).

    A generator that waits at a yield keeps its locals alive: none of them may hold a batch there, or one more buffer than
    needed is in use.
    """
    plan = loader.plan(epoch, position, items)
    if loader.resident is not None:
        later = loader.resident.later
        yield from paced(([(later(r), p) for r, p in zip(s.batches, s.positions, strict=True)] for s in plan), claim)
        return
    # slots in all: of the copies under way, depth + 1, of the batch that is sent next, and of the one begun behind it
    depth = max(0, loader.prefetch - 1)
    copier = CudaCopier(loader.device, depth=depth) if loader.device.type == "cuda" else None
    try:
        if loader.in_windows:
            order = loader.block_order(epoch)
            images = loader.dataset.store if loader.dataset.manifest.has_own_sizes else None
            made = in_windows(plan, order, position, lambda s: _sent(loader, epoch, s, copier), images)
            yield from paced(made, claim)
        else:
            yield from overlapped(_begun(loader, epoch, plan, copier), claim)
    finally:
        if copier is not None:
            copier.drain()


def _begun(loader: MemmapLoader, epoch: int, plan: Iterator[Steps], copier: CudaCopier | None) -> Iterator[Begun]:
    ahead = loader.read_ahead(epoch, plan)
    try:
        for steps in plan if ahead is None else ahead:
            batches = loader.begin_batches(steps.batches, ahead)
            is_complete = batches.is_complete
            groups = _finished(loader, epoch, batches, steps.positions, copier)
            del batches
            yield Begun(groups, is_complete)
            del groups
    finally:
        if ahead is not None:
            ahead.close()


def _finished(
    loader: MemmapLoader, epoch: int, begun: HostBatches, positions: list[int], copier: CudaCopier | None
) -> Iterator[Group]:
    """Wait for a group's pixels and give it, ready for the caller or on its way to the device."""
    made: list[Any] = []
    try:
        for batch in begun:
            made.append(copier.send(batch) if copier is not None else _finish(loader, batch, epoch))
    except Exception:
        # a transform that raises does not take the batches before it along
        if made:
            yield _emptied(made, positions)
        raise
    del batch
    yield _emptied(made, positions)


def _sent(
    loader: MemmapLoader, epoch: int, slices: Iterator[Steps], copier: CudaCopier | None
) -> Iterator[ImageBatch | DeviceBatch]:
    ahead = loader.read_ahead(epoch, slices)
    try:
        for steps in slices if ahead is None else ahead:
            for batch in loader.begin_batches(steps.batches, ahead):
                yield copier.send(batch) if copier is not None else batch
    finally:
        if ahead is not None:
            ahead.close()


def _emptied(made: list[Any], positions: list[int]) -> Group:
    pairs = list(zip(made, positions, strict=False))
    made.clear()
    return pairs


def _finish(loader: MemmapLoader, batch: Any, epoch: int) -> Any:
    """Run the transform, which may ask for the epoch, and give the caller the form that it wants."""
    made: Any = batch
    if loader.transform is not None:
        with stage("transform"), in_epoch(epoch):
            made = loader.transform(batch)
    return (made.images, made.targets) if loader.as_tuple and isinstance(made, ImageBatch | RaggedBatch) else made


def _chunked(rows_at: Callable[[int, int], Rows], count: int) -> Callable[[int, int], Rows]:
    """Compute an order a chunk at a time and cut batches from it."""
    held_start, held = 0, np.zeros(0, dtype=np.int64)

    def cut(start: int, stop: int) -> Rows:
        nonlocal held_start, held
        if not held_start <= start <= stop <= held_start + len(held):
            held_start, held = start, rows_at(start, min(count, max(stop, start + _ORDER_CHUNK)))
        return held[start - held_start : stop - held_start]

    return cut


def _rows_id(dataset: MemmapDataset, cumulative: np.ndarray[Any, Any] | None) -> int:
    """Return a number that differs where the same positions would be other rows."""
    known = int(dataset.manifest.digest.removeprefix("sha256:")[:12], 16)
    for array in (dataset.store_rows(np.arange(len(dataset))) if not dataset.is_whole else None, cumulative):
        known = known if array is None else known ^ zlib.crc32(array.tobytes())
    return known


def _checked_sampler(sampler: Any) -> Any:
    """Refuse what cannot be iterated over, or only once: each epoch begins anew."""
    once = isinstance(sampler, Iterator) and not isinstance(sampler, torch.utils.data.Sampler)
    if sampler is None or (hasattr(sampler, "__iter__") and not once):
        return sampler
    found = f"{type(sampler).__name__}, which gives its rows once only" if once else type(sampler).__name__
    raise ValueError(f"sampler is a {found}, expected a torch Sampler or BatchSampler, or a list of rows.")


def _sampled_rows(item: Any) -> tuple[list[int], bool]:
    """Return the rows that a sampler gave at once, and whether they are a batch: 3 -> [3], False; [3, 1] -> [3, 1], True.

    Raises:
        ValueError: what it gave are no rows.
    """
    # arrays and tensors too; those without a dimension are one row
    found = item.tolist() if getattr(item, "ndim", 0) else item
    is_batch = isinstance(found, list | tuple | range)
    try:
        return ([operator.index(row) for row in found] if is_batch else [operator.index(found)]), is_batch
    except TypeError:
        given = " ".join(repr(item).split())
        raise ValueError(f"the sampler gave {given}, expected a row or a list of rows, whole numbers.") from None


def _yields_batches(sampler: Any) -> bool:
    if isinstance(sampler, list | tuple) and sampler:
        return _sampled_rows(sampler[0])[1]
    return isinstance(sampler, torch.utils.data.BatchSampler) or hasattr(sampler, "batch_size")


def _checked_shuffle(shuffle: bool | str, dataset: MemmapDataset) -> str:
    if shuffle is True:
        return "full" if _fits_in_memory(dataset) else "block"
    if shuffle is False:
        return "sequential"
    if shuffle not in ("full", "block"):
        raise ValueError(f"shuffle is {shuffle!r}, expected False, True, 'full' or 'block'.")
    return shuffle


def _checked_weights(weights: Any, count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        values = np.asarray(weights.detach().cpu() if torch.is_tensor(weights) else weights, dtype=np.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"weights are a {type(weights).__name__}, expected one number a row: [{count}].") from None
    if values.shape != (count,):
        raise ValueError(f"weights have the shape {list(values.shape)}, expected one a row: [{count}].")
    with np.errstate(over="ignore"):
        cumulative = np.cumsum(values)
    if count and (not np.isfinite(cumulative[-1]) or (values < 0).any() or cumulative[-1] == 0):
        raise ValueError("weights must be finite, 0 or more, and not all 0; their sum must be finite too.")
    return cumulative


def _whole_number(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is {value!r}, expected a whole number.") from None


def _checked_ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if (rank is None) != (world_size is None):
        raise ValueError(f"rank is {rank} and world_size {world_size}: give both, or neither.")
    if rank is not None and world_size is not None:
        return _whole_number("rank", rank), _whole_number("world_size", world_size)
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _copied(dataset: MemmapDataset) -> Any:
    """Copy the store's pixels into memory that may use huge pages; the rest stays mapped."""
    store = dataset.store
    row_bytes = PAGE_BYTES if dataset.manifest.has_own_sizes else dataset.manifest.row_bytes
    if not residencies.can_read_ahead():
        pixels = store.pixels.clone()
    else:
        path = dataset.opened("pixels")
        past_cache = residencies.is_cold(path, store.pixels.nbytes)
        count = store.pixels.nbytes // row_bytes
        pixels = read_all(path, row_bytes, count, past_cache=past_cache).view(store.pixels.shape)
    huge = residencies.huge_page_bytes(pixels.data_ptr(), pixels.nbytes)
    got = "the system does not tell in which pages" if huge is None else f"{huge / 1e6:.1f} MB of it in huge pages"
    _log.info("%s: %.1f MB copied into memory, %s", dataset.path, pixels.nbytes / 1e6, got)
    if dataset.manifest.has_own_sizes:
        rest = {name: getattr(store, name) for name in ("targets", "offsets", "shapes", "mask_offsets", "extras")}
        return RaggedBatch(pixels=pixels, **rest, batch_size=[])
    return ImageBatch(pixels, store.targets, store.content, store.extras, batch_size=store.batch_size)


def _resident(dataset: MemmapDataset, device: torch.device, host: str) -> Resident | ResidentImages:
    """Return the store on a device, the same for all loaders of this process that read it there."""
    key = _resident_key(dataset, device)
    found = _residents.get(key)
    if found is None and dataset.manifest.has_own_sizes:
        dataset.check_files()
        found = _residents[key] = ResidentImages(dataset.store, device)
    elif found is None:
        rows = max(1, _BLOCK_BYTES // dataset.manifest.row_bytes)
        with MemmapLoader(dataset.whole(), rows, device=device, residency=host, rank=0, world_size=1) as batches:
            found = _residents[key] = Resident(dataset.store, batches, device)
    return found


def _resident_key(dataset: MemmapDataset, device: torch.device) -> tuple[str, str, str]:
    return str(dataset.path), dataset.manifest.digest, str(device)


def _room(dataset: MemmapDataset, device: torch.device, *, has_windows: bool) -> residencies.Room | None:
    """Return what there is on a device and what is needed there; None for the CPU."""
    free = free_bytes(device)
    if free is None:
        return None
    row_bytes = dataset.manifest.row_bytes
    block = max(_BLOCK_BYTES, row_bytes)
    if dataset.manifest.has_own_sizes:  # pages that two rows share come twice
        block += max(1, _BLOCK_BYTES // row_bytes) * PAGE_BYTES
    windows = _WINDOWS_HELD * _WINDOW_BLOCKS * block if has_windows else 0
    needed = 0 if _resident_key(dataset, device) in _residents else nbytes(dataset.store)
    return residencies.Room(free, needed, windows)


def _lies_by_class(dataset: MemmapDataset) -> bool:
    """Say whether neighbouring rows have one class far more often than rows at large, by a look at some."""
    count, targets = len(dataset), dataset.store.targets
    if dataset.manifest.target_kind != "class" or count <= _BLOCK_BYTES * _WINDOW_BLOCKS // dataset.manifest.row_bytes:
        return False
    first = np.linspace(0, count - 2, 256).astype(np.int64)
    seen, following = (targets[torch.from_numpy(dataset.store_rows(first + n))] for n in (0, 1))
    by_chance = (torch.unique(seen, return_counts=True)[1] / len(seen)).square().sum()
    return bool((seen == following).float().mean() > 0.9 > 2 * by_chance)


def _fits_in_memory(dataset: MemmapDataset) -> bool:
    """Say whether the pixels fit in this machine's memory, or its cgroup's share; not in what is free just now, since every
    rank of a cluster of equal machines must come to the same answer."""
    return dataset.store.pixels.nbytes < 0.7 * residencies.memory_bytes()
