"""Rows in a device's memory: a whole store, or windows of blocks that follow each other; batches are gathered there.

Knows no order but what it is given, and nothing of CUDA but that the caller's thread, on its own stream, does all work on the
device; `on_any_stream` is for callers who change that stream. All of it runs on a CPU as well.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from reader.device.transfer import DeviceBatch, on_any_stream, recorded
from reader.format.manifest import PAGE_BYTES
from reader.memory.gather import as_words
from reader.memory.pages import extents, pages_of
from reader.memory.slots import Slots, count_of
from reader.order import BlockOrder
from reader.profiling import stage
from reader.rows import Rows, Steps
from reader.store import ImageBatch, RaggedBatch

# What a store with rows of sizes of their own has beside its pixels.
_BESIDE_PIXELS = ("targets", "offsets", "shapes", "extras", "mask_offsets")
# Mapped memory is copied to a device so much at a time: page faults and copies then take turns.
_PIECE_BYTES = 64 << 20

# Of numbers of rows or pages, so many are copied without waiting as they are; for more, CUDA may wait for all that was launched
# (CUDA Programming Guide, "Concurrent Execution between Host and Device").
_UNPINNED_BYTES = 64 << 10

# A slice on its way: a batch that is on the device already, or one whose copy may still run.
Sent = ImageBatch | DeviceBatch

Part = TypeVar("Part")


class Resident:
    """Rows of a store on a device, each once; those that are added later lie in memory of their own."""

    def __init__(self, store: ImageBatch, device: torch.device) -> None:
        """store: all of it, on the host; nothing is on the device yet."""
        self._host, self._device = store, device
        self.slots = Slots(len(store))
        self._parts = _Parts[ImageBatch]()

    def missing_bytes(self, rows: Rows | None) -> int:
        """Return what adding these rows, sorted and each once, would take; None: all."""
        return count_of(self.slots.missing(rows), self.slots.count) * (nbytes(self._host) // max(1, self.slots.count))

    def add(self, missing: Rows | None, batches: Iterable[ImageBatch]) -> None:
        """Add rows that `slots.missing` returned; batches are all of them in order, on the device.

        Raises:
            torch.OutOfMemoryError: the device has no room for them.
        """
        part, start = _empty_like(self._host, count_of(missing, self.slots.count), self._device), 0
        for batch in batches:
            for there, come in zip(_leaves(part), _leaves(batch), strict=True):
                there[start : start + len(come)].copy_(come)
            start += len(batch)
        if missing is not None:
            assert part.rows is not None
            part.rows.copy_(torch.from_numpy(missing))
        _settle(self._device)
        self._parts.add(part, self.slots.filled)
        self.slots.add(missing)

    def rows(self) -> ImageBatch:
        """Return all rows that are there, in the order of their slots, for the caller's thread."""
        parts = [_held(part) for part in self._parts.all]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def gather(self, rows: Rows) -> ImageBatch:
        """Gather rows; for the caller's thread."""
        slots = self.slots.of(rows)
        found = [(gathered(_held(part), slots[at] - first), at) for part, first, at in self._parts.of(slots)]
        if len(found) == 1:
            return found[0][0]
        # [3, 0, 2, 1]: row 0 of the batch lies at 3 of what was joined
        return gathered(_joined([batch for batch, _ in found]), np.argsort(np.concatenate([at for _, at in found])))

    def later(self, rows: Rows) -> Later:
        """Return the batch of these rows, to be gathered by who calls it."""
        return Later([(self, rows)])


class ResidentImages:
    """Rows of a store on a device, each with a size of its own; held and gathered by the pages that they lie in."""

    def __init__(self, store: RaggedBatch, device: torch.device) -> None:
        """store: all of it, on the host; nothing is on the device yet."""
        self._host, self._device = store, device
        self._pages = store.pixels.view(-1, PAGE_BYTES)
        self.slots = Slots(len(self._pages))
        self._parts = _Parts[torch.Tensor]()
        self._store: RaggedBatch | None = None

    def missing_bytes(self, pages: Rows | None) -> int:
        """Return what adding these pages, sorted and each once, would take; None: all."""
        beside = nbytes(self._host) - self._host.pixels.nbytes if self._store is None else 0
        return count_of(self.slots.missing(pages), self.slots.count) * PAGE_BYTES + beside

    def add(self, pages: Rows | None) -> None:
        """Add those of these pages, sorted and each once, that are not there yet, from the store's mapping; None: all.

        Raises:
            torch.OutOfMemoryError: the device has no room for it.
        """
        missing = self.slots.missing(pages)
        if missing is not None and not len(missing):
            return
        if self._store is None:
            rest: dict[str, Any] = {name: getattr(self._host, name) for name in _BESIDE_PIXELS}
            moved: dict[str, Any] = {n: value if value is None else value.to(self._device) for n, value in rest.items()}
            self._store = RaggedBatch(
                pixels=self._host.pixels.new_empty(0, device=self._device), **moved, batch_size=[]
            )
        part = torch.empty((count_of(missing, self.slots.count), PAGE_BYTES), dtype=torch.uint8, device=self._device)
        most = max(1, _PIECE_BYTES // PAGE_BYTES)
        for start in range(0, len(part), most):
            stop = min(start + most, len(part))
            some = self._pages[start:stop] if missing is None else self._pages[torch.from_numpy(missing[start:stop])]
            part[start:stop].copy_(some)
        _settle(self._device)
        self._parts.add(part, self.slots.filled)
        self.slots.add(missing)

    def later(self, rows: Rows) -> Later:
        """Return the batch of these rows, to be gathered by who calls it."""
        return Later([(self, rows)])

    def gather(self, rows: Rows) -> RaggedBatch:
        """Gather rows; where they lie is asked of the host, which knows it too."""
        assert self._store is not None
        pages, begins = pages_of(*extents(self._host, rows))
        slots = self.slots.of(pages)
        pixels = self._pages.new_empty((len(pages), PAGE_BYTES), device=self._device)
        for part, first, at in self._parts.of(slots):
            is_all = len(at) == len(pages)
            into = pixels if is_all else pixels.new_empty((len(at), PAGE_BYTES))
            words, found = as_words(_recorded_if_cuda(part), into)
            torch.index_select(words, 0, _on(self._device, slots[at] - first), out=found)
            if not is_all:
                pixels[_on(self._device, at)] = into
        return _held(self._store).chosen(rows, pixels.view(-1), _on(self._device, begins))


class _Parts(Generic[Part]):
    """What was added to a copy, one thing after the other, each with its first slot."""

    def __init__(self) -> None:
        self.all: list[Part] = []
        self._firsts: list[int] = []

    def add(self, part: Part, first: int) -> None:
        self.all.append(part)
        self._firsts.append(first)

    def of(self, slots: Rows) -> Iterator[tuple[Part, int, Rows]]:
        """Yield each part that holds some of the slots, its first slot, and which of the slots those are."""
        which = np.searchsorted(self._firsts, slots, side="right") - 1
        for n in np.unique(which).tolist() or [0]:
            yield self.all[n], self._firsts[n], np.flatnonzero(which == n)


class Window:
    """Slices of a store, sent to a device one by one and there laid side by side.

    images: the store on the host, where its rows have sizes of their own: it tells where they will lie.
    """

    def __init__(self, slices: list[tuple[int, int]], images: RaggedBatch | None = None) -> None:
        bounds = np.array(sorted(slices))
        self._starts, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._offsets = np.cumsum(counts) - counts
        # in file order: what reads them ahead then reads forwards
        self.slices = [(int(start), int(stop)) for start, stop in bounds]
        self.sent: list[Sent] = []
        self._joined: Callable[[], Any] | None = None
        self._images = images

    def rows(self) -> Any:
        """Return the slices as one; for the caller's thread, which may be on another stream each time."""
        if self._joined is None:
            self._joined = on_any_stream(_joined([s() if isinstance(s, DeviceBatch) else s for s in self.sent]))
            self.sent.clear()
        return self._joined()

    def gather(self, slots: Rows) -> Any:
        """Gather rows by where they lie in it; for the caller's thread."""
        if self._images is None:
            return gathered(self.rows(), slots)
        offsets, sizes = self._places
        return gathered_images(self.rows(), slots, offsets[slots], sizes[slots])

    @functools.cached_property
    def _places(self) -> tuple[Rows, Rows]:
        """Where rows begin once the slices, each gathered by its pages, lie side by side, and their bytes."""
        begins, sizes, before = [], [], 0
        for start, stop in self.slices:
            assert self._images is not None
            offsets, size = extents(self._images, np.arange(start, stop))
            pages, begin = pages_of(offsets, size)
            begins.append(before + begin)
            sizes.append(size)
            before += len(pages) * PAGE_BYTES
        return np.concatenate(begins), np.concatenate(sizes)

    @property
    def missing(self) -> int:
        """Slices that were not sent yet."""
        return 0 if self._joined is not None else len(self.slices) - len(self.sent)

    def take(self, sent: Iterator[Sent], count: int) -> None:
        """Take so many slices of what is sent."""
        self.sent.extend(itertools.islice(sent, count))

    def slots(self, rows: Rows) -> Rows:
        """Return where rows of the store lie in it: of the slices [4, 8) and [20, 24), row 21 is at 5."""
        found = np.searchsorted(self._starts, rows, side="right") - 1
        return self._offsets[found] + rows - self._starts[found]


@dataclass(frozen=True)
class Later:
    """A batch that is gathered when the caller asks for it, on its stream: slots of one window, or of two that meet in it."""

    pieces: Sequence[tuple[Resident | ResidentImages | Window, Rows]]

    def __call__(self) -> Any:
        """Return the batch: memory of its own."""
        with stage("gather"):
            made = [holder.gather(slots) for holder, slots in self.pieces]
            return made[0] if len(made) == 1 else _joined(made)


def gathered(store: ImageBatch, slots: Rows) -> ImageBatch:
    """Gather rows of what lies on a device there."""
    index = _on(store.pixels.device, slots)
    pixels = store.pixels.new_empty((len(index), *store.pixels.shape[1:]))
    words, into = as_words(store.pixels, pixels)
    torch.index_select(words, 0, index, out=into)
    return ImageBatch(
        pixels=pixels,
        targets=store.targets.index_select(0, index),
        content=None if store.content is None else store.content.index_select(0, index),
        extras=None if store.extras is None else store.extras[index],
        rows=None if store.rows is None else store.rows.index_select(0, index),
        batch_size=[len(index)],
        device=store.pixels.device,
    )


def gathered_images(store: RaggedBatch, rows: Rows, offsets: Rows, sizes: Rows) -> RaggedBatch:
    """Gather rows with sizes of their own on the device where they lie.

    offsets, sizes: int64[B] of the rows' bytes, which the host knows too: so no device is waited for.
    """
    device = store.pixels.device
    pages, begins = pages_of(offsets, sizes)
    index, new_offsets = _on(device, pages), _on(device, begins)
    pixels = store.pixels.new_empty(len(pages), PAGE_BYTES)
    words, into = as_words(store.pixels.view(-1, PAGE_BYTES), pixels)
    torch.index_select(words, 0, index, out=into)
    return store.chosen(rows, pixels.view(-1), new_offsets)


def in_windows(
    plan: Iterator[Steps],
    order: BlockOrder,
    position: int,
    send: Callable[[Iterator[Steps]], Iterator[Sent]],
    images: RaggedBatch | None = None,
) -> Iterator[list[tuple[Later, int, int]]]:
    """Yield groups of the plan's batches, each with the positions of its first row and after it.

    The next window's slices travel meanwhile.

    order: the block order that the plan follows from a position on. send: reads slices, given as steps, and sends them.
    images: as of `Window`.
    """
    windows = deque(_windows(order, position, images))
    sent = send(_slices([window for _, window in windows]))
    for steps in plan:
        group = []
        for rows, start, after in zip(steps.batches, steps.starts, steps.positions, strict=True):
            pieces: list[tuple[Resident | Window, Rows]] = []
            first = start
            end, window = windows[0]
            window.take(sent, window.missing)
            if len(windows) > 1:
                # evenly over this window's steps: each then waits for few slices, and the next window's first for none
                coming, steps_left = windows[1][1], -(-(end - start) // len(rows))
                coming.take(sent, -(-coming.missing // steps_left))
            while len(rows):
                end, window = windows[0]
                window.take(sent, window.missing)
                pieces.append((window, window.slots(rows[: end - start])))
                rows, start = rows[end - start :], min(end, start + len(rows))
                if start == end:
                    windows.popleft()
            group.append((Later(pieces), first, after))
        yield group


def free_bytes(device: torch.device) -> int | None:
    """Return the free memory of a CUDA device; None for the CPU. What torch keeps for later tensors does not count as free."""
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None


def total_bytes(device: torch.device) -> int:
    """Return the memory that a CUDA device has, free or not."""
    return torch.cuda.mem_get_info(device)[1]


def nbytes(store: ImageBatch | RaggedBatch) -> int:
    """Return the bytes that a whole store takes on a device, row numbers included."""
    if isinstance(store, RaggedBatch):
        return sum(tensor.nbytes for tensor in store.values(True, True))
    return sum(tensor.nbytes for tensor in _leaves(store)) + 8 * len(store)


def _on(device: torch.device, numbers: Rows) -> torch.Tensor:
    """Send numbers of rows or pages to a device, without waiting for it."""
    tensor = torch.from_numpy(numbers)
    if device.type == "cuda" and tensor.nbytes > _UNPINNED_BYTES:
        with torch.cuda.device(device):  # to pin makes a context on the device that is current
            tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def _windows(order: BlockOrder, position: int, images: RaggedBatch | None) -> Iterator[tuple[int, Window]]:
    """Yield the windows from the one that holds a position on, each with the position behind it."""
    while position < order.count:
        slices, position = order.slices(position), order.window_end(position)
        yield position, Window(slices, images)


def _slices(windows: list[Window]) -> Iterator[Steps]:
    for window in windows:
        for start, stop in window.slices:
            yield Steps([np.arange(start, stop)], [0], [0])


def _settle(device: torch.device) -> None:
    """Wait until what was copied to a device is there, whatever stream a loop is on later."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _recorded_if_cuda(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
    return tensor


def _held(store: Any) -> Any:
    """Return a whole store: its memory outlives what the current stream does with it, though its loader may not."""
    return recorded(store) if store.pixels.device.type == "cuda" else store


def _joined(batches: list[Any]) -> Any:
    if not isinstance(batches[0], RaggedBatch):
        return torch.cat(batches)
    starts = list(itertools.accumulate((len(batch.pixels) for batch in batches), initial=0))[:-1]

    def column(name: str) -> Any:
        """Join one field of all batches; offsets count on from the batch before."""
        found = [getattr(batch, name) for batch in batches]
        if found[0] is None:
            return None
        if name in ("offsets", "mask_offsets"):
            found = [offsets + start for offsets, start in zip(found, starts, strict=True)]
        return torch.cat(found)

    return RaggedBatch(**{name: column(name) for name in ("pixels", "rows", *_BESIDE_PIXELS)}, batch_size=[])


def _empty_like(store: ImageBatch, count: int, device: torch.device) -> ImageBatch:
    """Allocate what so many rows of a store need on a device, and number them."""

    def empty(tensor: Any) -> Any:
        """Allocate what the tensor's rows need on the device, contiguous."""
        return torch.empty((count, *tensor.shape[1:]), dtype=tensor.dtype, device=device)

    return ImageBatch(
        pixels=empty(store.pixels),
        targets=empty(store.targets),
        content=None if store.content is None else empty(store.content),
        extras=None if store.extras is None else store.extras.apply(empty, device=device, batch_size=[count]),
        rows=torch.arange(count, device=device),
        batch_size=[count],
        device=device,
    )


def _leaves(batch: ImageBatch) -> list[torch.Tensor]:
    """List a batch's tensors, but for its row numbers."""
    found = [tensor for tensor in (batch.pixels, batch.targets, batch.content) if tensor is not None]
    return (
        found
        if batch.extras is None
        else found + [batch.extras[key] for key in sorted(batch.extras.keys(True, True), key=str)]
    )
